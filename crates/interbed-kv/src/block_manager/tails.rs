//! Gives sequences their tail blocks, and moves these along as a sequence is computed.

use std::collections::VecDeque;
use std::ops::Range;

use super::BlockManager;
use crate::{
    cache::{Cache, Need, Taker},
    config::Keeps,
    hash::ChainRoot,
    ids::{BlockId, SequenceId, TokenId},
    prefix_hashes::PrefixHashes,
    resume_points::Lasts,
    stats::{KvUse, TailGroupStats, TailStats},
    tables::{Table, blocks_for, position},
    tail_pool::TailPool,
    tail_table::{StateTable, TailTable, TailTables, WindowTable},
    tails::Tails,
    transfer::Transfers,
};

/// Where the next pass finds and leaves the tail of a sequence in one [tail group](crate#terms).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailPlace<'a> {
    /// The tail is a window.
    Window {
        /// The number of blocks of the sequence before the first of `blocks`.
        first: usize,
        /// The window's blocks, in the order of the tokens. The last ones have room for tokens that the pass computes.
        blocks: &'a VecDeque<BlockId>,
    },
    /// The tail is a state.
    State {
        /// The number of tokens that the state stands for: all computed ones.
        position: usize,
        /// The block with the state that the pass begins with; `None` if no token of the sequence is computed.
        from: Option<BlockId>,
        /// The block to which the pass writes the state behind its tokens; it may be the block `from`.
        to: BlockId,
    },
}

/// What a look-up finds for a sequence, and what the sequence takes besides.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    /// Number of leading blocks whose tokens need not be computed.
    pub(super) hits: usize,
    /// The memory that the sequence takes out of what is available.
    pub(super) need: Need,
}

impl BlockManager {
    /// Returns, for each tail group of [`KvConfig::tails`](crate::KvConfig::tails) in order, where the next pass finds
    /// and leaves the tail of `id`. The places are valid until the next call that changes blocks. The list leaves a
    /// group out while the sequence has no block to which the next pass could write the group's state. Returns nothing
    /// if `id` is unknown.
    pub fn tail_places(&self, id: SequenceId) -> impl Iterator<Item = TailPlace<'_>> {
        let table = self.tables.get(id);
        let position = table.map_or(0, Table::num_computed);
        table.into_iter().flat_map(|table| &table.tails().groups).filter_map(move |group| match group {
            TailTable::Window(WindowTable { first, blocks, .. }) => Some(TailPlace::Window { first: *first, blocks }),
            TailTable::State(StateTable { from, to, .. }) => {
                Some(TailPlace::State { position, from: *from, to: to.or(*from)? })
            }
        })
    }

    /// Returns whether the next pass of `id` writes a state to the block that it reads the state from. The state is
    /// lost then if such a pass does not complete.
    pub fn writes_in_place(&self, id: SequenceId) -> bool {
        self.tail_places(id).any(|place| matches!(place, TailPlace::State { from, to, .. } if from == Some(to)))
    }

    /// Returns the trunk blocks that `id` holds in memory, whatever the state of the sequence.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn trunk_blocks(&self, id: SequenceId) -> impl Iterator<Item = BlockId> {
        self.tables.get(id).into_iter().flat_map(Table::blocks).copied()
    }

    /// Returns all tail blocks that `id` holds, whatever the state of the sequence.
    pub fn tail_blocks(&self, id: SequenceId) -> impl Iterator<Item = BlockId> {
        self.tables.get(id).into_iter().flat_map(|table| &table.tails().groups).flat_map(TailTable::blocks)
    }

    /// Returns the ids of the blocks of each tail group of [`KvConfig::tails`](crate::KvConfig::tails). The ids of the
    /// trunk blocks come before them and begin at 0.
    pub fn tail_groups(&self) -> Vec<Range<u32>> {
        let pools = self.cache.tails().map_or(&[][..], |tails| &tails.pools);
        pools.iter().map(|pool| pool.first()..pool.first() + pool.len() as u32).collect()
    }

    /// Returns how many units are present, used and cached, in the trunk and all tail groups together.
    pub fn kv_use(&self) -> KvUse {
        let (blocks, cached) = (self.cache.blocks(), self.cache.num_cached());
        let used = blocks.present() - self.cache.unused();
        let Some(tails) = self.cache.tails() else { return KvUse { present: blocks.present(), used, cached } };
        let present = blocks.present() * tails.block_bytes + tails.present_bytes();
        KvUse {
            present: tails.units(present).max(tails.usable),
            used: tails.units(used * tails.block_bytes + tails.held_bytes()),
            cached: tails.units(cached * tails.block_bytes + tails.cached_bytes()),
        }
    }

    /// Returns figures of the tail groups. All are 0 if there are none.
    pub fn tail_stats(&self) -> TailStats {
        let Some(tails) = self.cache.tails() else { return TailStats::default() };
        let of_group = |pool: &TailPool| TailGroupStats {
            keeps: pool.keeps(),
            block_bytes: pool.block_bytes(),
            blocks_held: pool.num_held(),
            blocks_cached: pool.num_cached(),
            blocks_free: pool.num_free(),
        };
        TailStats {
            groups: tails.pools.iter().map(of_group).collect(),
            points: tails.points.len(),
            points_given_up: tails.given_up,
        }
    }

    /// Returns how many leading tokens of `id` are computed or have places in the trunk and in all windows, so that a
    /// pass can compute them. Returns 0 if `id` is unknown.
    pub fn num_placed_tokens(&self, id: SequenceId) -> usize {
        let Some(table) = self.tables.get(id) else { return 0 };
        let ends = table.tails().groups.iter().filter_map(|group| match group {
            TailTable::Window(window) => Some(window.end() * self.config.block_size),
            TailTable::State(_) => None,
        });
        ends.fold(table.num_tokens(), usize::min)
    }

    /// Returns whether the first uncomputed token of `id` has no place in a window. An [`append`](Self::append) of no
    /// token gives it one, if enough memory is available. Returns false if all tokens are computed, or `id` is unknown.
    pub fn lacks_place(&self, id: SequenceId) -> bool {
        if self.cache.tails().is_none() {
            return false;
        }
        let table = self.tables.get(id).filter(|table| table.num_computed() < table.num_tokens());
        table.is_some_and(|table| self.num_placed_tokens(id) <= table.num_computed())
    }

    /// Returns whether any layer keeps a tail.
    pub fn keeps_tails(&self) -> bool {
        self.cache.tails().is_some()
    }

    /// Returns whether any layer keeps a state. A state cannot go back to an earlier token.
    pub fn keeps_states(&self) -> bool {
        self.cache.tails().is_some_and(Tails::keep_states)
    }

    /// Returns how many units a sequence of `num_tokens` tokens takes that shares nothing, tail blocks included.
    pub fn num_blocks_alone(&self, num_tokens: usize) -> usize {
        units_alone(&self.cache, blocks_for(num_tokens, self.config.block_size), 0)
    }

    /// Returns how many of the next `count` tokens of `id` a pass should compute, so that it ends where the sequence's
    /// state is worth keeping: behind the last full block of the prompt that does not contain its last token, where the
    /// prompt branched off from another sequence, and at every so many blocks; in a sequence that is longer than
    /// memory, also at the last end of a block that the tokens reach. If layers keep windows alone, a pass ends behind
    /// that block of the prompt, and only in a sequence that is longer than memory. Returns `count` if layers keep no
    /// tails, if `id` is unknown, or if it shares nothing and is not longer than memory.
    pub fn count_to_stop(&self, id: SequenceId, count: usize) -> usize {
        let (Some(tails), Some(table)) = (self.cache.tails(), self.tables.get(id)) else { return count };
        let (computed, block_size) = (table.num_computed(), self.config.block_size);
        let TailTables { prompt, branch, .. } = *table.tails();
        let (at, end) = (computed / block_size, computed.saturating_add(count) / block_size);
        let stops = match (self.keeps_states(), table.is_long()) {
            (true, false) if table.is_publishing() => [prompt, branch, tails.next_milestone(at)],
            // Of a sequence that is longer than memory, states are stored behind full blocks alone.
            (true, true) => [prompt, tails.next_milestone_below(at), end],
            // The disk gets windows of such a sequence as they are when a pass ends. The same prompt can go on at most
            // behind its last full block that does not contain its last token.
            (false, true) => [prompt; 3],
            (_, false) => return count,
        };
        let ahead = stops.into_iter().map(|stop| stop * block_size).filter(|&stop| stop > computed);
        ahead.fold(count, |count, stop| count.min(stop - computed))
    }

    /// Returns behind how many of the next `count` tokens of `id` a pass should store states, if drafts follow these
    /// tokens: at the end of a block, if they reach one, so that others can go on there.
    pub fn count_to_state(&self, id: SequenceId, count: usize) -> usize {
        let Some(table) = self.tables.get(id).filter(|table| table.is_publishing()) else { return count };
        let computed = table.num_computed();
        let (full, _) = position(computed + count, self.config.block_size);
        match (full * self.config.block_size).saturating_sub(computed) {
            0 => count,
            to_end => to_end,
        }
    }

    /// Finds the leading blocks that a new sequence need not compute, and what it takes besides.
    pub(super) fn find(&self, token_ids: &[TokenId], hashes: &PrefixHashes) -> Found {
        if self.cache.tails().is_some() {
            let mut blocks = Vec::new();
            self.cache.walk(token_ids, hashes, |block, _| blocks.push(block));
            return self.resume(&mut blocks, token_ids.len());
        }
        let mut revived = 0;
        let hits = self.cache.walk(token_ids, hashes, |_, cached| revived += usize::from(cached));
        let fresh = self.num_required_blocks(token_ids.len(), 0) - hits;
        Found { hits, need: Need { fresh, revived, tail_bytes: 0 } }
    }

    /// Shortens `blocks`, which a look-up has found, to those up to the last resume point, and returns what a sequence
    /// of `num_tokens` tokens takes then. If the sequence would not fit into memory beside what it found, `blocks`
    /// becomes empty.
    pub(super) fn resume(&self, blocks: &mut Vec<BlockId>, num_tokens: usize) -> Found {
        blocks.truncate(self.cache.resumable(blocks));
        let (found, held) = self.behind(blocks, num_tokens);
        if held <= self.usable() || blocks.is_empty() {
            return found;
        }
        // What was found would have to stay besides what the sequence writes. There is not that much memory, so the
        // sequence begins anew.
        blocks.clear();
        self.behind(blocks, num_tokens).0
    }

    /// Returns what a sequence of `num_tokens` tokens takes if it goes on behind `found`, and the number of units that
    /// it holds then.
    fn behind(&self, found: &[BlockId], num_tokens: usize) -> (Found, usize) {
        let (block_size, hits) = (self.config.block_size, found.len());
        let all = self.num_required_blocks(num_tokens, 0);
        let revived = found.iter().filter(|&&block| self.cache.holders(block) == 0).count();
        let (mut tail_bytes, mut held_bytes) = (0, all * self.config.block_bytes);
        for pool in self.cache.tails().map_or(&[][..], |tails| &tails.pools) {
            let tail = &found[hits - pool.keeps().tail_blocks(hits, block_size)..];
            let is_revived = |block: &&BlockId| !pool.is_companion_held(self.cache.content_of(**block));
            let fresh = match pool.keeps() {
                Keeps::Window { tokens } => (all - hits).min(quota(&self.cache, tokens)),
                Keeps::State => usize::from(num_tokens > 0),
            };
            tail_bytes += (tail.iter().filter(is_revived).count() + fresh) * pool.block_bytes();
            held_bytes += (tail.len() + fresh) * pool.block_bytes();
        }
        let found = Found { hits, need: Need { fresh: all - hits, revived, tail_bytes } };
        (found, self.cache.tails().map_or(0, |tails| tails.units(held_bytes)))
    }

    /// Gives tail blocks to a new sequence of `num_tokens` tokens that goes on behind `found`. The sequence had
    /// `branch` blocks in common with others.
    pub(super) fn begin_tails(
        &mut self,
        id: SequenceId,
        root: &ChainRoot,
        found: &[BlockId],
        num_tokens: usize,
        branch: usize,
    ) -> TailTables {
        let (block_size, hits) = (self.config.block_size, found.len());
        let Some(tails) = self.cache.tails_mut() else { return TailTables::default() };
        let keeps: Vec<_> = tails.pools.iter().map(|pool| pool.keeps()).collect();
        // What is found is held first, because a block that is held cannot be given up for the fresh ones.
        let tail_of = |keeps: &Keeps| &found[hits - keeps.tail_blocks(hits, block_size)..];
        let contents: Vec<Vec<_>> = keeps
            .iter()
            .map(|keeps| tail_of(keeps).iter().map(|&block| self.cache.content_of(block)).collect())
            .collect();
        let tails = self.cache.tails_mut().expect("there are groups");
        let pools = tails.pools.iter_mut().zip(&contents);
        let held: Vec<VecDeque<_>> = pools
            .map(|(pool, contents)| contents.iter().map(|&content| pool.hold_companion(content)).collect())
            .collect();
        if let Some(&last) = found.last() {
            self.cache.note_hit(last);
        }
        let (taker, all) = (Taker::new(id, root), blocks_for(num_tokens, block_size));
        let mut groups = Vec::with_capacity(keeps.len());
        for (pool, (keeps, mut blocks)) in keeps.into_iter().zip(held).enumerate() {
            groups.push(match keeps {
                Keeps::Window { tokens } => {
                    let first = hits - blocks.len();
                    let fresh = (all - hits).min(quota(&self.cache, tokens));
                    blocks.extend((0..fresh).map(|_| self.cache.take_tail(pool, taker)));
                    TailTable::Window(WindowTable { first, blocks, slots: Vec::new() })
                }
                Keeps::State => {
                    let to = (num_tokens > 0).then(|| self.cache.take_tail(pool, taker));
                    TailTable::State(StateTable { from: blocks.pop_front(), to, ..StateTable::default() })
                }
            });
        }
        TailTables { groups, prompt: num_tokens.saturating_sub(1) / block_size, branch }
    }

    /// Moves the tails of `id` along after a commit. `before` is the number of computed tokens and of published blocks
    /// before the commit. Makes resume points where others can go on, releases the tail blocks that the next tokens do
    /// not need, and takes blocks for these tokens.
    pub(super) fn pass_by(&mut self, id: SequenceId, before: (usize, usize)) {
        if self.cache.tails().is_none() {
            return;
        }
        let Self { config, cache, tables, .. } = self;
        let Ok(table) = tables.resident(id) else { return };
        if table.num_computed() == before.0 {
            return;
        }
        let mut tails = std::mem::take(table.tails_mut());
        for (pool, group) in tails.groups.iter_mut().enumerate() {
            if let TailTable::State(StateTable { from, to, .. }) = group
                && let Some(to) = to.take()
                && let Some(last) = from.replace(to)
            {
                cache.release_tail(pool, last);
            }
        }
        let (computed, block_size) = (table.num_computed(), config.block_size);
        let chain = &table.blocks()[..table.num_published()];
        for count in before.1 + 1..=chain.len() {
            let mut groups = tails.groups.iter().enumerate();
            if groups.all(|(pool, group)| can_resume(group, cache, pool, count, computed)) {
                let is_likely = count == tails.prompt || count == tails.branch;
                let lasts = if is_likely { Lasts::Wanted } else { cache.milestone(count) };
                cache.add_point(&chain[..count], &tails.groups, lasts);
            }
        }
        let taker = Taker::new(id, table.root());
        let (all, goes_on_at) = (blocks_for(table.num_tokens(), block_size), table.goes_on_at(block_size));
        for (pool, group) in tails.groups.iter_mut().enumerate() {
            match group {
                TailTable::Window(window) => slide(window, cache, pool, taker, (goes_on_at, all)),
                TailTable::State(state) if computed < table.num_tokens() => leave_room(state, cache, pool, taker),
                TailTable::State(_) => {}
            }
        }
        *table.tails_mut() = tails;
        cache.settle();
        self.keep_states(id);
    }

    /// Takes up to `max_steps` steps towards compact tail groups, and returns how many it took.
    pub(super) fn compact_tails(&mut self, max_steps: usize) -> usize {
        let Self { cache, tables, transfers, counters, .. } = self;
        let pools = cache.tails_mut().map_or(&mut [][..], |tails| &mut tails.pools);
        let (pinned, mut taken) = (transfers.pinned(), 0);
        for pool in pools {
            let moves = pool.relocate(max_steps - taken, &pinned);
            tables.rename(&moves);
            moves.iter().for_each(|&(source, destination)| transfers.copy(source, destination));
            counters.moves += moves.len() as u64;
            taken += moves.len();
            taken += pool.exchange(max_steps - taken);
        }
        taken
    }
}

/// Returns how many units a sequence takes that shares nothing, has `num_blocks` trunk blocks in memory, and has
/// `below` blocks before them.
pub(super) fn units_alone(cache: &Cache, num_blocks: usize, below: usize) -> usize {
    let Some(tails) = cache.tails() else { return num_blocks };
    let of_pool = |pool: &TailPool| {
        let blocks = match pool.keeps() {
            Keeps::Window { tokens } => (num_blocks + below).min(tails.window_quota(tokens)),
            Keeps::State => 1,
        };
        blocks * pool.block_bytes()
    };
    let tail_bytes = tails.pools.iter().map(of_pool).sum();
    tails.units(num_blocks.saturating_mul(tails.block_bytes).saturating_add(tail_bytes))
}

/// Returns the [quota](crate::tails::Tails::window_quota) of a window of `tokens` tokens.
fn quota(cache: &Cache, tokens: usize) -> usize {
    cache.tails().map_or(0, |tails| tails.window_quota(tokens))
}

/// Returns whether `group`, which a sequence holds of pool number `pool`, has all that another sequence needs of this
/// pool to go on behind `count` blocks. `computed` is how many tokens the sequence has computed.
fn can_resume(group: &TailTable, cache: &Cache, pool: usize, count: usize, computed: usize) -> bool {
    let Some((keeps, _, block_size)) = cache.tails().map(|tails| tails.window(pool)) else { return false };
    match group {
        TailTable::Window(window) => {
            window.first <= count - keeps.tail_blocks(count, block_size) && count <= window.end()
        }
        TailTable::State(_) => count * block_size == computed,
    }
}

/// Releases the blocks of a window that the token at position `next` does not see, and takes blocks for the tokens that
/// come next, as far as memory is available. `all` is the number of blocks that hold tokens of the sequence.
fn slide(window: &mut WindowTable, cache: &mut Cache, pool: usize, taker: Taker, (next, all): (usize, usize)) {
    let Some((Keeps::Window { tokens }, quota, block_size)) = cache.tails().map(|tails| tails.window(pool)) else {
        return;
    };
    let first = (next + 1).saturating_sub(tokens) / block_size;
    while window.first < first
        && let Some(block) = window.blocks.pop_front()
    {
        cache.release_tail(pool, block);
        window.first += 1;
    }
    window.first = window.first.max(first);
    // If there is no room, because others still hold what was released, the sequence asks again before its next pass.
    while window.end() < all.min(first + quota)
        && let Some(block) = cache.try_take_tail(pool, taker)
    {
        window.blocks.push_back(block);
    }
}

/// Ensures that the next pass does not write over a state that a resume point needs. If no memory is available for
/// another block, the point ends.
fn leave_room(state: &mut StateTable, cache: &mut Cache, pool: usize, taker: Taker) {
    let Some(from) = state.from.filter(|&from| state.to.is_none() && cache.is_pinned(pool, from)) else { return };
    state.to = cache.try_take_tail(pool, taker);
    if state.to.is_none() {
        cache.drop_point_of_state(pool, from);
    }
}

/// Returns the number of parts of a block of each pool.
pub(super) fn parts_of(cache: &Cache) -> impl Iterator<Item = u32> {
    cache.tails().into_iter().flat_map(|tails| &tails.pools).map(|pool| pool.parts() as u32)
}

/// Returns the bytes of tail blocks that `table` must take before `count` more tokens are added to it.
pub(super) fn growth(table: &Table, count: usize, cache: &Cache, block_size: usize) -> usize {
    let Some(tails) = cache.tails() else { return 0 };
    let of_group = |(index, group): (usize, &TailTable)| {
        let (pool, (_, quota, _)) = (&tails.pools[index], tails.window(index));
        let blocks = match group {
            TailTable::Window(window) => {
                let copies = partial(window, table.num_tokens(), block_size).filter(|_| count > 0);
                let copies = usize::from(copies.is_some_and(|block| pool.holders(block) > 1));
                let end = wanted_end(table, count, window, quota, block_size);
                end.saturating_sub(window.end()) + copies
            }
            TailTable::State(state) => usize::from(count > 0 && needs_place(state, |block| pool.holders(block))),
        };
        blocks * pool.block_bytes()
    };
    table.tails().groups.iter().enumerate().map(of_group).sum()
}

/// Takes the tail blocks that `table` needs before `count` more tokens are added to it. The caller has checked that
/// memory is available.
pub(super) fn grow(
    table: &mut Table,
    count: usize,
    taker: Taker,
    cache: &mut Cache,
    transfers: &mut Transfers,
    block_size: usize,
) {
    let (num_tokens, mut tails) = (table.num_tokens(), std::mem::take(table.tails_mut()));
    for (pool, group) in tails.groups.iter_mut().enumerate() {
        match group {
            TailTable::Window(window) => {
                let is_shared = |block: &BlockId| count > 0 && cache.tail_holders(pool, *block) > 1;
                if let Some(source) = partial(window, num_tokens, block_size).filter(is_shared) {
                    let destination = cache.take_tail(pool, taker);
                    let (index, _) = position(num_tokens, block_size);
                    window.blocks[index - window.first] = destination;
                    transfers.copy(source, destination);
                    cache.release_tail(pool, source);
                }
                let quota = cache.tails().map_or(0, |tails| tails.window(pool).1);
                while window.end() < wanted_end(table, count, window, quota, block_size) {
                    window.blocks.push_back(cache.take_tail(pool, taker));
                }
            }
            TailTable::State(_) if count == 0 => {}
            TailTable::State(state) => {
                if needs_place(state, |block| cache.tail_holders(pool, block)) {
                    state.to = Some(cache.take_tail(pool, taker));
                }
            }
        }
    }
    // What may fail comes last, so that it takes nothing that was counted for another group.
    for (pool, group) in tails.groups.iter_mut().enumerate() {
        if let TailTable::State(state) = group
            && count > 0
        {
            leave_room(state, cache, pool, taker);
        }
    }
    *table.tails_mut() = tails;
}

/// Returns the number of the block behind those that a sequence must hold of a window before `count` more tokens are
/// added. If `count` is 0, the window must have a place for the first token that is not computed, if there is one.
fn wanted_end(table: &Table, count: usize, window: &WindowTable, quota: usize, block_size: usize) -> usize {
    let next = table.num_computed() + 1;
    match count {
        0 => blocks_for(table.num_tokens().min(next), block_size),
        _ => blocks_for(table.num_tokens().saturating_add(count), block_size).min(window.first + quota),
    }
}

/// Returns, for each tail group, how many blocks a sequence that comes back from slots holds for tokens that are not
/// computed.
pub(super) fn blocks_ahead(table: &Table, cache: &Cache, block_size: usize) -> impl Iterator<Item = usize> {
    let (computed, all) = (blocks_for(table.num_computed(), block_size), blocks_for(table.num_tokens(), block_size));
    let ahead = move |(pool, group): (usize, &TailTable)| match group {
        TailTable::Window(window) => {
            let quota = cache.tails().map_or(0, |tails| tails.window(pool).1);
            all.min(window.first + quota).saturating_sub(computed.max(window.first))
        }
        TailTable::State(state) => {
            // Another sequence of the group may go on from the same state.
            let is_shared = state.slots.first().is_none_or(|&slot| cache.slots().holders(slot) > 1);
            usize::from(is_shared && table.num_computed() < table.num_tokens())
        }
    };
    table.tails().groups.iter().enumerate().map(ahead)
}

/// Returns the partial block of a window to which the next token will be written; `None` if the token begins a block,
/// or the window does not hold the block.
fn partial(window: &WindowTable, num_tokens: usize, block_size: usize) -> Option<BlockId> {
    let (index, slot) = position(num_tokens, block_size);
    (slot > 0 && (window.first..window.end()).contains(&index)).then(|| window.block(index))
}

/// Returns whether the next pass needs another block for the state than the one that it begins with.
fn needs_place(state: &StateTable, holders: impl Fn(BlockId) -> u32) -> bool {
    state.to.is_none() && state.from.is_none_or(|from| holders(from) > 1)
}

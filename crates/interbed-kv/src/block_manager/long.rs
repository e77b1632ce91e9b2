//! Sequences that are longer than memory. The beginning of their KV is in a tier below memory, the end in blocks of
//! memory.

use std::sync::Arc;

use super::{BlockManager, tails::units_alone};
use crate::{
    cache::{Need, Taker},
    config::Keeps,
    error::BlockError,
    hash::ChainRoot,
    ids::{BlockId, SequenceId, TokenId},
    key::BlockKey,
    missing_keys::MissingKeys,
    tables::{Table, position},
    tail_table::{StateTable, TailTable},
    transfer::Fetch,
};

/// The blocks that hold what a sequence needs to go on behind some of its tokens, besides the KV of all tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptTails {
    /// The number of full blocks behind which the sequence can go on.
    pub count: usize,
    /// For each group of [`KvConfig::tails`](crate::KvConfig::tails), the blocks of a window in the order of the
    /// tokens, or the block of a state.
    pub blocks: Vec<Vec<BlockId>>,
}

impl BlockManager {
    /// Begins sequence `id`, whose first `below` blocks are in a tier below memory and count as computed. The first
    /// `num_tokens` tokens of the sequence are its prompt, whose end is a [point below](Self::is_point_below); these
    /// tokens get no places here. The sequence holds no trunk block yet, and shares nothing with others. The caller
    /// [appends](Self::append) the tokens behind the first `below` blocks as they are to be computed.
    ///
    /// # Errors
    /// Fails with [`BlockError::AlreadyHeld`] if `id` has begun before and was not freed.
    ///
    /// # Panics
    /// Panics if layers [keep tails](Self::keeps_tails) and `below` is not 0, because nothing in memory stands for the
    /// tails of such a sequence. [`begin_fetch_below`](Self::begin_fetch_below) brings them.
    pub fn begin_below(
        &mut self,
        id: SequenceId,
        root: &ChainRoot,
        below: usize,
        num_tokens: usize,
    ) -> Result<(), BlockError> {
        assert!(below == 0 || !self.keeps_tails(), "a sequence goes on behind {below} blocks without their tails");
        self.begin_long(id, root, below, num_tokens)
    }

    /// Begins sequence `id` in the way of [`begin_below`](Self::begin_below), where layers may keep tails. Begins to
    /// fill the blocks of `token_ids`, which follow those that stay below, and the tails that the sequence needs to go
    /// on behind them. The sequence is `Fetching` until [`finish_fetch`](Self::finish_fetch). If the fetch then brings
    /// nothing, the sequence has no tails, so that it must be [freed](Self::free).
    ///
    /// # Errors
    /// The manager is unchanged on failure:
    /// - [`BlockError::OutOfBlocks`] if memory has no room for the blocks and the tails;
    /// - [`BlockError::AlreadyHeld`] if `id` has begun before and was not freed.
    ///
    /// # Panics
    /// Panics if `token_ids` do not fill one block or more.
    pub fn begin_fetch_below(
        &mut self,
        id: SequenceId,
        root: &ChainRoot,
        below: usize,
        token_ids: &[TokenId],
        num_tokens: usize,
    ) -> Result<Fetch, BlockError> {
        let block_size = self.config.block_size;
        let count = token_ids.len() / block_size;
        assert!(count > 0 && token_ids.len().is_multiple_of(block_size), "{} tokens are no blocks", token_ids.len());
        let tail_bytes = self.fetched_tail_bytes(below + count);
        self.expect_room(Need { fresh: count, revived: 0, tail_bytes })?;
        self.begin_long(id, root, below, num_tokens)?;
        let (taker, table) = (Taker::new(id, root), self.tables.resident(id)?);
        token_ids.chunks_exact(block_size).for_each(|tokens| table.push(self.cache.take_with(taker, tokens, None).0));
        table.add_tokens(token_ids.len());
        self.begin_fetch(id, count)
    }

    fn begin_long(
        &mut self,
        id: SequenceId,
        root: &ChainRoot,
        below: usize,
        num_tokens: usize,
    ) -> Result<(), BlockError> {
        if self.tables.get(id).is_some() {
            return Err(BlockError::AlreadyHeld(id));
        }
        let block_size = self.config.block_size;
        let mut tails = self.begin_tails(id, root, &[], 0, 0);
        tails.prompt = num_tokens.saturating_sub(1) / block_size;
        self.tables.insert(id, Table::of_below(root.clone(), below, block_size).with_tails(tails));
        self.counters.allocations += 1;
        Ok(())
    }

    /// Wraps `keys`, those of blocks of a sequence that is longer than memory, from its first block on. The first
    /// `first` of the blocks need not be brought to memory.
    pub fn keys_below(&self, keys: &[BlockKey], first: usize) -> MissingKeys {
        let tails = self.cache.tails().map(|tails| Arc::clone(&tails.parts));
        let before = tails.as_ref().map_or(0, |tails| tails.reach().min(first));
        MissingKeys::new(keys[first - before..].to_vec(), before, first, tails)
    }

    /// Keeps the states behind the computed tokens of `id`, which is longer than memory, until they are kept behind
    /// more tokens. So tiers below memory can still store the states when the sequence has gone on or has ended. This
    /// is done where tokens fill blocks: at every so many blocks, and from the end of the prompt on. Returns false if
    /// there is no room.
    pub fn keep_states(&mut self, id: SequenceId) -> bool {
        let Some(table) = self.tables.get(id).filter(|table| table.is_long()) else { return true };
        let Some(milestone) = self.cache.tails().map(|tails| tails.next_milestone_below(0)) else { return true };
        let full = table.num_computed() / self.config.block_size;
        if full < table.tails().prompt && !full.is_multiple_of(milestone) {
            return true;
        }
        self.keep(id, true)
    }

    /// Keeps the states behind the computed tokens of `id` in the way of [`keep_states`](Self::keep_states), wherever
    /// these tokens fill blocks, because the sequence is about to lose its blocks: no pass follows. The caller must not
    /// have given up a pass that may have [written over the states](Self::writes_in_place).
    pub fn keep_last_states(&mut self, id: SequenceId) {
        self.keep(id, false);
    }

    /// Keeps the states behind the computed tokens of `id`, if these tokens fill blocks. Returns false if there is no
    /// room for the states that a pass writes after that, if one `follows`.
    fn keep(&mut self, id: SequenceId, follows: bool) -> bool {
        let Self { config, cache, tables, .. } = self;
        let Some(table) = tables.get_mut(id).filter(|table| table.is_long()) else { return true };
        let (full, slot) = position(table.num_computed(), config.block_size);
        if slot > 0 || full == 0 {
            return true;
        }
        let (taker, mut tails) = (Taker::new(id, table.root()), std::mem::take(table.tails_mut()));
        let mut all = true;
        for (pool, group) in tails.groups.iter_mut().enumerate() {
            let TailTable::State(StateTable { from: Some(from), to, kept, .. }) = group else { continue };
            if kept.is_some_and(|(at, _)| at == full) {
                continue;
            }
            kept.take().into_iter().for_each(|(_, block)| cache.release_tail(pool, block));
            if follows {
                // The pass must write elsewhere.
                *to = to.or_else(|| cache.try_take_tail(pool, taker));
            }
            if to.is_some() || !follows {
                cache.hold_any(*from);
                *kept = Some((full, *from));
            }
            all &= kept.is_some();
        }
        *table.tails_mut() = tails;
        cache.settle();
        all
    }

    /// Gives up the states that are [kept](Self::keep_states) of `id`. Returns whether that has released a block.
    pub fn give_up_kept_states(&mut self, id: SequenceId) -> bool {
        let Self { cache, tables, .. } = self;
        let Some(table) = tables.get_mut(id).filter(|table| table.is_long()) else { return false };
        let mut any = false;
        for (pool, group) in table.tails_mut().groups.iter_mut().enumerate() {
            let TailTable::State(StateTable { from, to, kept, .. }) = group else { continue };
            let Some((_, block)) = kept.take() else { continue };
            cache.release_tail(pool, block);
            // The next pass may write over the state that it begins with.
            let spare = to.take_if(|_| *from == Some(block));
            spare.into_iter().for_each(|block| cache.release_tail(pool, block));
            any = true;
        }
        cache.settle();
        any
    }

    /// Returns what is kept in memory to go on behind full blocks of `id`, which is longer than memory: behind its last
    /// one, or behind the last one at which [states are kept](Self::keep_states). Returns `None` if that is not all
    /// that a sequence needs, or if layers keep no tails. No pass writes to any of it, even if the pass is given up.
    pub fn kept_tails(&self, id: SequenceId) -> Option<KeptTails> {
        let (table, tails) = (self.tables.get(id).filter(|table| table.is_long())?, self.cache.tails()?);
        let groups = &table.tails().groups;
        let kept = groups.iter().find_map(|group| match group {
            TailTable::State(state) => Some(state.kept.map_or(0, |(at, _)| at)),
            TailTable::Window(_) => None,
        });
        let count = kept.unwrap_or(table.num_computed() / self.config.block_size);
        let of_group = |(pool, group): (usize, &TailTable)| match (tails.pools[pool].keeps(), group) {
            (keeps @ Keeps::Window { .. }, TailTable::Window(window)) => {
                let first = count - keeps.tail_blocks(count, self.config.block_size);
                let is_there = window.first <= first && count <= window.end();
                is_there.then(|| (first..count).map(|index| window.block(index)).collect())
            }
            (_, TailTable::State(state)) => state.kept.filter(|&(at, _)| at == count).map(|(_, block)| vec![block]),
            (Keeps::State, TailTable::Window(_)) => None,
        };
        let blocks: Option<Vec<_>> = groups.iter().enumerate().map(of_group).collect();
        blocks.filter(|_| count > 0).map(|blocks| KeptTails { count, blocks })
    }

    /// Returns whether a tier below memory, whose last kept tails of `id` are behind `last` blocks, should keep those
    /// behind `count` blocks: because the end of the prompt, or a multiple of a fixed number of blocks, lies after
    /// `last` and not after `count`.
    pub fn is_point_below(&self, id: SequenceId, last: usize, count: usize) -> bool {
        let (Some(table), Some(tails)) = (self.tables.get(id), self.cache.tails()) else { return false };
        (last + 1..=count).contains(&table.tails().prompt) || tails.next_milestone_below(last) <= count
    }

    /// Notes that the first `count` trunk blocks that `id` has in memory now lie in a tier below memory too, and
    /// releases these blocks. The sequence must have been begun by [`begin_below`](Self::begin_below) or
    /// [`begin_fetch_below`](Self::begin_fetch_below).
    ///
    /// # Errors
    /// The manager is unchanged on failure:
    /// - [`BlockError::NotHeld`] if `id` is unknown, and [`BlockError::WrongState`] if it is not resident;
    /// - [`BlockError::OutOfBlocks`] if fewer than `count` of these blocks are full and computed, or if others may find
    ///   the sequence's blocks.
    pub fn move_below(&mut self, id: SequenceId, count: usize) -> Result<(), BlockError> {
        let block_size = self.config.block_size;
        let table = self.tables.resident(id)?;
        let (full, _) = position(table.num_computed(), block_size);
        let available = if table.is_publishing() { 0 } else { full - table.below() };
        if count > available {
            return Err(BlockError::OutOfBlocks { need: count, available });
        }
        table.move_below(count).into_iter().rev().for_each(|block| self.cache.release(block));
        Ok(())
    }

    /// Returns how many units a sequence takes that has `num_blocks` trunk blocks in memory, and others below memory.
    /// Its tail blocks are included.
    pub fn num_blocks_beside_below(&self, num_blocks: usize) -> usize {
        // A window is full then.
        units_alone(&self.cache, num_blocks, self.capacity_tokens())
    }

    /// Returns how many leading blocks of `id` are in a tier below memory; 0 if `id` is unknown.
    pub fn blocks_below(&self, id: SequenceId) -> usize {
        self.tables.get(id).map_or(0, Table::below)
    }

    /// Returns how many trunk blocks `id` holds in memory; 0 if `id` is unknown.
    pub fn blocks_held(&self, id: SequenceId) -> usize {
        self.tables.get(id).map_or(0, |table| table.blocks().len())
    }

    /// Returns the full trunk blocks that `id` holds in memory and whose tokens are all computed, whatever the state of
    /// the sequence. Returns none if `id` is unknown.
    pub fn computed_blocks(&self, id: SequenceId) -> &[BlockId] {
        let Some(table) = self.tables.get(id) else { return &[] };
        let (full, _) = position(table.num_computed(), self.config.block_size);
        table.blocks().get(..full.saturating_sub(table.below())).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use super::*;
    use crate::{KvConfig, TailConfig, TailPlace, testing::Rng};

    const BLOCK: usize = 4;

    /// A sequence, and the number of its tokens that were reported as computed.
    struct One {
        tokens: Vec<TokenId>,
        computed: usize,
        long: bool,
    }

    #[test]
    fn what_is_below_takes_no_blocks_and_everything_else_goes_on() {
        let (mut moved, mut refused, mut restarted) = (0, 0, 0);
        for seed in 0..40 {
            let mut random = Rng(seed);
            let config = KvConfig { num_blocks: 16, block_size: BLOCK, num_swap_blocks: 8, ..KvConfig::default() };
            let mut manager = BlockManager::new(config).expect("it is valid");
            let root = ChainRoot::new(None, 0);
            let mut alive: HashMap<SequenceId, One> = HashMap::new();
            for number in 0..500 {
                let id = {
                    let mut ids: Vec<_> = alive.keys().copied().collect();
                    ids.sort_unstable();
                    (!ids.is_empty()).then(|| ids[random.below(ids.len())])
                };
                match (random.below(8), id) {
                    (0, _) => {
                        let (id, tokens) = (SequenceId(number), vec![random.below(2) as TokenId; 1 + random.below(20)]);
                        let hashes = manager.hash_prefix(&root, &tokens);
                        if let Ok(allocation) = manager.allocate(id, &tokens, &hashes) {
                            alive.insert(id, One { computed: allocation.num_cached_tokens, tokens, long: false });
                        }
                    }
                    (1, _) => {
                        let (id, below) = (SequenceId(number), random.below(100));
                        manager.begin_below(id, &root, below, 0).expect("it is new");
                        assert!(manager.begin_below(id, &root, 0, 0).is_err());
                        let tokens = vec![1; below * BLOCK];
                        restarted += usize::from(below > 0);
                        alive.insert(id, One { computed: tokens.len(), tokens, long: true });
                    }
                    (2..5, Some(id)) => {
                        let one = alive.get_mut(&id).expect("it is alive");
                        let more = vec![2; 1 + random.below(9)];
                        if manager.append(id, &more).is_ok() {
                            one.tokens.extend(more);
                        }
                    }
                    (5, Some(id)) => {
                        let one = alive.get_mut(&id).expect("it is alive");
                        one.computed += random.below(one.tokens.len() - one.computed + 1);
                        manager.commit(id, one.computed);
                    }
                    (6, Some(id)) => {
                        let one = &alive[&id];
                        let (held, count) = (manager.computed_blocks(id).len(), random.below(4));
                        let before = manager.blocks_below(id);
                        assert_eq!(held + before, one.computed / BLOCK);
                        let (free, moves) = (manager.stats().blocks_free, one.long && count <= held);
                        assert_eq!(manager.move_below(id, count).is_ok(), moves || count == 0);
                        if moves {
                            assert_eq!(manager.blocks_below(id), before + count);
                            assert_eq!(manager.stats().blocks_free, free + count);
                            moved += count;
                        }
                        if manager.blocks_below(id) > 0 {
                            refused += 1;
                            assert_eq!(manager.swap_out(&[id]).unwrap_err(), BlockError::BelowMemory(id));
                            assert_eq!(manager.fork(id, SequenceId(10_000)).unwrap_err(), BlockError::BelowMemory(id));
                        }
                    }
                    (7, Some(id)) => {
                        alive.remove(&id);
                        assert!(manager.free(id));
                    }
                    _ => {
                        manager.compact(3);
                        manager.take_copies(&mut Vec::new());
                    }
                }
                manager.check().expect("invariants hold");
                for (&id, one) in &alive {
                    let table = manager.block_table(id).expect("nothing is swapped");
                    let all = one.tokens.len().div_ceil(BLOCK);
                    assert_eq!(table.len() + manager.blocks_below(id), all, "{id}");
                    assert_eq!(manager.num_tokens(id), Some(one.tokens.len()));
                }
            }
        }
        assert!(moved > 50 && refused > 100 && restarted > 100, "{moved} {refused} {restarted}");
    }

    const TAILS: [TailConfig; 2] = [
        TailConfig { keeps: Keeps::Window { tokens: 7 }, block_bytes: 30, parts: 1 },
        TailConfig { keeps: Keeps::State, block_bytes: 150, parts: 2 },
    ];

    /// Checks what is kept to go on behind blocks of `id`, whose layers keep `tails`. Returns whether anything is.
    fn check_kept(manager: &BlockManager, id: SequenceId, computed: usize, tails: &[TailConfig]) -> bool {
        let Some(KeptTails { count, blocks }) = manager.kept_tails(id) else { return false };
        assert!(0 < count && count * BLOCK <= computed);
        for ((tail, blocks), place) in tails.iter().zip(&blocks).zip(manager.tail_places(id)) {
            assert_eq!(blocks.len(), tail.keeps.tail_blocks(count, BLOCK));
            match place {
                TailPlace::State { to, .. } => assert_ne!(blocks[..], [to], "the next pass writes over it"),
                TailPlace::Window { first, blocks: all } => {
                    let from = count - blocks.len() - first;
                    assert!(blocks.iter().eq(all.range(from..from + blocks.len())));
                }
            }
        }
        true
    }

    #[test]
    fn tails_are_kept_behind_full_blocks_and_come_back_from_below() {
        let (mut kept, mut came, mut lost, mut given_up) = (0, 0, 0, 0);
        for seed in 0..40 {
            let mut random = Rng(seed);
            let tails = [&TAILS[..1], &TAILS[1..], &TAILS[..]][random.below(3)];
            let config = KvConfig { num_blocks: 40, block_size: BLOCK, block_bytes: 100, ..KvConfig::default() };
            let config = KvConfig { tails: tails.to_vec(), pass_tokens: 9, ..config };
            let mut manager = BlockManager::new(config).expect("it is valid");
            let root = ChainRoot::new(None, 0);
            // The computed tokens of each sequence that waits for no fetch.
            let mut alive: BTreeMap<SequenceId, usize> = BTreeMap::new();
            let mut fetches: Vec<Fetch> = Vec::new();
            for number in 0..500 {
                let (new, at) = (SequenceId(number), random.below(alive.len().max(1)));
                match (random.below(8), alive.keys().nth(at).copied()) {
                    (0, _) => {
                        manager.begin_below(new, &root, 0, 1 + random.below(60)).expect("it is new");
                        alive.insert(new, 0);
                    }
                    (1, _) => {
                        let (below, count) = (random.below(20), 1 + random.below(4));
                        if let Ok(fetch) = manager.begin_fetch_below(new, &root, below, &vec![1; count * BLOCK], 1) {
                            let lens = fetch.tails.iter().map(Vec::len);
                            assert!(lens.eq(tails.iter().map(|tail| tail.keeps.tail_blocks(below + count, BLOCK))));
                            assert_eq!((fetch.blocks.len(), manager.block_table(new)), (count, None));
                            fetches.push(fetch);
                        }
                    }
                    (2, _) if !fetches.is_empty() => {
                        let fetch = fetches.swap_remove(random.below(fetches.len()));
                        let is_whole = random.below(3) > 0;
                        let filled = if is_whole { fetch.blocks.len() } else { 0 };
                        let (id, computed) = manager.finish_fetch(fetch.id, filled).expect("it waits");
                        if is_whole {
                            alive.insert(id, computed);
                            came += 1;
                        } else {
                            assert_eq!(manager.kept_tails(id), None);
                            assert!(manager.free(id));
                            lost += 1;
                        }
                    }
                    (3, Some(id)) => given_up += usize::from(manager.give_up_kept_states(id)),
                    (5, Some(id)) if alive.len() > 2 => {
                        manager.keep_last_states(id);
                        let ends_full = alive[&id] > 0 && alive[&id].is_multiple_of(BLOCK);
                        assert!(
                            !ends_full || manager.kept_tails(id).is_some_and(|kept| kept.count == alive[&id] / BLOCK)
                        );
                        alive.remove(&id);
                        assert!(manager.free(id));
                    }
                    (4, Some(id)) => {
                        let moved = random.below(manager.computed_blocks(id).len() + 1);
                        manager.move_below(id, moved).expect("they are computed");
                    }
                    (_, Some(id)) => {
                        let computed = alive.get_mut(&id).expect("it is alive");
                        if manager.append(id, &vec![1; random.below(9)]).is_ok() {
                            let places = manager.num_placed_tokens(id) - *computed;
                            *computed += manager.count_to_stop(id, random.below(places + 1));
                            manager.commit(id, *computed);
                        }
                    }
                    _ => {}
                }
                manager.check().expect("invariants hold");
                kept += alive.iter().filter(|(id, computed)| check_kept(&manager, **id, **computed, tails)).count();
            }
        }
        assert!(kept > 1000 && came > 100 && lost > 50 && given_up > 50, "{kept} {came} {lost} {given_up}");
    }
}

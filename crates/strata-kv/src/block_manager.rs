//! Who holds which blocks: the one room that sees contents, places, tables and transfers together.

use crate::{
    blocks::{Fragmentation, Resize},
    cache::{Cache, Published},
    config::{KvConfig, KvConfigError},
    error::{AllocStatus, BlockError},
    eviction::EvictionPolicy,
    hash::{ChainHasher, ChainRoot},
    ids::{BlockId, SequenceId, TokenId},
    miss::Miss,
    prefix_hashes::PrefixHashes,
    sequence_state::SequenceState,
    stats::KvStats,
    tables::{Table, Tables, blocks_for, position},
    transfer::{BlockCopy, Transfers},
};

mod invariants;
mod swapping;
#[cfg(test)]
mod tests;

/// What [`BlockManager::look_up`] has found; true until anything changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookUp {
    /// Whether the sequence can be admitted. While other sequences are held, admission leaves [`KvConfig::watermark`]
    /// of the blocks available; an idle manager admits whatever fits it.
    pub status: AllocStatus,
    /// Blocks that the sequence would take and that nobody uses now, fresh or revived.
    pub num_blocks: usize,
    /// [`Allocation::num_cached_tokens`], if it were allocated.
    pub num_cached_tokens: usize,
}

/// What [`BlockManager::allocate`] found and took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// Leading tokens whose KV is there already: a multiple of the block size, and fewer than all tokens.
    pub num_cached_tokens: usize,
    /// Blocks that are the sequence's own.
    pub num_fresh_blocks: usize,
}

/// Gives blocks to sequences, and finds those that others have computed.
///
/// The life of a sequence: [`allocate`](Self::allocate), then per step [`append`](Self::append) the tokens that the
/// step will compute, carry out [`take_copies`](Self::take_copies), compute, and [`commit`](Self::commit) when the step
/// has retired; at the end, or when preempted, [`free`](Self::free). In between it may [`fork`](Self::fork), and leave
/// for the swap pool and come back ([`swap_out`](Self::swap_out), [`swap_in`](Self::swap_in)).
#[derive(Debug)]
pub struct BlockManager {
    config: KvConfig,
    cache: Cache,
    tables: Tables,
    transfers: Transfers,
    // Only the counters are kept here; `stats` fills in the rest.
    counters: KvStats,
}

impl BlockManager {
    /// A manager whose blocks are all free, with [`KvConfig::eviction`].
    ///
    /// # Errors
    /// When `config` cannot work.
    pub fn new(config: KvConfig) -> Result<Self, KvConfigError> {
        // Checked before anything of that size is built.
        config.check()?;
        let (hasher, policy) = (ChainHasher::new(config.seed), config.eviction.build(config.num_blocks));
        Self::with_parts(config, hasher, policy)
    }

    /// As [`new`](Self::new), with another eviction policy for block ids below `config.num_blocks`, and a given hasher,
    /// for tests that force collisions.
    ///
    /// # Errors
    /// When `config` cannot work.
    pub fn with_parts(
        config: KvConfig,
        hasher: ChainHasher,
        policy: Box<dyn EvictionPolicy>,
    ) -> Result<Self, KvConfigError> {
        config.check()?;
        Ok(Self {
            cache: Cache::new(config.num_blocks, config.num_swap_blocks, config.block_size, hasher, policy),
            tables: Tables::default(),
            transfers: Transfers::default(),
            counters: KvStats::default(),
            config,
        })
    }

    /// A manager of the same configuration whose blocks are all free, as many as this one may use; its counters start
    /// anew, and [`take_resize`](Self::take_resize) reports all others to have left. Swaps in flight must have finished
    /// before: it does not know them.
    pub fn emptied(&self) -> Self {
        let (hasher, policy) = (self.cache.hasher().clone(), self.config.eviction.build(self.config.num_blocks));
        let mut manager = Self::with_parts(self.config.clone(), hasher, policy).expect("the same configuration worked");
        manager.set_usable(self.usable());
        manager
    }

    /// Whether sequences share the KV of equal prefixes.
    pub fn prefix_caching(&self) -> bool {
        self.config.prefix_caching
    }

    /// The hashes of `token_ids` under `root`, to be [extended](PrefixHashes::extend) as the sequence grows. They stay
    /// valid in an [emptied](Self::emptied) manager. Nothing is hashed where nothing could be found.
    pub fn hash_prefix(&self, root: &ChainRoot, token_ids: &[TokenId]) -> PrefixHashes {
        let findable = self.config.prefix_caching && root.is_shared();
        let hasher = self.cache.hasher().clone();
        let mut hashes = PrefixHashes::new(root.clone(), hasher, self.config.block_size, findable);
        hashes.extend(token_ids);
        hashes
    }

    /// Tokens per block.
    pub fn block_size(&self) -> usize {
        self.config.block_size
    }

    /// Tokens that all blocks together hold, at the most.
    pub fn capacity_tokens(&self) -> usize {
        self.config.num_blocks * self.config.block_size
    }

    /// Goes through the prefix of a sequence of `token_ids` as [`allocate`](Self::allocate) would. Changes nothing.
    pub fn look_up(&self, token_ids: &[TokenId], hashes: &PrefixHashes) -> LookUp {
        let (need, limit) = (self.num_required_blocks(token_ids.len(), 0), self.config.num_blocks);
        let mut shared = 0;
        let hits = self.cache.walk(token_ids, hashes, |_, cached| shared += usize::from(!cached));
        // A cached block that is hit is no longer there to be evicted.
        let num_blocks = need - shared;
        let status = match num_blocks + self.reserve() <= self.cache.available() {
            _ if need > limit => AllocStatus::Never { need, limit },
            true => AllocStatus::Ok,
            false => AllocStatus::Later,
        };
        LookUp { status, num_blocks, num_cached_tokens: hits * self.config.block_size }
    }

    /// [`LookUp::status`] alone.
    pub fn can_allocate(&self, token_ids: &[TokenId], hashes: &PrefixHashes) -> AllocStatus {
        self.look_up(token_ids, hashes).status
    }

    /// Blocks that admission leaves available while sequences are held: [`KvConfig::watermark`] of those that may be
    /// used. Those that are swapped out hold none.
    pub fn reserve(&self) -> usize {
        let idle = self.tables.len() == self.tables.num_swapped();
        if idle { 0 } else { self.config.watermark_blocks(self.usable()) }
    }

    /// Where the prefix of a prompt stops matching now, and why. Costs as much as a look-up, changes nothing; ask
    /// before [`allocate`](Self::allocate), which may evict.
    pub fn explain(&self, token_ids: &[TokenId], hashes: &PrefixHashes) -> Miss {
        let (num_matched, reason) = self.cache.explain(token_ids, hashes);
        Miss { matched_tokens: num_matched * self.config.block_size, reason }
    }

    /// Gives sequence `id` blocks for all `token_ids`: published ones for the longest prefix that is cached under the
    /// root of `hashes`, fresh ones from the first miss on. `hashes` are those of `token_ids`. The watermark does not
    /// apply here.
    ///
    /// # Errors
    /// When the blocks are not there, or `id` holds some. Nothing has changed then.
    pub fn allocate(
        &mut self,
        id: SequenceId,
        token_ids: &[TokenId],
        hashes: &PrefixHashes,
    ) -> Result<Allocation, BlockError> {
        if self.tables.get(id).is_some() {
            return Err(BlockError::AlreadyHeld(id));
        }
        let (need, limit) = (self.num_required_blocks(token_ids.len(), 0), self.config.num_blocks);
        if need > limit {
            self.counters.allocation_failures += 1;
            return Err(BlockError::Never { need, limit });
        }
        let mut blocks = Vec::with_capacity(need);
        let mut revived = 0;
        let hits = self.cache.walk(token_ids, hashes, |block, cached| {
            blocks.push(block);
            revived += usize::from(cached);
        });
        self.expect_available(need - hits, self.cache.available() - revived)?;

        let block_size = self.config.block_size;
        self.cache.tick();
        // Hits first: what is held cannot be evicted for the fresh ones.
        blocks.iter().for_each(|&block| self.cache.share(block));
        let mut rest = &token_ids[hits * block_size..];
        for index in hits..need {
            let block;
            (block, rest) = self.cache.take_with(id, rest, hashes.get(index));
            blocks.push(block);
        }
        self.counters.allocations += 1;
        let (publishing, num_cached_tokens) = (hashes.root_hash().is_some(), hits * block_size);
        if publishing {
            self.counters.prefix_query_tokens += token_ids.len() as u64;
            self.counters.prefix_hit_tokens += num_cached_tokens as u64;
        }
        let table = Table::new(hashes.root().clone(), publishing, blocks, token_ids.len(), hits, block_size);
        self.tables.insert(id, table);
        Ok(Allocation { num_cached_tokens, num_fresh_blocks: need - hits })
    }

    /// Physical blocks of `id` in logical order; valid until the next call that changes blocks. None unless `id` is
    /// resident: what is on its way must not be read. Blocks that [`Self::ensure_num_empty_slots`] reserved come last.
    pub fn block_table(&self, id: SequenceId) -> Option<&[BlockId]> {
        let table = self.tables.get(id)?;
        (table.state() == SequenceState::Resident).then(|| table.blocks())
    }

    /// Tokens of `id` that have a slot, whether computed or not, and wherever they are.
    pub fn num_tokens(&self, id: SequenceId) -> Option<usize> {
        self.tables.get(id).map(Table::num_tokens)
    }

    /// Blocks that so many tokens and so many slots behind them take, whoever shares them.
    pub fn num_required_blocks(&self, num_tokens: usize, num_lookahead_slots: usize) -> usize {
        blocks_for(num_tokens.saturating_add(num_lookahead_slots), self.config.block_size)
    }

    /// Those of `token_ids`, all tokens of `id`, that have no slot yet; all of them when `id` holds nothing.
    pub fn unseen_token_ids<'t>(&self, id: SequenceId, token_ids: &'t [TokenId]) -> &'t [TokenId] {
        &token_ids[self.num_tokens(id).unwrap_or(0).min(token_ids.len())..]
    }

    /// Blocks that a step writes to when it fills `count` slots behind the last token, and
    /// `num_lookahead_slots` more: the partial one, and new ones.
    pub fn num_blocks_touched_by_append(&self, id: SequenceId, count: usize, num_lookahead_slots: usize) -> usize {
        let tokens = self.num_tokens(id).unwrap_or(0);
        let slots = count.saturating_add(num_lookahead_slots);
        if slots == 0 { 0 } else { self.num_required_blocks(tokens, slots) - tokens / self.config.block_size }
    }

    /// Whether [`append`](Self::append) of `count` tokens would succeed, copy of a shared block included.
    pub fn can_append(&self, id: SequenceId, count: usize) -> bool {
        let Some(table) = self.tables.get(id) else { return false };
        table.state() == SequenceState::Resident && {
            let (need, fresh) = growth(table, count, &self.cache, self.config.block_size);
            need <= self.config.num_blocks && fresh <= self.cache.available()
        }
    }

    /// Reserves slots for tokens that the next step will compute; new blocks are taken only on crossing a boundary, or
    /// instead of a partial block that others hold too: see [`take_copies`](Self::take_copies).
    ///
    /// # Errors
    /// When the blocks are not there, or `id` is not resident. Nothing has changed then.
    pub fn append(&mut self, id: SequenceId, token_ids: &[TokenId]) -> Result<(), BlockError> {
        let Self { config, cache, tables, transfers, counters } = self;
        let table = tables.resident(id)?;
        grow(table, token_ids.len(), id, config, cache, transfers, counters)?;
        let mut rest = token_ids;
        while !rest.is_empty() {
            let (block, at) = position(table.num_tokens(), config.block_size);
            let after = cache.write(table.blocks()[block], at, rest);
            table.add_tokens(rest.len() - after.len());
            rest = after;
        }
        Ok(())
    }

    /// Reserves blocks, so that `count` slots behind the last token can be written by a step that may discard what it
    /// computes there, as speculation does; [`append`](Self::append) finds them later.
    ///
    /// # Errors
    /// As [`append`](Self::append) of `count` tokens.
    pub fn ensure_num_empty_slots(&mut self, id: SequenceId, count: usize) -> Result<(), BlockError> {
        let Self { config, cache, tables, transfers, counters } = self;
        grow(tables.resident(id)?, count, id, config, cache, transfers, counters)
    }

    /// The step that computed the first `num_computed` tokens of `id` has retired: full blocks among them become
    /// findable, and no block does before. An unknown `id` is ignored, since steps may outlive sequences, and so is one
    /// that is not resident: a swap carries what had been committed when it began.
    ///
    /// Where another sequence has published an equal block meanwhile, the table takes that one instead, so that the
    /// parent of a published block is always published; read [`block_table`](Self::block_table) again before the next
    /// step. Both hold the same bytes, as results do not depend on the batch.
    pub fn commit(&mut self, id: SequenceId, num_computed: usize) {
        let Self { config, cache, tables, counters, .. } = self;
        let Ok(table) = tables.resident(id) else { return };
        table.computed(num_computed);
        let (full, _) = position(table.num_computed(), config.block_size);
        if !table.is_publishing() || table.num_published() >= full {
            return;
        }
        let root = cache.hold_root(table.root());
        let mut parent = match table.num_published().checked_sub(1) {
            None => root,
            Some(last) => cache.parent(table.blocks()[last]),
        };
        while table.num_published() < full {
            let index = table.num_published();
            match cache.publish(table.blocks()[index], parent) {
                Published::Itself => {}
                Published::Equal(block) => {
                    table.replace(index, block);
                    counters.blocks_merged += 1;
                }
                Published::Refused => break,
            }
            table.published();
            parent = cache.parent(table.blocks()[index]);
        }
        cache.release_root(root);
    }

    /// Begins `child` with all tokens of `parent`, whose blocks both hold from now on, the partial last one too.
    /// Whoever appends to that first gets a block of its own and a copy; the last holder writes in place.
    ///
    /// # Errors
    /// When `parent` is not resident, `child` holds blocks, or `parent` has tokens that were not computed and
    /// committed. Nothing has changed then.
    pub fn fork(&mut self, parent: SequenceId, child: SequenceId) -> Result<(), BlockError> {
        if self.tables.get(child).is_some() {
            return Err(BlockError::AlreadyHeld(child));
        }
        let table = self.tables.resident(parent)?;
        let (computed, tokens) = (table.num_computed(), table.num_tokens());
        if computed < tokens {
            return Err(BlockError::Uncomputed { id: parent, computed, tokens });
        }
        let forked = table.fork(self.config.block_size);
        forked.blocks().iter().for_each(|&block| self.cache.hold(block));
        self.tables.insert(child, forked);
        self.counters.forks += 1;
        Ok(())
    }

    /// Lets go of all blocks of `id`, the last first: the tail of a chain is reused before its head. Published blocks
    /// stay findable until they are evicted. In the midst of a swap, its blocks and slots come free when that has
    /// finished. False, with nothing done, when `id` holds none: a late completion is harmless.
    pub fn free(&mut self, id: SequenceId) -> bool {
        let Some(table) = self.tables.remove(id) else { return false };
        let (blocks, slots) = table.into_places();
        // One by one, each decremented and tested: a table may hold a block that others let go of just now.
        blocks.into_iter().rev().for_each(|block| self.cache.release(block));
        slots.into_iter().for_each(|slot| self.cache.release_slot(slot));
        true
    }

    /// Moves what must be copied into `copies`, whose old content is dropped, and whose room is used again.
    ///
    /// They must be carried out in this order, one after the other as far as it can be told: a block may be a source
    /// first and a destination later, or a destination and then a source. It must be done before the next pass reads or
    /// writes KV, before the transfers of any [`crate::Swap`] begin, and before memory is given back of blocks that
    /// [`take_resize`](Self::take_resize) reports to have left; those that came need theirs before.
    pub fn take_copies(&mut self, copies: &mut Vec<BlockCopy>) {
        self.transfers.take_copies(copies);
    }

    /// Changes how many blocks may be used; at least 1, and at most [`KvConfig::num_blocks`], the number that
    /// `Never` refers to. Growing adds free blocks. Shrinking withdraws free blocks, then cached ones as the eviction
    /// policy picks them, never used ones: what is missing then is withdrawn when sequences let go of it.
    pub fn set_usable(&mut self, blocks: usize) {
        self.cache.set_usable(blocks.clamp(1, self.config.num_blocks));
    }

    /// How many blocks may be used; more are there only while they are used.
    pub fn usable(&self) -> usize {
        self.cache.blocks().usable()
    }

    /// Blocks below the number of [`usable`](Self::usable) ones that are withdrawn. At least as many others lie above
    /// it, more only while sequences hold more blocks than may be used: [`compact`](Self::compact) has so many to bring
    /// down. In constant time.
    pub fn blocks_above(&self) -> usize {
        self.cache.blocks().num_holes()
    }

    /// Blocks that are there: free, cached or used.
    pub fn present(&self) -> usize {
        self.cache.blocks().present()
    }

    /// What has come and left since the last call, which should be asked right after [`set_usable`](Self::set_usable)
    /// and [`compact`](Self::compact), and otherwise now and then: blocks come only by these two, and must have memory
    /// before anything uses them. A manager begins with all blocks, none of them reported. Copies that are yet to be
    /// taken may concern blocks of both lists: see [`take_copies`](Self::take_copies). Takes time in proportion to the
    /// pool, but none if there is nothing to report.
    pub fn take_resize(&mut self) -> Resize {
        self.cache.take_resize()
    }

    /// Takes up to `max_steps` steps towards a compact pool, and returns how many; 0 when nothing is left to be done,
    /// or nothing can be for now: blocks of swaps in flight stay where they are, and where sequences hold all blocks,
    /// nothing moves. Compact means: content first, then free blocks, then withdrawn ones.
    ///
    /// A step moves a content into a free block, or exchanges the memory of a free block and a withdrawn one. Each move
    /// is a copy to be [taken](Self::take_copies) and carried out before the next pass, as of any other block; tables
    /// and eviction policy know the new places at once, and contents stay what they are. Moves go to blocks that have
    /// had memory before the call, so none is needed beyond what there is, if what has [left](Self::take_resize) is
    /// given back before what came is used. Where a smaller pool has no free block to begin with, cached leaves give
    /// way, the next to be evicted anyway: one for every two steps, and none while there are free blocks. Nothing else
    /// that is cached is lost.
    ///
    /// A call that moves anything goes through the whole pool, more than once, and through all tables, however few its
    /// steps; [`blocks_above`](Self::blocks_above) says in constant time whether one is due.
    pub fn compact(&mut self, max_steps: usize) -> usize {
        self.cache.make_room_to_move(max_steps.div_ceil(2));
        if self.cache.blocks().num_free() == 0 {
            return 0;
        }
        let moves = self.cache.relocate(max_steps, &self.transfers.pinned());
        self.tables.rename(&moves);
        moves.iter().for_each(|&(source, destination)| self.transfers.copy(source, destination));
        self.counters.moves += moves.len() as u64;
        moves.len() + self.cache.exchange(max_steps - moves.len())
    }

    /// How far from compact the pool is. Takes time in proportion to it.
    pub fn fragmentation(&self) -> Fragmentation {
        self.cache.blocks().fragmentation()
    }

    /// Sequences that hold blocks or slots, in the order of their ids.
    pub fn sequences(&self) -> impl Iterator<Item = SequenceId> {
        let mut ids: Vec<_> = self.tables.iter().map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids.into_iter()
    }

    /// Figures for monitoring, in constant time.
    pub fn stats(&self) -> KvStats {
        let (blocks, slots) = (self.cache.blocks(), self.cache.slots());
        let blocks_used = blocks.present() - self.cache.available();
        let slots_allocated = blocks_used * self.config.block_size;
        KvStats {
            blocks_total: self.config.num_blocks,
            blocks_used,
            blocks_cached: self.cache.num_cached(),
            blocks_free: blocks.num_free(),
            blocks_withdrawn: blocks.num_withdrawn(),
            slots_allocated,
            slots_empty: slots_allocated - self.cache.tokens_used(),
            sequences: self.tables.len(),
            sequences_swapped: self.tables.num_swapped(),
            swap_slots_total: slots.len(),
            swap_slots_used: slots.num_used(),
            evictions: self.cache.evictions(),
            ..self.counters
        }
    }

    /// Drops all cached content, for instance because the weights have changed. Sequences keep their blocks, but what
    /// they hold can no longer be found, now or later.
    pub fn reset_cache(&mut self) {
        self.cache.reset();
        self.tables.iter_mut().for_each(Table::stop_publishing);
    }

    fn expect_available(&mut self, need: usize, available: usize) -> Result<(), BlockError> {
        if need <= available {
            return Ok(());
        }
        self.counters.allocation_failures += 1;
        Err(BlockError::OutOfBlocks { need, available })
    }
}

/// Sees to it that `count` slots behind the last token of `table` are there, and no other table's.
fn grow(
    table: &mut Table,
    count: usize,
    id: SequenceId,
    config: &KvConfig,
    cache: &mut Cache,
    transfers: &mut Transfers,
    counters: &mut KvStats,
) -> Result<(), BlockError> {
    let (block_size, limit) = (config.block_size, config.num_blocks);
    let (need, fresh) = growth(table, count, cache, block_size);
    if need > limit {
        counters.allocation_failures += 1;
        return Err(BlockError::Never { need, limit });
    }
    if fresh == 0 {
        return Ok(());
    }
    if fresh > cache.available() {
        counters.allocation_failures += 1;
        return Err(BlockError::OutOfBlocks { need: fresh, available: cache.available() });
    }
    if let Some(source) = table.partial(block_size).filter(|&block| cache.is_shared(block)) {
        let (index, filled) = position(table.num_tokens(), block_size);
        let destination = cache.unshare(source, filled, id);
        table.replace(index, destination);
        transfers.copy(source, destination);
        counters.copy_on_writes += 1;
    }
    while table.blocks().len() < need {
        table.push(cache.take(id));
    }
    Ok(())
}

/// Blocks that `table` takes in all with `count` slots more, and those that are yet to be taken for them.
fn growth(table: &Table, count: usize, cache: &Cache, block_size: usize) -> (usize, usize) {
    // An overflow asks for more than any pool has.
    let need = blocks_for(table.num_tokens().saturating_add(count), block_size);
    let partial = if count > 0 { table.partial(block_size) } else { None };
    let copies = usize::from(partial.is_some_and(|block| cache.is_shared(block)));
    (need, need.saturating_sub(table.blocks().len()) + copies)
}

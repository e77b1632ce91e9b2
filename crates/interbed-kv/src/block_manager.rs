//! Decides which sequence holds which blocks. This is the one module that sees contents, locations, tables and
//! transfers together.

use crate::{
    blocks::{Fragmentation, Resize},
    cache::{Cache, Need, Published, Taker},
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
    tail_table::TailTable,
    tails::Tails,
    transfer::{BlockCopy, Transfers},
};

mod below;
mod changes;
mod invariants;
mod long;
mod map;
mod swapping;
mod tails;
#[cfg(test)]
mod tests;

pub use long::KeptTails;
pub use map::BlockUse;
use tails::Found;
pub use tails::TailPlace;

/// What [`BlockManager::look_up`] found. The answer is valid until the manager changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookUp {
    /// Whether the sequence can be admitted. While other sequences hold blocks, admission leaves
    /// [`BlockManager::reserve`] units available; a manager without such sequences admits any sequence that fits into
    /// the pool.
    pub status: AllocStatus,
    /// Number of units that the sequence would take out of the [available](BlockManager::available) ones: those of
    /// fresh blocks, and those of cached blocks that the sequence would use again.
    pub num_blocks: usize,
    /// Number of leading tokens that allocating the sequence would find computed, as [`Allocation::num_cached_tokens`]
    /// counts them.
    pub num_cached_tokens: usize,
}

/// What [`BlockManager::allocate`] found and took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// Number of leading tokens whose KV is already computed: a multiple of the block size, and fewer than all tokens.
    pub num_cached_tokens: usize,
    /// Number of trunk blocks that were taken for this sequence alone.
    pub num_fresh_blocks: usize,
}

/// The trunk blocks that the next [`BlockManager::allocate`] of the tokens given to [`BlockManager::foresee`] is
/// expected to give. Where no layer keeps tails, it gives these blocks if nothing else happens before. Where layers
/// keep tails, tail blocks may take the memory of the free ones among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreseen {
    /// The blocks in the order of the sequence's tokens. The list is shorter than the sequence needs if blocks must be
    /// evicted first.
    pub blocks: Vec<BlockId>,
    /// Number of these blocks, counted from the first, that already hold computed KV.
    pub found: usize,
}

/// Gives blocks to sequences, and finds blocks that other sequences have computed. The [terms](crate#terms) of these
/// docs are defined on the crate's page.
///
/// A sequence begins with [`allocate`](Self::allocate). In each step, the caller [appends](Self::append) the tokens
/// that the step will compute, carries out [`take_copies`](Self::take_copies), computes the step, and calls
/// [`commit`](Self::commit) when the step has ended. When the sequence ends or is preempted, the caller
/// [frees](Self::free) it. In between, the sequence may be [forked](Self::fork), or moved to the swap pool and back
/// ([`swap_out`](Self::swap_out), [`swap_in`](Self::swap_in)).
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
    /// Makes a manager with all blocks free and the eviction policy of [`KvConfig::eviction`].
    ///
    /// # Errors
    /// Fails with the first invalid field of `config`, as [`KvConfig::check`] does.
    pub fn new(config: KvConfig) -> Result<Self, KvConfigError> {
        // Checked before anything is allocated in sizes that `config` gives.
        config.check()?;
        let (hasher, policy) = (ChainHasher::new(config.seed), config.eviction.build(config.num_blocks));
        Self::with_parts(config, hasher, policy)
    }

    /// Makes a manager with all blocks free, with the given eviction policy in place of [`KvConfig::eviction`], and
    /// with the given hasher. The policy must take block ids below `config.num_blocks`. Tests give hashers that force
    /// collisions.
    ///
    /// # Errors
    /// Fails with the first invalid field of `config`, as [`KvConfig::check`] does.
    pub fn with_parts(
        config: KvConfig,
        hasher: ChainHasher,
        policy: Box<dyn EvictionPolicy>,
    ) -> Result<Self, KvConfigError> {
        config.check()?;
        let tails = Tails::new(&config);
        Ok(Self {
            cache: Cache::new(config.num_blocks, config.num_swap_blocks, config.block_size, hasher, policy, tails),
            tables: Tables::default(),
            transfers: Transfers::default(),
            counters: KvStats::default(),
            config,
        })
    }

    /// Makes a manager of this configuration with as many usable units as this one has, all of them free. Its eviction
    /// policy is that of [`KvConfig::eviction`], its counters start at 0, and its [`take_resize`](Self::take_resize)
    /// reports the unusable blocks as having left. The new manager [names contents](Self::name_contents) and [records
    /// changes](Self::record_changes) if this one does. All swaps and fetches must have ended before, because the new
    /// manager does not know them.
    pub fn emptied(&self) -> Self {
        let (hasher, policy) = (self.cache.hasher().clone(), self.config.eviction.build(self.config.num_blocks));
        let mut manager = Self::with_parts(self.config.clone(), hasher, policy).expect("the same configuration worked");
        manager.set_usable(self.usable());
        self.cache.names().into_iter().for_each(|names| manager.name_contents(names.chain().clone()));
        if self.cache.contents().records_changes() {
            manager.record_changes();
            manager.cache.reset();
        }
        manager
    }

    /// Returns whether sequences share the KV of equal prefixes.
    pub fn prefix_caching(&self) -> bool {
        self.config.prefix_caching
    }

    /// Returns the hashes of the full blocks of `token_ids` under `root`, to be [extended](PrefixHashes::extend) as the
    /// sequence grows. The hashes are valid in an [emptied](Self::emptied) manager too. No hash is computed if prefix
    /// caching is off or `root` is not [shared](ChainRoot::is_shared).
    pub fn hash_prefix(&self, root: &ChainRoot, token_ids: &[TokenId]) -> PrefixHashes {
        let findable = self.config.prefix_caching && root.is_shared();
        let hasher = self.cache.hasher().clone();
        let mut hashes = PrefixHashes::new(root.clone(), hasher, self.config.block_size, findable);
        hashes.extend(token_ids);
        hashes
    }

    /// Returns the number of tokens in a block, [`KvConfig::block_size`].
    pub fn block_size(&self) -> usize {
        self.config.block_size
    }

    /// Returns the most tokens that all trunk blocks together can hold.
    pub fn capacity_tokens(&self) -> usize {
        self.config.num_blocks * self.config.block_size
    }

    /// Looks up the prefix of a sequence of `token_ids` in the way that [`allocate`](Self::allocate) does, but changes
    /// nothing. `hashes` must be the hashes of `token_ids`.
    pub fn look_up(&self, token_ids: &[TokenId], hashes: &PrefixHashes) -> LookUp {
        let (need, limit) = (self.num_blocks_alone(token_ids.len()), self.config.num_blocks);
        let found = self.find(token_ids, hashes);
        let status = match self.cache.fits(found.need, self.reserve()) {
            _ if need > limit => AllocStatus::Never { need, limit },
            true => AllocStatus::Ok,
            false => AllocStatus::Later,
        };
        let num_cached_tokens = found.hits * self.config.block_size;
        LookUp { status, num_blocks: self.cache.cost(found.need), num_cached_tokens }
    }

    /// Returns how many cached trunk blocks of other tenants than that of `root` lie within the equal shares of those
    /// tenants. An eviction takes these blocks only if nothing else is left. A sequence that can wait for blocks of its
    /// own tenant should not make the manager evict them. Returns 0 as long as no two tenants have had blocks at the
    /// same time; from then on, the call takes time in proportion to the number of tenants.
    pub fn blocks_kept_from(&self, root: &ChainRoot) -> usize {
        self.cache.kept_from(root.tenant())
    }

    /// Returns the [`LookUp::status`] of a [look-up](Self::look_up) alone.
    pub fn can_allocate(&self, token_ids: &[TokenId], hashes: &PrefixHashes) -> AllocStatus {
        self.look_up(token_ids, hashes).status
    }

    /// Returns how many units admission leaves available while any sequence holds blocks: the share
    /// [`KvConfig::watermark`] of the [usable](Self::usable) units. Returns 0 if no sequence holds blocks; swapped-out
    /// sequences hold none.
    pub fn reserve(&self) -> usize {
        let idle = self.tables.len() == self.tables.num_swapped();
        if idle { 0 } else { self.config.watermark_blocks(self.usable()) }
    }

    /// Tells where a look-up of a prompt's prefix would stop now, and why. `hashes` must be the hashes of `token_ids`.
    /// The call costs as much as a look-up and changes nothing. The caller asks before [`allocate`](Self::allocate),
    /// which may evict what the answer is about.
    pub fn explain(&self, token_ids: &[TokenId], hashes: &PrefixHashes) -> Miss {
        let (num_matched, reason) = self.cache.explain(token_ids, hashes);
        Miss { matched_tokens: num_matched * self.config.block_size, reason }
    }

    /// Tells why no more than the first `found_tokens` tokens of a prompt were found, in memory and below it together.
    /// `hashes` must be the hashes of `token_ids`. The call costs as much as hashing the found tokens.
    pub fn explain_behind(&self, token_ids: &[TokenId], hashes: &PrefixHashes, found_tokens: usize) -> Miss {
        let num_found = found_tokens / self.config.block_size;
        let reason = self.cache.explain_behind(token_ids, hashes, num_found, None);
        Miss { matched_tokens: found_tokens, reason }
    }

    /// Gives sequence `id` blocks for all `token_ids`. The sequence gets published blocks for the longest prefix that
    /// is cached under the root of `hashes`, up to the last [resume point](crate#terms) if layers keep tails, and fresh
    /// blocks for the other tokens. Where layers keep tails, the sequence shares nothing if it would not fit into
    /// memory beside what it found. The last token is never taken from the cache. `hashes` must be the hashes of
    /// `token_ids`. The watermark does not apply here.
    ///
    /// # Errors
    /// The manager is unchanged on failure:
    /// - [`BlockError::AlreadyHeld`] if `id` was allocated before and not freed;
    /// - [`BlockError::Never`] if the sequence would not fit even into an empty pool of [`KvConfig::num_blocks`] units;
    /// - [`BlockError::OutOfBlocks`] if too few units are available now.
    pub fn allocate(
        &mut self,
        id: SequenceId,
        token_ids: &[TokenId],
        hashes: &PrefixHashes,
    ) -> Result<Allocation, BlockError> {
        if self.tables.get(id).is_some() {
            return Err(BlockError::AlreadyHeld(id));
        }
        let (units, limit) = (self.num_blocks_alone(token_ids.len()), self.config.num_blocks);
        if units > limit {
            self.counters.allocation_failures += 1;
            return Err(BlockError::Never { need: units, limit });
        }
        let need = self.num_required_blocks(token_ids.len(), 0);
        let mut blocks = Vec::with_capacity(need);
        let mut revived = 0;
        let mut hits = self.cache.walk(token_ids, hashes, |block, cached| {
            blocks.push(block);
            revived += usize::from(cached);
        });
        let branch = hits;
        let mut room = Need { fresh: need - hits, revived, tail_bytes: 0 };
        if self.cache.tails().is_some() {
            Found { hits, need: room } = self.resume(&mut blocks, token_ids.len());
        }
        self.expect_room(room)?;

        let block_size = self.config.block_size;
        self.cache.redeem();
        self.cache.tick();
        // The hits are held first, because a block that is held cannot be evicted for the fresh ones.
        blocks.iter().for_each(|&block| self.cache.share(block));
        let tails = self.begin_tails(id, hashes.root(), &blocks, token_ids.len(), branch);
        let mut rest = &token_ids[hits * block_size..];
        let taker = Taker::new(id, hashes.root());
        for index in hits..need {
            let block;
            (block, rest) = self.cache.take_with(taker, rest, hashes.get(index));
            blocks.push(block);
        }
        self.counters.allocations += 1;
        let (publishing, num_cached_tokens) = (hashes.root_hash().is_some(), hits * block_size);
        if publishing {
            self.counters.prefix_query_tokens += token_ids.len() as u64;
            self.counters.prefix_hit_tokens += num_cached_tokens as u64;
        }
        let table = Table::new(hashes.root().clone(), publishing, blocks, token_ids.len(), hits, block_size);
        self.tables.insert(id, table.with_tails(tails));
        Ok(Allocation { num_cached_tokens, num_fresh_blocks: need - hits })
    }

    /// Returns the trunk blocks that [`allocate`](Self::allocate) would give these tokens now, as far as that is known:
    /// first the blocks that a look-up finds, then free blocks. `allocate` gives these free blocks to the next
    /// sequence; until then, others get them only when no other block is free. Where layers keep tails, however, tail
    /// blocks may take the memory of these free blocks. If the look-up finds nothing, the call evicts cached blocks so
    /// that enough blocks are free.
    pub fn foresee(&mut self, token_ids: &[TokenId], hashes: &PrefixHashes) -> Foreseen {
        let need = self.num_required_blocks(token_ids.len(), 0);
        let mut blocks = Vec::with_capacity(need);
        self.cache.walk(token_ids, hashes, |block, _| blocks.push(block));
        if self.cache.tails().is_some() {
            self.resume(&mut blocks, token_ids.len());
        }
        let found = blocks.len();
        // The blocks that were found could be evicted, so nothing is evicted if any were found.
        blocks.extend(self.cache.promise(need - found, found == 0));
        Foreseen { blocks, found }
    }

    /// Returns the trunk blocks of `id` in the order of its tokens, without those that lie [below
    /// memory](Self::blocks_below). Blocks that [`Self::ensure_num_empty_slots`] has reserved come last. The table is
    /// valid until the next call that changes blocks. Returns `None` unless `id` is resident, because KV in flight must
    /// not be read.
    pub fn block_table(&self, id: SequenceId) -> Option<&[BlockId]> {
        let table = self.tables.get(id)?;
        (table.state() == SequenceState::Resident).then(|| table.blocks())
    }

    /// Returns how many tokens of `id` the manager knows: those that have a place in blocks, in slots or below memory,
    /// whether or not they are computed, and, while `id` is swapped out, those not computed, whose places it gets
    /// again. Returns `None` if `id` is unknown.
    pub fn num_tokens(&self, id: SequenceId) -> Option<usize> {
        self.tables.get(id).map(Table::num_tokens)
    }

    /// Returns how many trunk blocks a sequence of `num_tokens` tokens takes with `num_lookahead_slots` places behind
    /// the last one, whether or not it shares some of these blocks.
    pub fn num_required_blocks(&self, num_tokens: usize, num_lookahead_slots: usize) -> usize {
        blocks_for(num_tokens.saturating_add(num_lookahead_slots), self.config.block_size)
    }

    /// Returns the tokens of `token_ids` behind those that [`num_tokens`](Self::num_tokens) counts. `token_ids` must be
    /// all tokens of `id`. Returns all of them if `id` is unknown.
    pub fn unseen_token_ids<'t>(&self, id: SequenceId, token_ids: &'t [TokenId]) -> &'t [TokenId] {
        &token_ids[self.num_tokens(id).unwrap_or(0).min(token_ids.len())..]
    }

    /// Returns how many trunk blocks a step writes to if it fills `count` places behind the last token of `id`, and
    /// `num_lookahead_slots` more: the partial last block, if there is one, and new ones. An unknown sequence counts as
    /// one without tokens.
    pub fn num_blocks_touched_by_append(&self, id: SequenceId, count: usize, num_lookahead_slots: usize) -> usize {
        let tokens = self.num_tokens(id).unwrap_or(0);
        let slots = count.saturating_add(num_lookahead_slots);
        if slots == 0 { 0 } else { self.num_required_blocks(tokens, slots) - tokens / self.config.block_size }
    }

    /// Returns whether [`append`](Self::append) of `count` tokens would succeed now, including the copy of a partial
    /// last block that others share. Returns false if `id` is unknown or not resident.
    pub fn can_append(&self, id: SequenceId, count: usize) -> bool {
        let Some(table) = self.tables.get(id) else { return false };
        table.state() == SequenceState::Resident && {
            let (blocks, need) = growth(table, count, &self.cache, self.config.block_size);
            tails::units_alone(&self.cache, blocks, table.below()) <= self.config.num_blocks && self.cache.fits(need, 0)
        }
    }

    /// Adds `token_ids`, which later steps will compute, behind the tokens of `id`, and gives them places. The manager
    /// takes a new trunk block only when the tokens cross a block boundary, or to replace a partial last block that
    /// others share. [`take_copies`](Self::take_copies) then returns the copy to the new block. The manager takes tail
    /// blocks as the next pass needs them.
    ///
    /// # Errors
    /// The manager is unchanged on failure:
    /// - [`BlockError::NotHeld`] if `id` is unknown, and [`BlockError::WrongState`] if it is not resident;
    /// - [`BlockError::Never`] if the sequence would not fit even into an empty pool of [`KvConfig::num_blocks`] units;
    /// - [`BlockError::OutOfBlocks`] if too few units are available now.
    pub fn append(&mut self, id: SequenceId, token_ids: &[TokenId]) -> Result<(), BlockError> {
        let Self { config, cache, tables, transfers, counters } = self;
        let table = tables.resident(id)?;
        grow(table, token_ids.len(), id, config, cache, transfers, counters)?;
        let mut rest = token_ids;
        while !rest.is_empty() {
            let (block, at) = position(table.num_tokens(), config.block_size);
            let after = cache.write(table.block(block), at, rest);
            table.add_tokens(rest.len() - after.len());
            rest = after;
        }
        Ok(())
    }

    /// Reserves blocks so that a step can write `count` places behind the last token of `id` and discard them
    /// afterwards, as speculation does. A later [`append`](Self::append) uses the reserved blocks.
    ///
    /// # Errors
    /// Fails with the error that [`append`](Self::append) of `count` tokens would return.
    pub fn ensure_num_empty_slots(&mut self, id: SequenceId, count: usize) -> Result<(), BlockError> {
        let Self { config, cache, tables, transfers, counters } = self;
        grow(tables.resident(id)?, count, id, config, cache, transfers, counters)
    }

    /// Reports that the step that computed the first `num_computed` tokens of `id` has ended. If the sequence shares
    /// blocks, full blocks among these tokens become findable as far as the index has room; a later commit tries the
    /// others again. No block is findable earlier. The call ignores an unknown `id`, since steps may outlive sequences.
    /// The call ignores a sequence that is not resident, too, because a swap carries what had been committed when it
    /// began.
    ///
    /// If another sequence has published an equal block in the meantime, the table of `id` takes that block instead, so
    /// that the parent of a published block is always published. The caller must therefore read
    /// [`block_table`](Self::block_table) again before the next step. Both blocks hold the same bytes, because results
    /// do not depend on the batch.
    pub fn commit(&mut self, id: SequenceId, num_computed: usize) {
        let Self { config, cache, tables, counters, .. } = self;
        let Ok(table) = tables.resident(id) else { return };
        let before = (table.num_computed(), table.num_published());
        table.computed(num_computed);
        let (full, _) = position(table.num_computed(), config.block_size);
        if !table.is_publishing() || table.num_published() >= full {
            return self.pass_by(id, before);
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
        self.pass_by(id, before);
    }

    /// Starts sequence `child` with all tokens of `parent`. Both sequences hold all of these blocks from now on,
    /// including the partial last one. The first of the two to append to the partial block gets a copy of its own; the
    /// last holder writes in place. Blocks that `parent` has reserved ahead are not shared.
    ///
    /// # Errors
    /// The manager is unchanged on failure:
    /// - [`BlockError::AlreadyHeld`] if `child` was allocated before and not freed;
    /// - [`BlockError::NotHeld`] if `parent` is unknown, and [`BlockError::WrongState`] if it is not resident;
    /// - [`BlockError::BelowMemory`] if part of the KV of `parent` lies below memory;
    /// - [`BlockError::Uncomputed`] if `parent` has tokens that were not computed and committed.
    pub fn fork(&mut self, parent: SequenceId, child: SequenceId) -> Result<(), BlockError> {
        if self.tables.get(child).is_some() {
            return Err(BlockError::AlreadyHeld(child));
        }
        let table = self.tables.resident(parent)?;
        if table.below() > 0 {
            return Err(BlockError::BelowMemory(parent));
        }
        let (computed, tokens) = (table.num_computed(), table.num_tokens());
        if computed < tokens {
            return Err(BlockError::Uncomputed { id: parent, computed, tokens });
        }
        let forked = table.fork(self.config.block_size);
        forked.blocks().iter().for_each(|&block| self.cache.hold(block));
        if let Some(tails) = self.cache.tails_mut() {
            tails.hold_all(&forked.tails().groups);
        }
        self.tables.insert(child, forked);
        self.counters.forks += 1;
        Ok(())
    }

    /// Undoes [`foresee`](Self::foresee): the manager no longer keeps free blocks for the next sequence.
    pub fn foresee_nothing(&mut self) {
        self.cache.redeem();
    }

    /// Releases all blocks and slots of `id`, the last block first, so that the end of a chain is reused before its
    /// beginning. Published blocks stay findable until they are evicted. Where layers keep tails, contents that lead to
    /// no [resume point](crate#terms) are forgotten at once if nothing else holds them. If a swap or a fetch of `id` is
    /// in flight, its blocks and slots become free when the transfer has ended. Returns false and does nothing if `id`
    /// is unknown, so a late completion is harmless.
    pub fn free(&mut self, id: SequenceId) -> bool {
        let Some(table) = self.tables.remove(id) else { return false };
        let published = table.num_published();
        let (blocks, slots, tails) = table.into_places();
        if let Some(chain) = blocks.get(..published).filter(|_| !tails.groups.is_empty()) {
            self.cache.keep_last_point(chain);
        }
        if let Some(pools) = self.cache.tails_mut() {
            pools.release_all(&tails.groups);
        }
        tails.groups.iter().flat_map(TailTable::slots).for_each(|&slot| self.cache.release_slot(slot));
        // Each block is released by itself: a failed swap frees several sequences, and only a block's last holder frees
        // it.
        blocks.into_iter().rev().for_each(|block| self.cache.release(block));
        slots.into_iter().for_each(|slot| self.cache.release_slot(slot));
        self.cache.settle();
        true
    }

    /// Moves the pending copies into `copies`, whose old content is dropped and whose allocation is reused.
    ///
    /// The caller carries out the copies in this order, and one after the other wherever that makes a difference: a
    /// block may be first a source and later a destination, or the reverse. The caller does so before the next pass
    /// reads or writes KV, before the transfers of any [`crate::Swap`] begin, and before it gives back the memory of
    /// blocks that have left. Blocks that came must have memory before the copies are made.
    /// [`take_resize`](Self::take_resize) reports blocks that came and blocks that left.
    pub fn take_copies(&mut self, copies: &mut Vec<BlockCopy>) {
        self.transfers.take_copies(copies);
    }

    /// Changes how many units may be used, to `blocks`, which is limited to the range from 1 to
    /// [`KvConfig::num_blocks`]. [`AllocStatus::Never`] goes by `num_blocks`, not by this number. Growing adds free
    /// blocks, unless layers keep tails. Shrinking withdraws free blocks, then cached blocks that the eviction policy
    /// picks, but never used ones: the manager withdraws the missing ones as sequences release their blocks.
    ///
    /// Where layers keep tails, growing only allows more memory, which blocks get when they are taken, and shrinking
    /// ends [resume points](crate#terms) too: passing ones before any cached block is evicted.
    pub fn set_usable(&mut self, blocks: usize) {
        self.cache.set_usable(blocks.clamp(1, self.config.num_blocks));
    }

    /// Returns how many units sequences can get: the [usable](Self::usable) ones, less those of blocks that sequences
    /// or transfers hold.
    pub fn available(&self) -> usize {
        self.cache.available()
    }

    /// Returns how many units may be used. More than these are present only while sequences still use them.
    pub fn usable(&self) -> usize {
        self.cache.tails().map_or(self.cache.blocks().usable(), |tails| tails.usable)
    }

    /// Returns how many trunk blocks that have memory [`compact`](Self::compact) can bring down: as many as there are
    /// withdrawn blocks whose ids are below the number of trunk blocks that should have memory. This number is
    /// [`usable`](Self::usable) or, where layers keep tails, [`present`](Self::present). At least as many present
    /// blocks have ids from that number on; there are more only while sequences hold more blocks than may be used. The
    /// call takes constant time.
    pub fn blocks_above(&self) -> usize {
        self.cache.blocks().num_holes()
    }

    /// Returns how many trunk blocks have memory, whether they are free, cached or used.
    pub fn present(&self) -> usize {
        self.cache.blocks().present()
    }

    /// Returns the blocks of the trunk and of all tail groups that have come (got memory) and left (lost it) since the
    /// last call. The caller calls it right after [`set_usable`](Self::set_usable) and [`compact`](Self::compact), and
    /// otherwise now and then. Where no layer keeps tails, only these two make blocks come. A block that comes must get
    /// memory before anything uses it. A new manager has all trunk blocks present and no tail block, and reports none
    /// of them. Pending copies may concern blocks of both lists, as [`take_copies`](Self::take_copies) says. The call
    /// takes time in proportion to the pool, but none if there is nothing to report.
    pub fn take_resize(&mut self) -> Resize {
        self.cache.take_resize()
    }

    /// Takes up to `max_steps` steps towards a compact pool, and returns how many it took. A pool is compact when
    /// blocks with content have the lowest ids, then come free blocks, then withdrawn ones. Returns 0 if the pool is
    /// compact, or if no step is possible for now: blocks of transfers in flight stay in place, and nothing moves while
    /// sequences hold all blocks.
    ///
    /// A step moves a content into a free block, or exchanges the memory of a free block and a withdrawn one. Each move
    /// is a copy that the caller must [take](Self::take_copies) and carry out before the next pass, like any other
    /// copy. Tables and the eviction policy know the new places at once, and the contents do not change. The
    /// destination of a move had memory before the call, so a move needs no extra memory, provided that the caller
    /// gives back the memory of blocks that have [left](Self::take_resize) before it uses blocks that came. If the pool
    /// has shrunk, no block is free to start with and no layer keeps tails, the call evicts [leaves](crate#terms), in
    /// the order of the eviction policy: one for every two steps, and none while there are free blocks. No other cached
    /// content is lost.
    ///
    /// A call that moves anything goes through the whole pool more than once, and through all tables, however few steps
    /// it takes. [`blocks_above`](Self::blocks_above) says in constant time whether a call is due.
    pub fn compact(&mut self, max_steps: usize) -> usize {
        self.cache.make_room_to_move(max_steps.div_ceil(2));
        if self.cache.blocks().num_free() == 0 {
            return self.compact_tails(max_steps);
        }
        let moves = self.cache.relocate(max_steps, &self.transfers.pinned());
        self.tables.rename(&moves);
        moves.iter().for_each(|&(source, destination)| self.transfers.copy(source, destination));
        self.counters.moves += moves.len() as u64;
        let taken = moves.len() + self.cache.exchange(max_steps - moves.len());
        taken + self.compact_tails(max_steps - taken)
    }

    /// Returns how far the trunk blocks are from [compact](Self::compact). The call takes time in proportion to the
    /// pool.
    pub fn fragmentation(&self) -> Fragmentation {
        self.cache.blocks().fragmentation()
    }

    /// Lists the sequences that the manager knows, which have begun and were not freed, in the order of their ids.
    pub fn sequences(&self) -> impl Iterator<Item = SequenceId> {
        let mut ids: Vec<_> = self.tables.iter().map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids.into_iter()
    }

    /// Returns figures for monitoring, in constant time.
    pub fn stats(&self) -> KvStats {
        let (blocks, slots) = (self.cache.blocks(), self.cache.slots());
        let blocks_used = blocks.present() - self.cache.unused();
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

    /// Drops all cached contents, for instance because the weights have changed. Sequences keep their blocks, but no
    /// look-up can find these blocks any more, nor blocks that these sequences compute later.
    pub fn reset_cache(&mut self) {
        self.cache.reset();
        self.tables.iter_mut().for_each(Table::stop_publishing);
    }

    /// Checks that enough memory is available for `need`.
    ///
    /// # Errors
    /// Fails with [`BlockError::OutOfBlocks`] if not, and counts the failure.
    fn expect_room(&mut self, need: Need) -> Result<(), BlockError> {
        if self.cache.fits(need, 0) {
            return Ok(());
        }
        self.counters.allocation_failures += 1;
        // What is cached and would be in use again is neither lacking nor available for anything else.
        let revived = self.cache.cost(Need { revived: need.revived, ..Need::default() });
        let (need, available) = (self.cache.cost(need), self.cache.available());
        Err(BlockError::OutOfBlocks { need: need - revived, available: available.saturating_sub(revived) })
    }
}

/// Ensures that `table` has `count` places behind its last token in the trunk, and as many of them in windows as their
/// quota allows, and that no other table shares them.
///
/// # Errors
/// Fails with [`BlockError::Never`] or [`BlockError::OutOfBlocks`], in the way of [`BlockManager::append`].
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
    let (blocks, need) = growth(table, count, cache, block_size);
    if need == Need::default() && cache.tails().is_none() {
        return Ok(());
    }
    let units = tails::units_alone(cache, blocks, table.below());
    if units > limit {
        counters.allocation_failures += 1;
        return Err(BlockError::Never { need: units, limit });
    }
    if !cache.fits(need, 0) {
        counters.allocation_failures += 1;
        return Err(BlockError::OutOfBlocks { need: cache.cost(need), available: cache.available() });
    }
    let taker = Taker::new(id, table.root());
    if let Some(source) = table.partial(block_size).filter(|&block| count > 0 && cache.is_shared(block)) {
        let (index, filled) = position(table.num_tokens(), block_size);
        let destination = cache.unshare(source, filled, taker);
        table.replace(index, destination);
        transfers.copy(source, destination);
        counters.copy_on_writes += 1;
    }
    while table.blocks().len() < blocks {
        table.push(cache.take(taker));
    }
    tails::grow(table, count, taker, cache, transfers, block_size);
    Ok(())
}

/// Returns the number of trunk blocks that `table` has in memory with `count` more places, and what must be taken now.
fn growth(table: &Table, count: usize, cache: &Cache, block_size: usize) -> (usize, Need) {
    // On overflow, the result is larger than any pool.
    let need = blocks_for(table.num_tokens().saturating_add(count), block_size) - table.below();
    let partial = if count > 0 { table.partial(block_size) } else { None };
    let copies = usize::from(partial.is_some_and(|block| cache.is_shared(block)));
    let fresh = need.saturating_sub(table.blocks().len()) + copies;
    (need, Need { fresh, revived: 0, tail_bytes: tails::growth(table, count, cache, block_size) })
}

//! Who holds which blocks (K1 to K6, K13, K15).

use crate::{
    AllocError, BlockCopy, ChainHasher, ChainRoot, ConfigError, EvictionPolicy, KvConfig, KvStats, PrefixHashes,
    SequenceId, SequenceState, TokenId,
    block_pool::{BlockPool, Parent},
    block_table::{BlockTable, place},
    sequence::{Sequence, SequenceMap},
    swap::Swaps,
};

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
/// The life of a sequence: [`allocate`](Self::allocate), then per step [`append`](Self::append) the tokens that the step
/// will compute, carry out [`take_copies`](Self::take_copies), compute, and [`commit`](Self::commit) when the step has
/// retired; at the end, or when preempted, [`free`](Self::free). In between it may [`fork`](Self::fork), and leave for
/// the swap pool and come back ([`swap_out`](Self::swap_out), [`swap_in`](Self::swap_in)).
#[derive(Debug)]
pub struct BlockManager {
    pub(crate) config: KvConfig,
    pub(crate) pool: BlockPool,
    pub(crate) sequences: SequenceMap,
    /// How many of them are [`SequenceState::Swapped`].
    pub(crate) num_swapped: usize,
    pub(crate) swaps: Swaps,
    /// What is to be copied before the next pass, in this order.
    pub(crate) copies: Vec<BlockCopy>,
    // Only the counters are kept here; `stats` fills in the rest.
    pub(crate) counters: KvStats,
}

impl BlockManager {
    /// A manager whose blocks are all free, with [`KvConfig::eviction`].
    ///
    /// # Errors
    /// When `config` cannot work.
    pub fn new(config: KvConfig) -> Result<Self, ConfigError> {
        // Checked before anything of that size is built.
        config.check()?;
        let (hasher, policy) = (ChainHasher::new(config.seed), config.eviction.build(config.num_blocks));
        Self::with_parts(config, hasher, policy)
    }

    /// As [`new`](Self::new), with another eviction policy (K7) for block ids below `config.num_blocks`, and a given
    /// hasher, for tests that force collisions.
    ///
    /// # Errors
    /// When `config` cannot work.
    pub fn with_parts(
        config: KvConfig,
        hasher: ChainHasher,
        policy: Box<dyn EvictionPolicy>,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            pool: BlockPool::new(&config, hasher, policy),
            sequences: SequenceMap::default(),
            num_swapped: 0,
            swaps: Swaps::new(config.num_swap_blocks, config.block_size),
            copies: Vec::new(),
            counters: KvStats::default(),
            config,
        })
    }

    /// A manager of the same configuration whose blocks are all free, as many as this one may use; its counters start
    /// anew, and [`take_resize`](Self::take_resize) reports all others to have left. Swaps under way must have finished
    /// before: it does not know them.
    pub fn emptied(&self) -> Self {
        let (hasher, policy) = (self.pool.hasher.clone(), self.config.eviction.build(self.config.num_blocks));
        let mut manager = Self::with_parts(self.config.clone(), hasher, policy).expect("the same configuration worked");
        manager.set_usable(self.pool.usable);
        manager
    }

    /// Whether sequences share the KV of equal prefixes (K13).
    pub fn prefix_caching(&self) -> bool {
        self.config.prefix_caching
    }

    /// The hashes of `token_ids` under `root`, to be [extended](PrefixHashes::extend) as the sequence grows. They stay valid
    /// in an [emptied](Self::emptied) manager. Nothing is hashed where nothing could be found.
    pub fn hash_prefix(&self, root: &ChainRoot, token_ids: &[TokenId]) -> PrefixHashes {
        let findable = self.config.prefix_caching && root.is_shared();
        let mut hashes = PrefixHashes::new(root.clone(), self.pool.hasher.clone(), self.config.block_size, findable);
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

    /// Gives sequence `id` blocks for all `token_ids`: published ones for the longest prefix that is cached under
    /// the root of `hashes`, fresh ones from the first miss on (K3). `hashes` are those of `token_ids`. The watermark does
    /// not apply here.
    ///
    /// # Errors
    /// When the blocks are not there, or `id` holds some. Nothing has changed then.
    pub fn allocate(
        &mut self,
        id: SequenceId,
        token_ids: &[TokenId],
        hashes: &PrefixHashes,
    ) -> Result<Allocation, AllocError> {
        if self.sequences.contains_key(&id) {
            return Err(AllocError::AlreadyHeld(id));
        }
        let (need, limit) = (self.num_required_blocks(token_ids.len(), 0), self.config.num_blocks);
        if need > limit {
            self.counters.allocation_failures += 1;
            return Err(AllocError::Never { need, limit });
        }
        let mut blocks = Vec::with_capacity(need);
        let mut revived = 0;
        let hits = self.walk(token_ids, hashes, |block| {
            blocks.push(block);
            revived += usize::from(self.pool.is_cached(block));
        });
        let num_fresh_blocks = need - hits;
        self.expect_available(num_fresh_blocks, self.pool.available() - revived)?;

        self.pool.losses.tick();
        // Hits first: what is held cannot be evicted for the fresh ones.
        blocks.iter().for_each(|&block| self.pool.share(block));
        let num_cached_tokens = hits * self.config.block_size;
        let mut rest = &token_ids[num_cached_tokens..];
        let mut num_hashed = hits;
        for index in hits..need {
            let block = self.pool.take(id);
            rest = self.pool.write(block, 0, rest);
            // Hashes may reach further than these tokens.
            if let Some(hash) = hashes.get(index).filter(|_| index < token_ids.len() / self.config.block_size) {
                self.pool.set_hash(block, hash);
                num_hashed += 1;
            }
            blocks.push(block);
        }
        self.counters.allocations += 1;
        let publishing = hashes.root_hash().is_some();
        if publishing {
            self.counters.prefix_query_tokens += token_ids.len() as u64;
            self.counters.prefix_hit_tokens += num_cached_tokens as u64;
        }
        let sequence = Sequence {
            state: SequenceState::Resident,
            table: BlockTable { blocks, num_tokens: token_ids.len() },
            slots: Vec::new(),
            uncomputed: Vec::new(),
            num_computed: num_cached_tokens,
            num_published: hits,
            num_hashed,
            publishing,
            root: hashes.root().clone(),
        };
        self.sequences.insert(id, sequence);
        Ok(Allocation { num_cached_tokens, num_fresh_blocks })
    }

    /// The step that computed the first `num_computed` tokens of `id` has retired: full blocks among them become
    /// findable, and no block does before. An unknown `id` is ignored, since steps may outlive sequences, and so is one
    /// that is not resident: a swap carries what had been committed when it began.
    ///
    /// Where another sequence has published an equal block meanwhile, the table takes that one instead, so that the
    /// parent of a published block is always published; read [`block_table`](Self::block_table) again before the next
    /// step. Both hold the same bytes, as results do not depend on the batch.
    pub fn commit(&mut self, id: SequenceId, num_computed: usize) {
        let Self { pool, sequences, counters, .. } = self;
        let Some(sequence) = sequences.get_mut(&id).filter(|sequence| sequence.state == SequenceState::Resident) else {
            return;
        };
        sequence.num_computed = sequence.num_computed.max(num_computed.min(sequence.table.num_tokens));
        let (full, _) = place(sequence.num_computed, pool.block_size);
        if sequence.publishing && sequence.num_published < full {
            let root = pool.roots.hold(&sequence.root, &pool.hasher);
            publish(sequence, full, Parent::root(root), pool, counters);
            pool.roots.release(root);
        }
    }

    /// Lets go of all blocks of `id`, the last first (K4): the tail of a chain is reused before its head. Published
    /// blocks stay findable until they are evicted. In the midst of a swap, its blocks and slots come free when that has
    /// finished. False, with nothing done, when `id` holds none: a late completion is harmless.
    pub fn free(&mut self, id: SequenceId) -> bool {
        let Some(sequence) = self.sequences.remove(&id) else { return false };
        // One by one, each decremented and tested: a table may hold a block that others let go of just now.
        sequence.table.blocks.iter().rev().for_each(|&block| self.pool.release(block));
        sequence.slots.iter().for_each(|&slot| self.swaps.pool.release(slot));
        self.num_swapped -= usize::from(sequence.state == SequenceState::Swapped);
        true
    }

    /// Sequences that hold blocks or slots, in the order of their ids.
    pub fn sequences(&self) -> impl Iterator<Item = SequenceId> {
        let mut ids: Vec<_> = self.sequences.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter()
    }

    /// Figures for monitoring (K9), in constant time.
    pub fn stats(&self) -> KvStats {
        let blocks_used = self.pool.present() - self.pool.available();
        let slots_allocated = blocks_used * self.config.block_size;
        KvStats {
            blocks_total: self.config.num_blocks,
            blocks_used,
            blocks_cached: self.pool.cached.len(),
            blocks_free: self.pool.free.len(),
            blocks_withdrawn: self.pool.num_withdrawn,
            slots_allocated,
            slots_empty: slots_allocated - self.pool.slots_filled,
            sequences: self.sequences.len(),
            sequences_swapped: self.num_swapped,
            swap_slots_total: self.swaps.pool.len(),
            swap_slots_used: self.swaps.pool.used(),
            evictions: self.pool.evictions,
            ..self.counters
        }
    }

    /// Drops all cached content, for instance because the weights have changed. Sequences keep their blocks, but what
    /// they hold can no longer be found, now or later.
    pub fn reset_cache(&mut self) {
        self.pool.reset();
        for sequence in self.sequences.values_mut() {
            sequence.num_published = 0;
            sequence.publishing = false;
        }
    }

    pub(crate) fn expect_available(&mut self, need: usize, available: usize) -> Result<(), AllocError> {
        if need <= available {
            return Ok(());
        }
        self.counters.allocation_failures += 1;
        Err(AllocError::OutOfBlocks { need, available })
    }
}

/// Publishes the blocks of `sequence` up to `full`, or takes those that others have published with the same content.
fn publish(sequence: &mut Sequence, full: usize, root: Parent, pool: &mut BlockPool, counters: &mut KvStats) {
    let blocks = &mut sequence.table.blocks;
    while sequence.num_published < full {
        let block = blocks[sequence.num_published];
        let parent = sequence.num_published.checked_sub(1).map_or(root, |last| Parent::block(blocks[last]));
        let hash = match sequence.num_published < sequence.num_hashed {
            true => pool.hash(block),
            false => pool.hasher.block(pool.hash_of(parent), pool.tokens(block)),
        };
        match pool.find(hash, parent, pool.tokens(block)) {
            // A sequence that was forked from the same one has published the block that both hold.
            Some(canonical) if canonical == block => {}
            // A sequence forked from this one would hold what comes behind it without holding its parent.
            Some(_) if pool.is_shared(block) => return,
            Some(canonical) => {
                pool.share(canonical);
                pool.release(block);
                blocks[sequence.num_published] = canonical;
                counters.blocks_merged += 1;
            }
            // Its descendants would have no findable parent. The next commit tries again.
            None if !pool.publish(block, hash, parent) => return,
            None => {}
        }
        sequence.num_published += 1;
    }
}

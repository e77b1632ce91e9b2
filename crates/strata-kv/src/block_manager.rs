//! Who holds which blocks (K1 to K6, K13, K15).

use std::collections::BTreeMap;

use thiserror::Error;

use crate::{
    BlockId, ChainHasher, ChainRoot, ConfigError, EvictionPolicy, KvConfig, KvStats, SequenceId, TokenId,
    block_pool::{BlockPool, Parent},
    sequence::Sequence,
};

/// Whether a sequence can be given its blocks (K12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocStatus {
    /// Now.
    Ok,
    /// Not now; when others have let go of blocks.
    Later,
    /// Not even in an empty pool that has all its blocks.
    Never {
        /// Blocks needed.
        need: usize,
        /// Blocks of the pool, at the most.
        limit: usize,
    },
}

/// What [`BlockManager::allocate`] found and took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// Leading tokens whose KV is there already: a multiple of the block size, and fewer than all tokens.
    pub num_cached_tokens: usize,
    /// Blocks that are the sequence's own.
    pub num_fresh_blocks: usize,
}

/// Why blocks were not given. Nothing has changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AllocError {
    /// [`AllocStatus::Never`].
    #[error("the sequence needs {need} KV blocks but the pool has {limit}; shorten it or give KV more memory")]
    Never {
        /// Blocks needed in all.
        need: usize,
        /// Blocks of the pool, at the most.
        limit: usize,
    },
    /// Others hold the blocks; wait, or preempt one of them.
    #[error("{need} more KV blocks are needed but {available} are available; free a sequence first")]
    OutOfBlocks {
        /// Fresh blocks needed.
        need: usize,
        /// Blocks that could be given.
        available: usize,
    },
    /// Allocated twice.
    #[error("{0} holds KV blocks already; free it first")]
    AlreadyHeld(SequenceId),
    /// Never allocated, or freed.
    #[error("{0} holds no KV blocks; allocate it first")]
    NotHeld(SequenceId),
}

/// Gives blocks to sequences, and finds those that others have computed.
///
/// The life of a sequence: [`allocate`](Self::allocate), then per step [`append`](Self::append) the tokens that the step
/// will compute, compute, and [`commit`](Self::commit) when the step has retired; at the end, or when preempted,
/// [`free`](Self::free).
#[derive(Debug)]
pub struct BlockManager {
    pub(crate) config: KvConfig,
    pub(crate) pool: BlockPool,
    // Ordered, so that equal inputs give equal runs.
    pub(crate) sequences: BTreeMap<SequenceId, Sequence>,
    // Only the counters are kept here; `stats` fills in the rest.
    counters: KvStats,
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
        let pool = BlockPool::new(&config, hasher, policy);
        Ok(Self { config, pool, sequences: BTreeMap::new(), counters: KvStats::default() })
    }

    /// A manager of the same configuration whose blocks are all free, as many as this one may use; its counters start
    /// anew, and [`take_resize`](Self::take_resize) reports all others to have left.
    pub fn emptied(&self) -> Self {
        let (hasher, policy) = (self.pool.hasher.clone(), self.config.eviction.build(self.config.num_blocks));
        let pool = BlockPool::new(&self.config, hasher, policy);
        let mut manager =
            Self { config: self.config.clone(), pool, sequences: BTreeMap::new(), counters: KvStats::default() };
        manager.set_usable(self.pool.usable);
        manager
    }

    /// Whether sequences share the KV of equal prefixes (K13).
    pub fn prefix_caching(&self) -> bool {
        self.config.prefix_caching
    }

    /// Tokens per block.
    pub fn block_size(&self) -> usize {
        self.config.block_size
    }

    /// Tokens that all blocks together hold, at the most.
    pub fn capacity_tokens(&self) -> usize {
        self.config.num_blocks * self.config.block_size
    }

    /// Whether a sequence of `token_ids` can be admitted. While other sequences are held, admission leaves
    /// [`KvConfig::watermark`] of the blocks available; an idle manager admits whatever fits it.
    pub fn can_allocate(&self, token_ids: &[TokenId], root: &ChainRoot) -> AllocStatus {
        let (need, limit) = (self.blocks_for(token_ids.len()), self.config.num_blocks);
        if need > limit {
            return AllocStatus::Never { need, limit };
        }
        let (mut hits, mut revived) = (0, 0);
        self.walk(token_ids, root, |block| {
            hits += 1;
            revived += usize::from(self.pool.is_cached(block));
        });
        // A cached block that is hit is no longer there to be evicted.
        match need - hits + self.reserve() <= self.pool.available() - revived {
            true => AllocStatus::Ok,
            false => AllocStatus::Later,
        }
    }

    /// What a sequence of `token_ids` would take that others do not use now: blocks, fresh or revived, and tokens that are
    /// not cached.
    pub fn demand(&self, token_ids: &[TokenId], root: &ChainRoot) -> (usize, usize) {
        let mut shared = 0;
        let hits = self.walk(token_ids, root, |block| shared += usize::from(!self.pool.is_cached(block)));
        (self.blocks_for(token_ids.len()) - shared, token_ids.len() - hits * self.config.block_size)
    }

    /// Blocks that admission leaves available while sequences are held: [`KvConfig::watermark`] of those that may be used.
    pub fn reserve(&self) -> usize {
        if self.sequences.is_empty() { 0 } else { self.config.watermark_blocks(self.pool.usable) }
    }

    /// Tokens that [`allocate`](Self::allocate) would find cached now: a multiple of the block size, and fewer than all,
    /// since the last token is always computed.
    pub fn cached_prefix(&self, token_ids: &[TokenId], root: &ChainRoot) -> usize {
        self.walk(token_ids, root, |_| ()) * self.config.block_size
    }

    /// Gives sequence `id` blocks for all `token_ids`: published ones for the longest prefix that is cached under
    /// `root`, fresh ones from the first miss on (K3). The watermark does not apply here.
    ///
    /// # Errors
    /// When the blocks are not there, or `id` holds some. Nothing has changed then.
    pub fn allocate(
        &mut self,
        id: SequenceId,
        token_ids: &[TokenId],
        root: &ChainRoot,
    ) -> Result<Allocation, AllocError> {
        if self.sequences.contains_key(&id) {
            return Err(AllocError::AlreadyHeld(id));
        }
        let (need, limit) = (self.blocks_for(token_ids.len()), self.config.num_blocks);
        if need > limit {
            self.counters.allocation_failures += 1;
            return Err(AllocError::Never { need, limit });
        }
        let mut blocks = Vec::with_capacity(need);
        let mut revived = 0;
        let hits = self.walk(token_ids, root, |block| {
            blocks.push(block);
            revived += usize::from(self.pool.is_cached(block));
        });
        let num_fresh_blocks = need - hits;
        self.expect_available(num_fresh_blocks, self.pool.available() - revived)?;

        // Hits first: what is held cannot be evicted for the fresh ones.
        blocks.iter().for_each(|&block| self.pool.share(block));
        let num_cached_tokens = hits * self.config.block_size;
        let mut rest = &token_ids[num_cached_tokens..];
        for _ in 0..num_fresh_blocks {
            let block = self.pool.take();
            rest = self.pool.write(block, 0, rest);
            blocks.push(block);
        }
        self.counters.allocations += 1;
        let publishing = self.config.prefix_caching && root.is_shared();
        if publishing {
            self.counters.prefix_query_tokens += token_ids.len() as u64;
            self.counters.prefix_hit_tokens += num_cached_tokens as u64;
        }
        let sequence =
            Sequence { blocks, num_tokens: token_ids.len(), num_published: hits, publishing, root: root.clone() };
        self.sequences.insert(id, sequence);
        Ok(Allocation { num_cached_tokens, num_fresh_blocks })
    }

    /// Whether [`append`](Self::append) of `count` tokens would succeed (K5).
    pub fn can_append(&self, id: SequenceId, count: usize) -> bool {
        let Some(sequence) = self.sequences.get(&id) else { return false };
        // An overflow asks for more than any pool has.
        let Some(num_tokens) = sequence.num_tokens.checked_add(count) else { return false };
        self.blocks_for(num_tokens) - sequence.blocks.len() <= self.pool.available()
    }

    /// Reserves slots for tokens that the next step will compute; new blocks are taken only on crossing a boundary.
    ///
    /// # Errors
    /// When the blocks are not there, or `id` holds none. Nothing has changed then.
    pub fn append(&mut self, id: SequenceId, token_ids: &[TokenId]) -> Result<(), AllocError> {
        let Some(sequence) = self.sequences.get(&id) else { return Err(AllocError::NotHeld(id)) };
        let num_tokens = sequence.num_tokens + token_ids.len();
        let (need, limit) = (self.blocks_for(num_tokens), self.config.num_blocks);
        let num_fresh_blocks = need - sequence.blocks.len();
        if need > limit {
            self.counters.allocation_failures += 1;
            return Err(AllocError::Never { need, limit });
        }
        self.expect_available(num_fresh_blocks, self.pool.available())?;

        let Some(sequence) = self.sequences.get_mut(&id) else { return Err(AllocError::NotHeld(id)) };
        let mut rest = token_ids;
        let slot = sequence.num_tokens % self.config.block_size;
        // A partial block is nobody else's: only full ones are ever shared.
        if let Some(&last) = sequence.blocks.last().filter(|_| slot > 0) {
            rest = self.pool.write(last, slot, rest);
        }
        for _ in 0..num_fresh_blocks {
            let block = self.pool.take();
            rest = self.pool.write(block, 0, rest);
            sequence.blocks.push(block);
        }
        sequence.num_tokens = num_tokens;
        Ok(())
    }

    /// The step that computed the first `num_computed` tokens of `id` has retired: full blocks among them become
    /// findable, and no block does before. An unknown `id` is ignored, since steps may outlive sequences.
    ///
    /// Where another sequence has published an equal block meanwhile, the table takes that one instead, so that the
    /// parent of a published block is always published; read [`block_table`](Self::block_table) again before the next
    /// step. Both hold the same bytes, as results do not depend on the batch.
    pub fn commit(&mut self, id: SequenceId, num_computed: usize) {
        let Self { config, pool, counters, .. } = self;
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let full = num_computed.min(sequence.num_tokens) / config.block_size;
        while sequence.publishing && sequence.num_published < full {
            let block = sequence.blocks[sequence.num_published];
            let (previous, parent) = match sequence.num_published.checked_sub(1).map(|last| sequence.blocks[last]) {
                None => (pool.hasher.root(&sequence.root), Parent::Root(sequence.root.clone())),
                Some(last) => {
                    let link = pool.blocks[last.index()].link.as_ref().expect("blocks before it are published");
                    (link.hash, pool.as_parent(last))
                }
            };
            let hash = pool.hasher.block(previous, pool.tokens(block));
            if let Some(canonical) = pool.find(hash, &parent, pool.tokens(block)) {
                pool.share(canonical);
                pool.release(block);
                sequence.blocks[sequence.num_published] = canonical;
                counters.blocks_merged += 1;
            } else if !pool.publish(block, hash, parent) {
                // Its descendants would have no findable parent. The next commit tries again.
                return;
            }
            sequence.num_published += 1;
        }
    }

    /// Lets go of all blocks of `id`, the last first (K4): the tail of a chain is reused before its head. Published
    /// blocks stay findable until they are evicted. False, with nothing done, when `id` holds none: a late completion
    /// is harmless.
    pub fn free(&mut self, id: SequenceId) -> bool {
        let Some(sequence) = self.sequences.remove(&id) else { return false };
        // One by one, each decremented and tested: a table may hold a block that others let go of just now.
        sequence.blocks.iter().rev().for_each(|&block| self.pool.release(block));
        true
    }

    /// Physical blocks of `id` in logical order; valid until the next `append`, `commit` or `free` of `id`.
    pub fn block_table(&self, id: SequenceId) -> Option<&[BlockId]> {
        self.sequences.get(&id).map(|sequence| sequence.blocks.as_slice())
    }

    /// Tokens of `id` that have a slot, whether computed or not.
    pub fn num_tokens(&self, id: SequenceId) -> Option<usize> {
        self.sequences.get(&id).map(|sequence| sequence.num_tokens)
    }

    /// Sequences that hold blocks, in the order of their ids.
    pub fn sequences(&self) -> impl Iterator<Item = SequenceId> {
        self.sequences.keys().copied()
    }

    /// Figures for monitoring (K9). Walks the sequences, not the blocks.
    pub fn stats(&self) -> KvStats {
        let blocks_used = self.pool.present() - self.pool.available();
        KvStats {
            blocks_total: self.config.num_blocks,
            blocks_used,
            blocks_cached: self.pool.cached.len(),
            blocks_free: self.pool.free.len(),
            blocks_withdrawn: self.pool.withdrawn.len(),
            slots_allocated: blocks_used * self.config.block_size,
            slots_empty: self.sequences.values().map(|sequence| sequence.slots_empty(self.config.block_size)).sum(),
            sequences: self.sequences.len(),
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

    fn walk(&self, token_ids: &[TokenId], root: &ChainRoot, hit: impl FnMut(BlockId)) -> usize {
        if self.config.prefix_caching && root.is_shared() { self.pool.walk(token_ids, root, hit) } else { 0 }
    }

    fn blocks_for(&self, num_tokens: usize) -> usize {
        num_tokens.div_ceil(self.config.block_size)
    }

    fn expect_available(&mut self, need: usize, available: usize) -> Result<(), AllocError> {
        if need <= available {
            return Ok(());
        }
        self.counters.allocation_failures += 1;
        Err(AllocError::OutOfBlocks { need, available })
    }
}

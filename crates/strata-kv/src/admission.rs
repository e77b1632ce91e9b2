//! What it would take to let a sequence in (K3, K12).

use crate::{AllocStatus, BlockId, BlockManager, PrefixHashes, TokenId};

impl BlockManager {
    /// Whether a sequence of `token_ids` can be admitted. While other sequences are held, admission leaves
    /// [`KvConfig::watermark`](crate::KvConfig::watermark) of the blocks available; an idle manager admits whatever fits
    /// it.
    pub fn can_allocate(&self, token_ids: &[TokenId], hashes: &PrefixHashes) -> AllocStatus {
        let (need, limit) = (self.num_required_blocks(token_ids.len(), 0), self.config.num_blocks);
        if need > limit {
            return AllocStatus::Never { need, limit };
        }
        let (mut hits, mut revived) = (0, 0);
        self.walk(token_ids, hashes, |block| {
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
    pub fn demand(&self, token_ids: &[TokenId], hashes: &PrefixHashes) -> (usize, usize) {
        let mut shared = 0;
        let hits = self.walk(token_ids, hashes, |block| shared += usize::from(!self.pool.is_cached(block)));
        (self.num_required_blocks(token_ids.len(), 0) - shared, token_ids.len() - hits * self.config.block_size)
    }

    /// Blocks that admission leaves available while sequences are held:
    /// [`KvConfig::watermark`](crate::KvConfig::watermark) of those that may be used. Those that are swapped out hold
    /// none.
    pub fn reserve(&self) -> usize {
        if self.sequences.len() == self.num_swapped { 0 } else { self.config.watermark_blocks(self.pool.usable) }
    }

    /// Tokens that [`allocate`](Self::allocate) would find cached now: a multiple of the block size, and fewer than all,
    /// since the last token is always computed.
    pub fn cached_prefix(&self, token_ids: &[TokenId], hashes: &PrefixHashes) -> usize {
        self.walk(token_ids, hashes, |_| ()) * self.config.block_size
    }

    /// Gives `hit` the findable blocks of `token_ids` in order; returns how many. The last token is never part of them:
    /// it must be computed, to yield logits.
    pub(crate) fn walk(&self, token_ids: &[TokenId], hashes: &PrefixHashes, hit: impl FnMut(BlockId)) -> usize {
        let findable = &token_ids[..token_ids.len().saturating_sub(1)];
        self.pool.walk(findable.chunks_exact(self.config.block_size), hashes, hit)
    }
}

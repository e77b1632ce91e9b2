//! A policy (segmented LRU) that protects blocks that were found at least once from those that were not.

use interbed_kv::{BlockId, Content, EvictionPolicy, OwnerId};

use super::queues::Queues;

const PROBATION: usize = 0;
const PROTECTED: usize = 1;

/// Evicts the block that was not used for the longest time among those that were never found. Blocks that were found
/// may fill half the pool; the excess goes back to the segment of the others.
#[derive(Debug)]
pub struct Slru {
    queues: Queues<2>,
    /// Whether the block was found since it was published. The entry is read when the block is released.
    found: Vec<bool>, // [block]
    protected_max: usize,
}

impl Slru {
    /// Creates a policy for block ids below `num_blocks`.
    pub fn new(num_blocks: usize) -> Self {
        Self { queues: Queues::new(num_blocks), found: vec![false; num_blocks], protected_max: num_blocks / 2 }
    }

    fn limit_protected(&mut self) {
        while self.queues.len(PROTECTED) > self.protected_max
            && let Some(oldest) = self.queues.front(PROTECTED)
        {
            self.queues.push_back(PROBATION, oldest);
        }
    }
}

impl EvictionPolicy for Slru {
    fn publish(&mut self, block: BlockId, _: Content) {
        self.found[block.index()] = false;
    }

    fn hit(&mut self, block: BlockId) {
        self.found[block.index()] = true;
        self.queues.forget(block);
    }

    fn insert(&mut self, block: BlockId, leaf: bool) {
        self.queues.set_cached(block, leaf);
        if !self.found[block.index()] {
            return self.queues.push_back(PROBATION, block);
        }
        self.queues.push_back(PROTECTED, block);
        self.limit_protected();
    }

    fn became_leaf(&mut self, block: BlockId) {
        self.queues.set_leaf(block);
    }

    fn victim(&mut self, _: OwnerId) -> Option<BlockId> {
        self.queues.pop_evictable(PROBATION).or_else(|| self.queues.pop_evictable(PROTECTED))
    }

    fn forget(&mut self, block: BlockId) {
        self.queues.forget(block);
    }

    fn moved(&mut self, from: BlockId, to: BlockId) {
        self.queues.moved(from, to);
        self.found[to.index()] = self.found[from.index()];
    }

    fn resize(&mut self, usable: usize) {
        self.protected_max = usable / 2;
        self.limit_protected();
    }

    fn contains(&self, block: BlockId) -> bool {
        self.queues.is_cached(block)
    }

    fn len(&self) -> usize {
        self.queues.cached()
    }
}

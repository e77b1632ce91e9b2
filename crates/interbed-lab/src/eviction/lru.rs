//! A policy that evicts the least recently used block first; other policies are compared with it.

use interbed_kv::{BlockId, Content, EvictionPolicy, OwnerId};

use super::queues::Queues;

/// Evicts the block that was released longest ago.
///
/// Leaves come before parents without further measures: a sequence that holds a block holds its parent, and releases
/// the parent later.
#[derive(Debug)]
pub struct Lru(Queues<1>);

impl Lru {
    /// Creates a policy for block ids below `num_blocks`.
    pub fn new(num_blocks: usize) -> Self {
        Self(Queues::new(num_blocks))
    }
}

impl EvictionPolicy for Lru {
    fn publish(&mut self, _: BlockId, _: Content) {}

    fn hit(&mut self, block: BlockId) {
        self.0.forget(block);
    }

    fn insert(&mut self, block: BlockId, leaf: bool) {
        self.0.set_cached(block, leaf);
        self.0.push_back(0, block);
    }

    fn became_leaf(&mut self, block: BlockId) {
        self.0.set_leaf(block);
    }

    fn victim(&mut self, _: OwnerId) -> Option<BlockId> {
        self.0.pop_evictable(0)
    }

    fn forget(&mut self, block: BlockId) {
        self.0.forget(block);
    }

    fn moved(&mut self, from: BlockId, to: BlockId) {
        self.0.moved(from, to);
    }

    fn resize(&mut self, _: usize) {}

    fn contains(&self, block: BlockId) -> bool {
        self.0.is_cached(block)
    }

    fn len(&self) -> usize {
        self.0.cached()
    }
}

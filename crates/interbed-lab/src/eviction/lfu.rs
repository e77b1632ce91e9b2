//! A policy that evicts the least frequently used block first.

use interbed_kv::{BlockId, Content, EvictionPolicy, OwnerId};

use super::heap::Heap;

/// Evicts the leaf that was found least often since it was computed; among equals, the one that was released longest
/// ago.
#[derive(Debug)]
pub struct Lfu {
    leaves: Heap,
    uses: Vec<Uses>, // [block]
    cached: usize,
    /// The number of insertions so far. The counter wraps around after four billion insertions, whereupon a few ties
    /// are broken in the wrong order.
    clock: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Uses {
    count: u32,
    inserted: u32,
    cached: bool,
}

impl Lfu {
    /// Creates a policy for block ids below `num_blocks`.
    pub fn new(num_blocks: usize) -> Self {
        Self { leaves: Heap::new(num_blocks), uses: vec![Uses::default(); num_blocks], cached: 0, clock: 0 }
    }

    fn set_held(&mut self, block: BlockId) {
        self.leaves.remove(block);
        self.cached -= usize::from(std::mem::take(&mut self.uses[block.index()].cached));
    }
}

impl EvictionPolicy for Lfu {
    fn publish(&mut self, block: BlockId, _: Content) {
        self.uses[block.index()].count = 0;
    }

    fn hit(&mut self, block: BlockId) {
        self.set_held(block);
        let count = &mut self.uses[block.index()].count;
        *count = count.saturating_add(1);
    }

    fn insert(&mut self, block: BlockId, leaf: bool) {
        let uses = &mut self.uses[block.index()];
        assert!(!uses.cached, "{block} is cached already");
        (uses.inserted, uses.cached) = (self.clock, true);
        self.clock = self.clock.wrapping_add(1);
        self.cached += 1;
        if leaf {
            self.became_leaf(block);
        }
    }

    fn became_leaf(&mut self, block: BlockId) {
        let Uses { count, inserted, .. } = self.uses[block.index()];
        self.leaves.push(block, u64::from(count) << 32 | u64::from(inserted));
    }

    fn victim(&mut self, _: OwnerId) -> Option<BlockId> {
        let victim = self.leaves.pop()?;
        self.set_held(victim);
        Some(victim)
    }

    fn forget(&mut self, block: BlockId) {
        self.set_held(block);
    }

    fn moved(&mut self, from: BlockId, to: BlockId) {
        self.leaves.moved(from, to);
        self.uses[to.index()] = std::mem::take(&mut self.uses[from.index()]);
    }

    fn resize(&mut self, _: usize) {}

    fn contains(&self, block: BlockId) -> bool {
        self.uses[block.index()].cached
    }

    fn len(&self) -> usize {
        self.cached
    }
}

//! Eviction policies that are plainly right, or plainly arbitrary.

use strata_kv::{BlockId, Content, EvictionPolicy};

use crate::rng::Rng;

/// Evicts any leaf, or the oldest block, which must be one.
#[derive(Debug)]
pub struct Cached {
    pub blocks: Vec<(BlockId, bool)>, // with whether it is a leaf
    pub random: Option<Rng>,
}

impl EvictionPolicy for Cached {
    fn publish(&mut self, block: BlockId, _: Content) {
        assert!(!self.contains(block));
    }

    fn hit(&mut self, block: BlockId) {
        self.forget(block);
    }

    fn insert(&mut self, block: BlockId, leaf: bool) {
        assert!(!self.contains(block));
        self.blocks.push((block, leaf));
    }

    fn became_leaf(&mut self, block: BlockId) {
        let (_, leaf) =
            self.blocks.iter_mut().find(|(other, _)| *other == block).expect("only cached ones are told of");
        assert!(!std::mem::replace(leaf, true));
    }

    fn victim(&mut self) -> Option<BlockId> {
        let leaves: Vec<_> = self.blocks.iter().filter_map(|&(block, leaf)| leaf.then_some(block)).collect();
        let victim = match &mut self.random {
            Some(rng) => leaves[rng.below(leaves.len())],
            None => self.blocks[0].0,
        };
        assert!(leaves.contains(&victim), "{victim} has children");
        self.forget(victim);
        Some(victim)
    }

    fn forget(&mut self, block: BlockId) {
        self.blocks.retain(|&(other, _)| other != block);
    }

    fn moved(&mut self, from: BlockId, to: BlockId) {
        assert!(!self.contains(to));
        self.blocks.iter_mut().filter(|(block, _)| *block == from).for_each(|(block, _)| *block = to);
    }

    fn resize(&mut self, _: usize) {}

    fn contains(&self, block: BlockId) -> bool {
        self.blocks.iter().any(|&(other, _)| other == block)
    }

    fn len(&self) -> usize {
        self.blocks.len()
    }
}

//! Eviction policies that are simple enough to be right without a doubt, and policies that choose at random.

use std::collections::BTreeMap;

use crate::{BlockId, Content, EvictionKind, EvictionPolicy, OwnerId};

use super::Rng;

/// A policy that evicts the leaf that was released longest ago, as the naive reference does.
pub const OLDEST_LEAF: EvictionKind = EvictionKind::new("oldest leaf", |_| Box::new(Cached::new(Choice::OldestLeaf)));

/// The cached blocks, the block that was released longest ago first.
#[derive(Debug)]
pub(super) struct Cached {
    blocks: Vec<(BlockId, bool)>, // with whether it is a leaf
    owners: BTreeMap<BlockId, OwnerId>,
    choice: Choice,
}

/// Rule that chooses which of the cached blocks is evicted.
#[derive(Debug)]
pub(super) enum Choice {
    /// The oldest block, which must be a leaf, is evicted.
    Oldest,
    OldestLeaf,
    RandomLeaf(Rng),
}

impl Cached {
    pub fn new(choice: Choice) -> Self {
        Self { blocks: Vec::new(), owners: BTreeMap::new(), choice }
    }
}

impl EvictionPolicy for Cached {
    fn publish(&mut self, block: BlockId, content: Content) {
        assert!(!self.contains(block));
        self.owners.insert(block, content.owner);
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

    fn victim(&mut self, owner: OwnerId) -> Option<BlockId> {
        let own: Vec<_> = self.blocks.iter().filter(|(block, _)| self.owners[block] == owner).collect();
        let leaves: Vec<_> = own.iter().filter_map(|(block, leaf)| leaf.then_some(*block)).collect();
        let victim = match &mut self.choice {
            Choice::Oldest => own.first()?.0,
            Choice::OldestLeaf => *leaves.first()?,
            Choice::RandomLeaf(rng) => leaves[rng.below(leaves.len())],
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
        self.owners.insert(to, self.owners[&from]);
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

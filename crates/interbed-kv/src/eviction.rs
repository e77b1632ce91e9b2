//! Chooses which cached block is evicted when a fresh one is needed.
//!
//! A policy is told what happens to published trunk blocks, and asked for victims, which are the blocks to evict. A
//! policy never sees tokens, and knows evicted contents by hash alone. What it remembers of them only affects its
//! choice of victims, and is never taken for data. A policy allocates everything for `num_blocks` blocks of one owner
//! from the start. As long as all contents belong to one owner, no event except `resize` allocates.

mod adaptive;
pub(crate) mod steps;

use std::fmt;

use crate::hash::BlockHash;
use crate::ids::BlockId;
use crate::owners::OwnerId;

pub use adaptive::Adaptive;

/// What a policy is told about a content when the content becomes findable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// Hash of the content and of everything before it in its chain. Two contents may have the same hash.
    pub hash: BlockHash,
    /// The block of the content's parent; `None` for the first content of a chain.
    pub parent: Option<BlockId>,
    /// The owner of the content, who also owns its parent.
    pub owner: OwnerId,
}

/// Orders the cached blocks, which are blocks with findable content that nothing holds.
///
/// To a policy, a published block is *held* or *cached*. A content whose parent is gone would never be findable again,
/// so only leaves are evicted. A leaf is a cached block without published children. A sequence that holds a block holds
/// the parent too, so the children of a cached block are cached, and a cached block gets no new children.
///
/// | event | before | after |
/// |---|---|---|
/// | `publish` | unknown | held |
/// | `hit` | held or cached | held |
/// | `insert` | held | cached |
/// | `became_leaf` | cached, no leaf | cached, a leaf |
/// | `victim` | cached, a leaf | unknown |
/// | `forget` | held or cached | unknown |
/// | `moved` | `from` as it is, `to` unknown | `to` as `from` was, `from` unknown |
pub trait EvictionPolicy: fmt::Debug + Send {
    /// Tells the policy that the content of `block`, which a sequence holds, has become findable.
    fn publish(&mut self, block: BlockId, content: Content);

    /// Tells the policy that a look-up has found `block`, and that one more sequence holds it.
    fn hit(&mut self, block: BlockId);

    /// Tells the policy that the last holder has released `block`. Of blocks that are released together, the deepest of
    /// the chain comes first. `leaf` says whether the block has no published children.
    fn insert(&mut self, block: BlockId, leaf: bool);

    /// Tells the policy that `block`, which is cached, has lost its last published child.
    fn became_leaf(&mut self, block: BlockId);

    /// Picks a leaf of `owner` to evict, forgets it and returns it. A policy that does not tell owners apart picks any
    /// leaf. While any block of `owner` is cached, one of its blocks is a leaf, so the manager takes `None` for a bug.
    fn victim(&mut self, owner: OwnerId) -> Option<BlockId>;

    /// Tells the policy that the content of `block`, which is held or cached, is no longer findable.
    fn forget(&mut self, block: BlockId);

    /// Tells the policy that the content of `from` is now in `to`, of which the policy knew nothing. Nothing else
    /// changes.
    fn moved(&mut self, from: BlockId, to: BlockId);

    /// Tells the policy that `usable` units may be used from now on, at least 1 and at most `num_blocks`. A policy that
    /// works with shares of the pool takes them of this number.
    fn resize(&mut self, usable: usize);

    /// Returns the [class](crate#terms) of the content that `block` has, or had until the policy forgot the block.
    /// Returns 0 if the policy tells no contents apart, as by default.
    fn class(&self, _block: BlockId) -> u8 {
        0
    }

    /// Returns whether the policy counts `block` as cached.
    fn contains(&self, block: BlockId) -> bool;

    /// Returns the number of cached blocks.
    fn len(&self) -> usize;

    /// Returns whether no block is cached.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A policy's name and the function that builds the policy. The server uses the default, [`Adaptive`]; other policies
/// are defined where they are used.
#[derive(Debug, Clone, Copy)]
pub struct EvictionKind {
    name: &'static str,
    build: fn(usize) -> Box<dyn EvictionPolicy>,
}

impl EvictionKind {
    /// The server's policy, [`Adaptive`].
    pub const ADAPTIVE: Self = Self::new("adaptive", |num_blocks| Box::new(Adaptive::new(num_blocks)));

    /// Makes a kind with a name, which must be unique. `build` makes the policy for block ids below the number that it
    /// is given.
    pub const fn new(name: &'static str, build: fn(usize) -> Box<dyn EvictionPolicy>) -> Self {
        Self { name, build }
    }

    /// Returns the policy's name.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Builds the policy for block ids below `num_blocks`.
    pub fn build(self, num_blocks: usize) -> Box<dyn EvictionPolicy> {
        (self.build)(num_blocks)
    }
}

impl Default for EvictionKind {
    fn default() -> Self {
        Self::ADAPTIVE
    }
}

/// Compares policies by their names.
impl PartialEq for EvictionKind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for EvictionKind {}

impl fmt::Display for EvictionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::steps_per_block;

    #[test]
    fn costs_per_block_do_not_grow_with_the_pool() {
        let (small, large) =
            [1 << 8, 1 << 13].map(|num_blocks| steps_per_block(EvictionKind::ADAPTIVE, num_blocks)).into();
        println!("{small:.2} steps a block in a small pool, {large:.2} in one of 32 times the size");
        assert!(small < 10.0 && large < 10.0, "{small}, {large}");
    }
}

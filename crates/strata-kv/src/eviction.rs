//! Which cached block gives way when a fresh one is needed.
//!
//! A policy is told what happens to published blocks, and asked for victims. It never sees tokens: content that it has
//! evicted it knows by hash alone, which steers what it keeps and is never believed for what is there. Everything has
//! room for `num_blocks` from the start; no event but `resize` allocates.

mod adaptive;
pub(crate) mod steps;

use std::fmt;

use crate::hash::BlockHash;
use crate::ids::BlockId;

pub use adaptive::Adaptive;

/// What a policy learns of content when it becomes findable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// Names the content and all that comes before it in its chain; two contents may share one.
    pub hash: BlockHash,
    /// The published block that it continues; none for the first of a chain.
    pub parent: Option<BlockId>,
}

/// Orders the cached blocks: those with findable content that nobody holds.
///
/// A published block is *held* or *cached*. Content whose parent is gone could never be found again, so only leaves are
/// evicted: cached blocks without published children. Who holds a block holds its parent, so children of a cached block
/// are cached, and it gets no new ones.
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
    /// `block`, which a sequence holds, can be found from now on.
    fn publish(&mut self, block: BlockId, content: Content);

    /// A look-up has found `block`, and one more sequence holds it.
    fn hit(&mut self, block: BlockId);

    /// The last holder of `block` has let go of it; of blocks freed together, the deepest of the chain comes first.
    /// `leaf` says whether it has no published children.
    fn insert(&mut self, block: BlockId, leaf: bool);

    /// `block`, which is cached, has lost its last published child.
    fn became_leaf(&mut self, block: BlockId);

    /// Picks the leaf to evict and forgets it. As long as blocks are cached, one of them is a leaf, and `None` would be
    /// a bug.
    fn victim(&mut self) -> Option<BlockId>;

    /// The content of `block`, which is held or cached, can be found no longer.
    fn forget(&mut self, block: BlockId);

    /// What `from` had is in `to` from now on, of which nothing was known; all else stays as it is.
    fn moved(&mut self, from: BlockId, to: BlockId);

    /// So many blocks may be used from now on, at least 1 and at most `num_blocks`: shares of the pool are shares of
    /// these.
    fn resize(&mut self, usable: usize);

    /// Whether `block` is cached.
    fn contains(&self, block: BlockId) -> bool;

    /// Number of cached blocks.
    fn len(&self) -> usize;

    /// Whether nothing is cached.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A policy by its name, and how it is built. [`Adaptive`] is the default and what is served with; others are made
/// where they are wanted.
#[derive(Debug, Clone, Copy)]
pub struct EvictionKind {
    name: &'static str,
    build: fn(usize) -> Box<dyn EvictionPolicy>,
}

impl EvictionKind {
    /// [`Adaptive`].
    pub const ADAPTIVE: Self = Self::new("adaptive", |num_blocks| Box::new(Adaptive::new(num_blocks)));

    /// The policy `name`, no two of which may share it; `build` makes one for block ids below the number that it is
    /// given.
    pub const fn new(name: &'static str, build: fn(usize) -> Box<dyn EvictionPolicy>) -> Self {
        Self { name, build }
    }

    /// What people call it.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// The policy, for block ids below `num_blocks`.
    pub fn build(self, num_blocks: usize) -> Box<dyn EvictionPolicy> {
        (self.build)(num_blocks)
    }
}

impl Default for EvictionKind {
    fn default() -> Self {
        Self::ADAPTIVE
    }
}

/// Equal names are equal policies.
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

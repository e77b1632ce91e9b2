//! Which cached block gives way when a fresh one is needed (K7).
//!
//! A policy is told what happens to published blocks, and asked for victims. It never sees tokens: content that it has
//! evicted it knows by hash alone, which steers what it keeps and is never believed for what is there. Everything is
//! sized for `num_blocks` at the start; no event allocates.

mod adaptive;
mod ghosts;
mod heap;
mod lfu;
mod lru;
mod queues;
mod s3_fifo;
mod slru;
mod two_queue;

use std::{fmt, str::FromStr};

use thiserror::Error;

use crate::{BlockHash, BlockId};

pub use adaptive::Adaptive;
pub use lfu::Lfu;
pub use lru::Lru;
pub use s3_fifo::S3Fifo;
pub use slru::Slru;
pub use two_queue::TwoQueue;

/// What a policy learns of content when it becomes findable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// Names the content and all that comes before it in its chain; two contents may share one.
    pub hash: BlockHash,
    /// The published block that it continues; none for the first of a chain.
    pub parent: Option<BlockId>,
}

/// Orders the cached blocks: those with findable content that no sequence holds.
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

    /// Whether `block` is cached.
    fn contains(&self, block: BlockId) -> bool;

    /// Number of cached blocks.
    fn len(&self) -> usize;

    /// Whether nothing is cached.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The policies, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EvictionKind {
    /// [`Adaptive`].
    #[default]
    Adaptive,
    /// [`Lru`].
    Lru,
    /// [`Slru`].
    Slru,
    /// [`Lfu`].
    Lfu,
    /// [`S3Fifo`].
    S3Fifo,
    /// [`TwoQueue`].
    TwoQueue,
}

impl EvictionKind {
    /// All of them, the default first.
    pub const ALL: [Self; 6] = [Self::Adaptive, Self::Lru, Self::Slru, Self::Lfu, Self::S3Fifo, Self::TwoQueue];

    /// The policy, for block ids below `num_blocks`.
    pub fn build(self, num_blocks: usize) -> Box<dyn EvictionPolicy> {
        match self {
            Self::Adaptive => Box::new(Adaptive::new(num_blocks)),
            Self::Lru => Box::new(Lru::new(num_blocks)),
            Self::Slru => Box::new(Slru::new(num_blocks)),
            Self::Lfu => Box::new(Lfu::new(num_blocks)),
            Self::S3Fifo => Box::new(S3Fifo::new(num_blocks)),
            Self::TwoQueue => Box::new(TwoQueue::new(num_blocks)),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Lru => "lru",
            Self::Slru => "slru",
            Self::Lfu => "lfu",
            Self::S3Fifo => "s3-fifo",
            Self::TwoQueue => "2q",
        }
    }
}

impl fmt::Display for EvictionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for EvictionKind {
    type Err = UnknownEviction;

    fn from_str(name: &str) -> Result<Self, UnknownEviction> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| UnknownEviction { got: name.into() })
    }
}

/// No policy has this name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("there is no eviction policy {got:?}; choose one of {}", EvictionKind::ALL.map(EvictionKind::name).join(", "))]
pub struct UnknownEviction {
    /// What was asked for.
    pub got: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_as_they_are_written() {
        for kind in EvictionKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!(EvictionKind::ALL[0], EvictionKind::default());
        let error = "LRU".parse::<EvictionKind>().unwrap_err().to_string();
        assert!(error.contains("\"LRU\"") && error.contains("slru"), "{error}");
    }
}

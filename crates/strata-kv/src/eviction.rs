//! Which cached block gives way when a fresh one is needed (K7).
//!
//! A policy is told what happens to published blocks, and asked for victims. It never sees tokens: content that it has
//! evicted it knows by hash alone, which steers what it keeps and is never believed for what is there. Everything has
//! room for `num_blocks` from the start; no event but `resize` allocates.

mod adaptive;
mod ghosts;
mod heap;
mod lfu;
mod lru;
mod queues;
mod s3_fifo;
mod slru;
mod steps;
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

    /// So many blocks may be used from now on, at least 1 and at most `num_blocks`: shares of the pool are shares of these.
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
    use crate::{BlockManager, ChainRoot, KvConfig, SequenceId, TokenId};

    #[test]
    fn names_read_back_as_they_are_written() {
        for kind in EvictionKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!(EvictionKind::ALL[0], EvictionKind::default());
        let error = "LRU".parse::<EvictionKind>().unwrap_err().to_string();
        assert!(error.contains("\"LRU\"") && error.contains("slru"), "{error}");
    }
    /// Steps per block of prompts that share prefixes by chance and would fill the pool many times.
    fn steps_per_block(kind: EvictionKind, num_blocks: usize) -> f64 {
        let config = KvConfig { num_blocks, block_size: 1, eviction: kind, ..KvConfig::default() };
        let mut manager = BlockManager::new(config).expect("a good configuration");
        let mut state = 7u64;
        let mut random = |end: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % end) as TokenId
        };
        let mut blocks = 0;
        let steps = steps::counted(|| {
            while blocks < 12 * num_blocks {
                // Short and long chains, of a few families, of which small numbers are frequent.
                let families = num_blocks as u64 / 8;
                let (family, length) = (random(families) * random(families) / families as TokenId, 1 + random(60));
                let prompt: Vec<_> = (0..length).map(|at| if at < 20 { family } else { random(9) }).collect();
                let hashes = manager.hash_prefix(&ChainRoot::default(), &prompt);
                manager.allocate(SequenceId(0), &prompt, &hashes).expect("room");
                manager.commit(SequenceId(0), prompt.len());
                manager.free(SequenceId(0));
                blocks += prompt.len();
            }
        });
        steps as f64 / blocks as f64
    }

    #[test]
    fn costs_per_block_do_not_grow_with_the_pool() {
        for kind in EvictionKind::ALL {
            let (small, large) = (steps_per_block(kind, 1 << 8), steps_per_block(kind, 1 << 13));
            println!("{kind}: {small:.2} steps a block in a small pool, {large:.2} in one of 32 times the size");
            let bound = match kind {
                // Comparisons on a way through a heap of quarters.
                EvictionKind::Lfu => 14.0,
                EvictionKind::Adaptive => 10.0,
                _ => 3.0,
            };
            assert!(small < bound && large < bound, "{kind}: {small}, {large}");
        }
    }
}

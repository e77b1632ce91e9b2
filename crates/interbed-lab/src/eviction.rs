//! The eviction policies that can be chosen by name: the one that the server uses, and those of textbooks.
//!
//! To add a policy, add a file in this folder and a line in [`POLICIES`].

mod ghosts;
mod heap;
mod lfu;
mod list;
mod lru;
mod queues;
mod s3_fifo;
mod slru;
mod two_queue;

use interbed_kv::EvictionKind;
use thiserror::Error;

/// All policies, of which the first is the default.
pub const POLICIES: [EvictionKind; 6] = [
    EvictionKind::ADAPTIVE,
    EvictionKind::new("lru", |num_blocks| Box::new(lru::Lru::new(num_blocks))),
    EvictionKind::new("slru", |num_blocks| Box::new(slru::Slru::new(num_blocks))),
    EvictionKind::new("lfu", |num_blocks| Box::new(lfu::Lfu::new(num_blocks))),
    EvictionKind::new("s3-fifo", |num_blocks| Box::new(s3_fifo::S3Fifo::new(num_blocks))),
    EvictionKind::new("2q", |num_blocks| Box::new(two_queue::TwoQueue::new(num_blocks))),
];

/// Returns the policy of this name.
///
/// # Errors
/// Fails if no policy has this name.
pub fn policy(name: &str) -> Result<EvictionKind, UnknownEviction> {
    POLICIES.into_iter().find(|kind| kind.name() == name).ok_or_else(|| UnknownEviction { got: name.into() })
}

/// The error that no policy has the requested name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("there is no eviction policy {got:?}; choose one of {}", POLICIES.map(EvictionKind::name).join(", "))]
pub struct UnknownEviction {
    /// The requested name.
    pub got: String,
}

/// Counts an iteration for tests. Every loop over blocks must call it once in each iteration.
#[inline]
fn step() {
    #[cfg(test)]
    interbed_kv::testing::step();
}

#[cfg(test)]
mod tests {
    use interbed_kv::testing::steps_per_block;

    use super::*;

    #[test]
    fn names_read_back_as_they_are_written() {
        for kind in POLICIES {
            assert_eq!(policy(&kind.to_string()), Ok(kind));
        }
        assert_eq!(POLICIES[0], EvictionKind::default());
        let error = policy("LRU").unwrap_err().to_string();
        assert!(error.contains("\"LRU\"") && error.contains("slru"), "{error}");
    }

    #[test]
    fn costs_per_block_do_not_grow_with_the_pool() {
        // The default is tested in its own crate.
        for kind in POLICIES.into_iter().skip(1) {
            let (small, large) = (steps_per_block(kind, 1 << 8), steps_per_block(kind, 1 << 13));
            println!("{kind}: {small:.2} steps a block in a small pool, {large:.2} in one of 32 times the size");
            // Comparisons on a path through a heap with four children per node.
            let bound = if kind.name() == "lfu" { 14.0 } else { 3.0 };
            assert!(small > 0.0 && small < bound && large < bound, "{kind}: {small}, {large}");
        }
    }
}

//! Tools that the tests of the block manager share with those of eviction policies in other crates: random operations
//! against a naive reference, a random number generator, and a counter of steps.
//!
//! A failure prints its seed. `INTERBED_TEST_SEED=<seed> cargo test -p <crate> <test>` replays that run alone.

mod cost;
mod device;
mod episode;
mod follower;
mod naive;
mod policies;
mod pool;
mod rng;

use crate::{EvictionKind, KvStats};
use episode::Episode;

pub use crate::eviction::steps::{counted, step};
pub use cost::steps_per_block;
pub use follower::Follower;
pub use policies::OLDEST_LEAF;
pub use pool::PlainBlocks;
pub use rng::{Rng, mix};

/// The parameters of a run.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// The number of tokens per block.
    pub block_size: usize,
    /// The most blocks of a pool.
    pub blocks_max: usize,
    /// Whether sequences share the KV of equal prefixes.
    pub prefix_caching: bool,
    /// The number of bits in a hash. With few bits, hashes collide.
    pub hash_bits: u32,
    /// The rule that says which content is evicted.
    pub eviction: Eviction,
    /// Whether every outcome must equal the reference's. Outcomes may differ if the index may refuse a block or if the
    /// order of eviction differs. What is read, and all invariants, are checked in any case.
    pub exact: bool,
    /// The number of operations in all episodes together.
    pub steps: usize,
}

/// The rule that says which content is evicted.
#[derive(Debug, Clone, Copy)]
pub enum Eviction {
    /// The given policy picks the content.
    Kind(EvictionKind),
    /// The block that was released longest ago is evicted, and it must be a leaf.
    Oldest,
    /// Any leaf may be evicted.
    RandomLeaf,
}

const STEPS_PER_EPISODE: usize = 1000;

/// Runs episodes of random operations, and checks everything after each operation. Returns the figures of each episode.
///
/// # Panics
/// Panics if a check fails. The seed of that episode is printed before.
pub fn run(case: &Case) -> Vec<KvStats> {
    let replay = std::env::var("INTERBED_TEST_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seeds = match replay {
        Some(seed) => vec![seed],
        None => (0..case.steps.div_ceil(STEPS_PER_EPISODE) as u64).collect::<Vec<u64>>(),
    };
    let episode = |seed| {
        let _printed_on_panic = PrintSeed(seed);
        let mut episode = Episode::new(case, seed);
        for _ in 0..STEPS_PER_EPISODE {
            episode.step();
            episode.verify();
        }
        episode.finish()
    };
    seeds.into_iter().map(episode).collect()
}

struct PrintSeed(u64);

impl Drop for PrintSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with INTERBED_TEST_SEED={}", self.0);
        }
    }
}

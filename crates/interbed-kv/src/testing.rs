//! Tools for the tests of the block manager, and for tests of eviction policies in other crates: random operations
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
mod tail_episode;

use crate::{EvictionKind, KvStats};
use episode::Episode;

pub use crate::eviction::steps::{counted, step};
pub use cost::steps_per_block;
pub use follower::Follower;
pub use policies::OLDEST_LEAF;
pub use pool::PlainBlocks;
pub use rng::{Rng, mix};
pub use tail_episode::{TailCase, TailCounts, run_tails};

/// Parameters of a run.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Number of tokens per block.
    pub block_size: usize,
    /// Maximum number of blocks of a pool.
    pub blocks_max: usize,
    /// Whether sequences share the KV of equal prefixes.
    pub prefix_caching: bool,
    /// Number of bits of a hash; with few bits, hashes collide.
    pub hash_bits: u32,
    /// Rule by which a content is chosen for eviction.
    pub eviction: Eviction,
    /// Whether every outcome must equal the reference's. Outcomes may differ if the index may refuse a block or the
    /// order of eviction differs. The KV that is read, and all invariants, are checked in these cases too.
    pub exact: bool,
    /// The number of operations in all episodes together.
    pub steps: usize,
}

/// Rule by which a content is chosen for eviction.
#[derive(Debug, Clone, Copy)]
pub enum Eviction {
    /// The content that this policy picks is evicted.
    Kind(EvictionKind),
    /// The block that was released longest ago, which must be a leaf, is evicted.
    Oldest,
    /// Any leaf may be evicted.
    RandomLeaf,
}

const STEPS_PER_EPISODE: usize = 1000;

/// Runs episodes of random operations, and checks everything after each operation. Returns the figures of each episode.
///
/// # Panics
/// Panics if a check fails; the seed of that episode is printed before.
pub fn run(case: &Case) -> Vec<KvStats> {
    let mut all = Vec::new();
    episodes(case.steps, STEPS_PER_EPISODE, |seed| {
        let mut episode = Episode::new(case, seed);
        for _ in 0..STEPS_PER_EPISODE {
            episode.step();
            episode.verify();
        }
        all.push(episode.finish());
    });
    all
}

/// Runs as many episodes as take `steps` steps, each with a seed of its own, or the one that is to be replayed.
fn episodes(steps: usize, steps_of_one: usize, mut run: impl FnMut(u64)) {
    let replay = std::env::var("INTERBED_TEST_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seeds = match replay {
        Some(seed) => vec![seed],
        None => (0..steps.div_ceil(steps_of_one) as u64).collect::<Vec<u64>>(),
    };
    for seed in seeds {
        let _printed_on_panic = PrintSeed(seed);
        run(seed);
    }
}

struct PrintSeed(u64);

impl Drop for PrintSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with INTERBED_TEST_SEED={}", self.0);
        }
    }
}

//! Random operations against the naive reference, with every invariant checked after each. The test plays the device:
//! what a sequence reads through its block table must be its own fingerprint, above all where blocks are shared,
//! copied, moved or swapped.
//!
//! A failure prints its seed; `STRATA_TEST_SEED=<seed> cargo test -p strata-kv <test>` replays that run alone.

use strata_kv::EvictionKind;

use crate::episode::Episode;
use crate::policies::OLDEST_LEAF;

/// One shape of run.
#[derive(Clone, Copy)]
pub struct Case {
    pub block_size: usize,
    pub blocks_max: usize,
    pub prefix_caching: bool,
    pub hash_bits: u32,
    pub eviction: Eviction,
    /// Every outcome must be the reference's. Not so where the index may refuse a block or the order of eviction
    /// differs; what is read, and all invariants, must hold there too.
    pub exact: bool,
    pub steps: usize,
}

#[derive(Clone, Copy)]
pub enum Eviction {
    Kind(EvictionKind),
    /// The block that was let go longest ago, which must be a leaf.
    Oldest,
    RandomLeaf,
}

const CASE: Case = Case {
    block_size: 1,
    blocks_max: 24,
    prefix_caching: true,
    hash_bits: 64,
    eviction: Eviction::Kind(OLDEST_LEAF),
    exact: true,
    steps: 60_000,
};

/// Few blocks, where everything that can collide does so all the time.
const TINY: Case = Case { block_size: 2, blocks_max: 8, steps: 1_000_000, ..CASE };

#[test]
fn tiny() {
    run(&TINY);
}

#[test]
fn tiny_block_size_1() {
    run(&Case { block_size: 1, ..TINY });
}

#[test]
fn tiny_four_bit_hashes() {
    run(&Case { hash_bits: 4, ..TINY });
}

#[test]
fn tiny_plain() {
    run(&Case { prefix_caching: false, ..TINY });
}

#[test]
fn tiny_and_the_oldest_cached_block_is_always_a_leaf() {
    // K4: blocks are let go of from the last to the first, so no policy has to search.
    run(&Case { eviction: Eviction::Oldest, ..TINY });
}

#[test]
fn block_size_1() {
    run(&CASE);
}

#[test]
fn block_size_4() {
    run(&Case { block_size: 4, blocks_max: 32, ..CASE });
}

#[test]
fn block_size_16() {
    run(&Case { block_size: 16, blocks_max: 16, steps: 16_000, ..CASE });
}

#[test]
fn block_size_256() {
    run(&Case { block_size: 256, blocks_max: 8, steps: 3_000, ..CASE });
}

#[test]
fn plain_block_size_4() {
    run(&Case { block_size: 4, prefix_caching: false, ..CASE });
}

#[test]
fn plain_block_size_256() {
    run(&Case { block_size: 256, blocks_max: 8, prefix_caching: false, steps: 3_000, ..CASE });
}

#[test]
fn four_bit_hashes_block_size_1() {
    run(&Case { hash_bits: 4, ..CASE });
}

#[test]
fn four_bit_hashes_block_size_16() {
    run(&Case { block_size: 16, hash_bits: 4, blocks_max: 16, steps: 12_000, ..CASE });
}

#[test]
fn all_hashes_equal() {
    // No more blocks than a bucket of the index takes, so the reference stays exact.
    run(&Case { block_size: 2, hash_bits: 0, blocks_max: 32, ..CASE });
}

#[test]
fn all_hashes_equal_and_the_index_overfull() {
    run(&Case { hash_bits: 0, blocks_max: 90, exact: false, ..CASE });
}

#[test]
fn any_eviction_policy_that_takes_leaves() {
    run(&Case { block_size: 2, blocks_max: 32, eviction: Eviction::RandomLeaf, exact: false, ..CASE });
}

#[test]
fn the_default_eviction_policy() {
    let eviction = Eviction::Kind(EvictionKind::ADAPTIVE);
    let case = Case { block_size: 2, blocks_max: 32, eviction, exact: false, ..CASE };
    run(&case);
    run(&Case { blocks_max: 6, hash_bits: 8, steps: 200_000, ..case });
}

const STEPS_PER_EPISODE: usize = 1000;

fn run(case: &Case) {
    let replay = std::env::var("STRATA_TEST_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seeds = match replay {
        Some(seed) => vec![seed],
        None => (0..case.steps.div_ceil(STEPS_PER_EPISODE) as u64).collect::<Vec<u64>>(),
    };
    for seed in seeds {
        let _printed_on_panic = PrintSeed(seed);
        let mut episode = Episode::new(case, seed);
        for _ in 0..STEPS_PER_EPISODE {
            episode.step();
            episode.verify();
        }
        episode.finish();
    }
}

struct PrintSeed(u64);

impl Drop for PrintSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with STRATA_TEST_SEED={}", self.0);
        }
    }
}

//! Runs random operations against the naive reference, and checks every invariant after each. The test plays the
//! device: the KV that a sequence reads through its block table must be the sequence's own fingerprint, above all where
//! blocks are shared, copied, moved or swapped.
//!
//! A failure prints its seed; `INTERBED_TEST_SEED=<seed> cargo test -p interbed-kv <test>` replays that run alone.

use interbed_kv::EvictionKind;
use interbed_kv::testing::{Case, Eviction, OLDEST_LEAF, run};

const CASE: Case = Case {
    block_size: 1,
    blocks_max: 24,
    prefix_caching: true,
    hash_bits: 64,
    eviction: Eviction::Kind(OLDEST_LEAF),
    exact: true,
    steps: 60_000,
};

/// A configuration of few blocks, so that every kind of conflict happens all the time.
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
    // Blocks are released from the last to the first, so no policy has to search.
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
    // No more blocks than fit into one bucket of the index, so the reference stays exact.
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

//! Makes random seeds.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// Returns a random seed for sampling or for hash functions. An attacker cannot predict the seed, and therefore cannot
/// prepare hash collisions.
pub fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

//! Makes random seeds.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// Returns a seed that differs in every process, so that an attacker cannot prepare hash collisions.
pub fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

//! Random seeds.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// Different in every process, so that hash collisions cannot be prepared ahead.
pub fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

//! Makes random numbers that need not be secret.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns a random number for ids, and for seeds of requests without one.
pub(crate) fn random() -> u64 {
    // Every `RandomState` differs, and the first one gets its keys from the system's random numbers.
    RandomState::new().build_hasher().finish()
}

//! The processor's threads, and the instructions that they use.

use std::num::NonZeroUsize;

use interbed_kernels::{Level, Pool};

/// Threads that compute together, and the instructions that they use.
pub struct Cpu {
    /// The threads.
    pub pool: Pool,
    /// The instructions.
    pub level: Level,
}

impl Cpu {
    /// Creates a pool of `threads` threads, with the best instructions that the processor has.
    pub fn new(threads: NonZeroUsize) -> Self {
        Self { pool: Pool::new(threads), level: Level::detect() }
    }
}

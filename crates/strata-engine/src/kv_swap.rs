//! The seams between the scheduler, which decides that blocks are swapped, and whatever moves their bytes.

use std::time::Duration;

use strata_device::KvPool;
use strata_kv::{Swap, SwapId};

/// Room one tier below KV blocks, and how they get there and back. The engine thread calls it between passes, with the
/// blocks' memory at hand; what takes long goes on beside the passes.
pub trait KvSwap {
    /// Blocks that it has room for. Swaps name slots below this number.
    fn num_slots(&self) -> usize;

    /// What moving blocks took when it was tried at the start.
    fn trial(&self) -> SwapTrial;

    /// Takes over a swap. Its blocks are neither written to nor given to others until it has ended, and its slots
    /// belong to it: blocks are read or written in calls of [`poll`](Self::poll) alone. Swaps end in the order in which
    /// they began, except that some may fail earlier, and that those without copies end at once.
    fn start(&mut self, swap: &Swap);

    /// Goes on with what is in flight, and returns one swap that has ended, or none. Waits up to `wait` for one while
    /// any is in flight.
    fn poll(&mut self, wait: Duration) -> Option<SwapEnded>;
}

/// A place to swap to: what a [`ModelRunner`](crate::ModelRunner), which has the blocks' memory, needs to be a
/// [`KvSwap`]. The methods are those of that seam, with the memory at hand where bytes are moved.
pub trait SwapStore: Send {
    /// See [`KvSwap::num_slots`].
    fn num_slots(&self) -> usize;

    /// See [`KvSwap::trial`].
    fn trial(&self) -> SwapTrial;

    /// See [`KvSwap::start`].
    fn start(&mut self, swap: &Swap);

    /// See [`KvSwap::poll`]. No other call touches `pool`.
    fn poll(&mut self, pool: &mut KvPool, wait: Duration) -> Option<SwapEnded>;
}

/// A swap that has come to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct SwapEnded {
    /// Which.
    pub id: SwapId,
    /// What it took, or why it failed. After a failure, what its destination holds is unspecified.
    pub outcome: Result<SwapTook, String>,
}

/// What a swap took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SwapTook {
    /// Bytes that were moved.
    pub bytes: u64,
    /// Seconds from its start, or from the end of the swap before it that moved anything.
    pub seconds: f64,
}

/// Bytes moved each way on trial, and the seconds that it took.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SwapTrial {
    /// Bytes, the same each way.
    pub bytes: u64,
    /// Seconds of writing them.
    pub write_seconds: f64,
    /// Seconds of reading them.
    pub read_seconds: f64,
}

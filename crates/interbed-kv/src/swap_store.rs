//! Trait of the places that blocks are swapped to.

use std::sync::Arc;
use std::time::Duration;

use crate::{block_bytes::BlockBytes, ids::SwapId, transfer::Swap};

/// Swap space one tier below the KV blocks, which moves blocks there and back. The engine's thread calls it between
/// passes, when this thread has access to the blocks' memory; slow work continues during the passes.
pub trait SwapStore: Send {
    /// Returns the number of slots, each with room for one block. Swaps name slots below this number.
    fn num_slots(&self) -> usize;

    /// Returns how long moving blocks took in a trial at the start.
    fn trial(&self) -> SwapTrial;

    /// Lets the threads of a tier do the work from now on, if they can. The call comes while no swap is in flight.
    fn share_threads(&mut self, _threads: Arc<dyn SlotThreads>) {}

    /// Takes over a swap. Until it has ended, its blocks are neither written to nor reused, and its slots belong to it.
    /// Blocks are read or written in calls of [`poll`](Self::poll) alone. Swaps may end in any order.
    fn start(&mut self, swap: &Swap);

    /// Continues the swaps in flight, and returns one that has ended, or `None`. The call waits up to `wait` for such a
    /// swap while any is in flight. No other call touches `blocks`.
    fn poll(&mut self, blocks: &mut dyn BlockBytes, wait: Duration) -> Option<SwapEnded>;
}

/// A job that moves blocks to slots or back.
pub type SlotJob = Box<dyn FnOnce() + Send>;

/// Threads of a tier that move blocks to slots and back as well.
pub trait SlotThreads: Send + Sync {
    /// Runs a job that moves blocks to slots, before any write that nobody waits for.
    fn write_slots(&self, job: SlotJob);

    /// Runs a job that moves blocks back from slots, after the reads that a pass waits for.
    fn read_slots(&self, job: SlotJob);
}

/// Reports a swap that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct SwapEnded {
    /// Number of the swap.
    pub id: SwapId,
    /// Bytes and time that the swap took, or why it failed. After a failure, the contents of its destination are
    /// unspecified.
    pub outcome: Result<SwapTook, String>,
}

/// Bytes and time that a swap took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SwapTook {
    /// Number of bytes that the swap moved.
    pub bytes: u64,
    /// Number of seconds from the swap's start, or from the last end of another swap in this direction that moved
    /// anything.
    pub seconds: f64,
}

/// Bytes moved each way in a trial, and the seconds that this took.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SwapTrial {
    /// Number of bytes that were written, and then read again.
    pub bytes: u64,
    /// Number of seconds that writing the bytes took.
    pub write_seconds: f64,
    /// Number of seconds that reading the bytes took.
    pub read_seconds: f64,
}

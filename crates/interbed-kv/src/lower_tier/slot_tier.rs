//! Interface to a tier that swaps sequences out and in.
//!
//! A *slot* is the right to have one part of a block below memory. The block manager gives out slots; where the bytes
//! of a slot lie is the tier's business. A tier that has the content of a block already need not write it again.

use std::time::Duration;

use crate::{
    block_bytes::{BlockBytes, BlockPart},
    ids::{SwapId, SwapSlot},
    key::BlockLabel,
    transfer::Swap,
};

/// A tier that swaps blocks out and in. The engine's thread calls it between passes, when this thread has access to the
/// blocks' memory; slow work continues during the passes.
pub trait SlotTier: Send {
    /// Returns the number of slots. Swaps name slots below this number.
    fn num_slots(&self) -> usize;

    /// Returns how long writing and reading took in a trial at the start.
    fn trial(&self) -> SwapTrial;

    /// Takes over a swap. `label` returns the label of what a part of a block holds, if that has one. Until the swap
    /// has ended, nobody but the tier writes to its blocks, they are not reused, and its slots belong to it. The tier
    /// reads or writes blocks of the swap only in calls that are given the memory of the blocks:
    /// [`poll_swaps`](Self::poll_swaps), and the calls for fetches if the tier has fetches too. Swaps may end in any
    /// order.
    fn start_swap(&mut self, swap: &Swap, label: &dyn Fn(BlockPart) -> Option<BlockLabel>);

    /// Continues the swaps in flight, and returns one that has ended, or `None`. The call waits up to `wait` for such a
    /// swap while any is in flight. The tier may also fill `blocks` for fetches that are in flight.
    fn poll_swaps(&mut self, blocks: &mut dyn BlockBytes, wait: Duration) -> Option<SwapEnded>;

    /// Returns the number of slots whose contents the tier keeps.
    fn num_kept_slots(&self) -> usize;

    /// Stops keeping contents for the slots for which `is_used` returns false.
    fn retain_slots(&mut self, is_used: &dyn Fn(SwapSlot) -> bool);
}

/// Reports a swap that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct SwapEnded {
    /// Number of the swap.
    pub id: SwapId,
    /// Bytes and time that the swap took, or why it failed. After a failure, the contents of its destination are
    /// unspecified.
    pub outcome: Result<SwapTook, SwapFailure>,
}

/// Reason why a swap has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwapFailure {
    /// The tier had no room for the blocks just then, and has written nothing.
    NoRoom,
    /// Blocks could not be moved, for this reason.
    Broken(String),
}

/// Bytes and time that a swap took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SwapTook {
    /// Number of bytes that the swap moved.
    pub bytes: u64,
    /// Number of seconds until the swap's end, from its start, or from the end of the previous swap in this direction
    /// that moved anything, if that is later.
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

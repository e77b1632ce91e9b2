//! Interface to a tier that swaps sequences out and in.
//!
//! A *slot* is the right to keep one part below memory. The block manager gives out slots; where the bytes of a slot
//! lie is the tier's business. A tier that already has the content of a part need not write it again.

use std::time::Duration;

use crate::{
    block_bytes::{BlockBytes, BlockPart},
    ids::{SwapId, SwapSlot},
    key::BlockLabel,
    transfer::Swap,
};

/// A tier that swaps parts of blocks out and in. The engine's thread calls the tier between passes, when this thread
/// has access to the blocks' memory; slow work continues during the passes.
pub trait SlotTier: Send {
    /// Returns the number of slots. Swaps name only slots whose index is below this number.
    fn num_slots(&self) -> usize;

    /// Returns how long writing and reading took in a trial when the tier started.
    fn trial(&self) -> SwapTrial;

    /// Takes over a swap. `label` returns the label of the content of a part, if that is findable. Until the swap has
    /// ended, nobody but the tier writes to its blocks, they are not reused, and its slots belong to it. The tier reads
    /// or writes blocks of the swap only in calls that are given the memory of the blocks:
    /// [`poll_swaps`](Self::poll_swaps), and the calls for fetches if the tier has fetches too. Swaps may end in any
    /// order.
    fn start_swap(&mut self, swap: &Swap, label: &dyn Fn(BlockPart) -> Option<BlockLabel>);

    /// Continues the swaps in flight. Returns one that has ended, or `None`. While swaps are in flight and none has
    /// ended, the call waits for one, up to `wait`. The call may also fill `blocks` for fetches in flight.
    fn poll_swaps(&mut self, blocks: &mut dyn BlockBytes, wait: Duration) -> Option<SwapEnded>;

    /// Returns the number of slots whose bytes the tier keeps.
    fn num_kept_slots(&self) -> usize;

    /// Stops keeping bytes for the slots for which `is_used` returns false.
    fn retain_slots(&mut self, is_used: &dyn Fn(SwapSlot) -> bool);
}

/// The report of a swap that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct SwapEnded {
    /// The id of the swap.
    pub id: SwapId,
    /// Bytes and time that the swap took, or why it failed. After a failure, the bytes of the blocks or slots that the
    /// swap was to fill are unspecified.
    pub outcome: Result<SwapTook, SwapFailure>,
}

/// Reason why a swap has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwapFailure {
    /// The tier had no room for the parts just then, and has written nothing.
    NoRoom,
    /// Parts could not be moved, for this reason.
    Broken(String),
}

/// Bytes and time that a swap took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SwapTook {
    /// Number of bytes that the swap moved.
    pub bytes: u64,
    /// Number of seconds up to the swap's end, counted from its start, or from the end of the previous swap in this
    /// direction that moved anything, whichever is later.
    pub seconds: f64,
}

/// Bytes that a trial wrote and then read, and the seconds that each took.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SwapTrial {
    /// Number of bytes that were written, and then read again.
    pub bytes: u64,
    /// Number of seconds that writing the bytes took.
    pub write_seconds: f64,
    /// Number of seconds that reading the bytes took.
    pub read_seconds: f64,
}

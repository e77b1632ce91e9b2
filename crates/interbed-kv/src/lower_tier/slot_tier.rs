//! Interface to a tier that spares swaps the writing of blocks which it has.

use std::sync::Arc;
use std::time::Duration;

use crate::{
    block_bytes::BlockBytes,
    ids::{SwapId, SwapSlot},
    key::BlockLabel,
    swap_store::{SlotThreads, SwapEnded},
    transfer::BlockSwap,
};

/// A tier that keeps the contents of slots, so that swaps need not write what the tier has already.
pub trait SlotTier {
    /// Returns the tier's threads, which can move blocks to slots and back as well.
    fn threads(&self) -> Arc<dyn SlotThreads>;

    /// Begins to keep the content that `slot` is to hold, whose label is `label` if it has one. Returns whether the
    /// content need not be written to the slot, since the tier has it and keeps it.
    fn keep_slot(&mut self, slot: SwapSlot, label: Option<BlockLabel>) -> bool;

    /// Stops keeping contents for the slots for which `is_used` returns false.
    fn retain_slots(&mut self, is_used: &dyn Fn(SwapSlot) -> bool);

    /// Begins to bring back those of `transfers` whose slots' contents the tier keeps, and takes them out of the list.
    /// Returns whether there are any; their end is then reported by [`poll_slots`](Self::poll_slots).
    fn fetch_slots(&mut self, id: SwapId, transfers: &mut Vec<BlockSwap>) -> bool;

    /// Continues the reads in flight, and fills `blocks` with what has come. Returns a swap of which all
    /// [kept](Self::keep_slot) contents have come, or failed to. The call waits for such a swap up to `wait` while any
    /// is in flight.
    fn poll_slots(&mut self, blocks: &mut dyn BlockBytes, wait: Duration) -> Option<SwapEnded>;
}

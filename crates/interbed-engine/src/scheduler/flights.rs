//! Keeps track of swaps and fetches in flight.

use std::collections::BTreeMap;

use interbed_kv::{SequenceId, Swap, SwapDirection, SwapId};

/// A swap in flight.
#[derive(Debug)]
pub(super) struct SwapInFlight {
    /// The sequences that are swapped: one, or the beams of a search.
    pub(super) sequences: Vec<SequenceId>,
    pub(super) direction: SwapDirection,
    /// The number of blocks that are being copied.
    pub(super) blocks: usize,
    /// The number of blocks that become free when the swap has ended.
    num_freed: usize,
    /// The number of the step that began the swap.
    begun: u64,
}

/// The number of steps after which a swap that has not ended is taken to hang. A step that plans nothing waits for
/// swaps, so these steps last several seconds.
pub(super) const SWAP_STEPS_MAX: u64 = 1000;

/// All swaps and fetches in flight.
#[derive(Debug, Default)]
pub(super) struct Flights {
    in_flight: BTreeMap<SwapId, SwapInFlight>,
    /// The number of fetches in flight. The sequences of some may have ended.
    pub(super) fetches: usize,
    /// The number of steps since the start.
    steps: u64,
}

impl Flights {
    /// Counts one more step.
    pub(super) fn tick(&mut self) {
        self.steps += 1;
    }

    /// Returns the number of steps since the start.
    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// Records that the swap of `sequences` begins with this step.
    pub(super) fn depart(&mut self, sequences: Vec<SequenceId>, swap: &Swap) {
        let Swap { direction, num_freed, .. } = *swap;
        let flight = SwapInFlight { sequences, direction, blocks: swap.transfers.len(), num_freed, begun: self.steps };
        self.in_flight.insert(swap.id, flight);
    }

    /// Removes a swap that has ended; returns `None` if the swap is not known.
    pub(super) fn land(&mut self, id: SwapId) -> Option<SwapInFlight> {
        self.in_flight.remove(&id)
    }

    /// Returns the number of swaps in flight.
    pub(super) fn swaps(&self) -> usize {
        self.in_flight.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty() && self.fetches == 0
    }

    /// Returns the number of blocks that become free when all swaps that do not hang have ended.
    pub(super) fn blocks_leaving(&self) -> usize {
        self.in_flight.values().filter(|flight| !self.hangs(flight)).map(|flight| flight.num_freed).sum()
    }

    /// Returns the number of blocks that are being copied in either direction.
    pub(super) fn blocks_in_flight(&self) -> usize {
        self.in_flight.values().map(|flight| flight.blocks).sum()
    }

    /// Returns the number of blocks in swaps that hang, which may never come back.
    pub(super) fn blocks_hanging(&self) -> usize {
        self.in_flight.values().filter(|flight| self.hangs(flight)).map(|flight| flight.blocks).sum()
    }

    /// Returns whether blocks are on their way in by a swap that does not hang.
    pub(super) fn any_arrives(&self) -> bool {
        self.in_flight.values().any(|flight| flight.direction == SwapDirection::In && !self.hangs(flight))
    }

    /// Returns whether a swap hangs. While one does, no other is begun.
    pub(super) fn any_hangs(&self) -> bool {
        self.in_flight.values().any(|flight| self.hangs(flight))
    }

    fn hangs(&self, flight: &SwapInFlight) -> bool {
        self.steps - flight.begun > SWAP_STEPS_MAX
    }
}

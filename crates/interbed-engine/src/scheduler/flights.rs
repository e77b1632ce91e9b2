//! Swaps in flight.

use std::collections::BTreeMap;

use interbed_kv::{SequenceId, Swap, SwapDirection, SwapId};

/// A swap in flight.
#[derive(Debug)]
pub(super) struct SwapInFlight {
    /// One, or the beams of a search.
    pub(super) sequences: Vec<SequenceId>,
    pub(super) direction: SwapDirection,
    /// Blocks that are being copied.
    blocks: usize,
    /// Blocks that come free when it has ended.
    num_freed: usize,
    /// Number of the step that began it.
    begun: u64,
}

/// Steps after which a swap that has not ended is taken to hang. One that plans nothing waits for swaps, so these are
/// seconds.
pub(super) const SWAP_STEPS_MAX: u64 = 1000;

/// All swaps in flight.
#[derive(Debug, Default)]
pub(super) struct Flights {
    in_flight: BTreeMap<SwapId, SwapInFlight>,
    /// Steps since the start.
    steps: u64,
}

impl Flights {
    /// One more step is planned.
    pub(super) fn tick(&mut self) {
        self.steps += 1;
    }

    /// The swap of `sequences` begins with this step.
    pub(super) fn depart(&mut self, sequences: Vec<SequenceId>, swap: &Swap) {
        let Swap { direction, num_freed, .. } = *swap;
        let flight = SwapInFlight { sequences, direction, blocks: swap.transfers.len(), num_freed, begun: self.steps };
        self.in_flight.insert(swap.id, flight);
    }

    /// A swap has ended; none if it is not known.
    pub(super) fn land(&mut self, id: SwapId) -> Option<SwapInFlight> {
        self.in_flight.remove(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Sequences whose KV is on its way, in or out, though some of them may have ended.
    pub(super) fn sequences(&self) -> impl Iterator<Item = SequenceId> {
        self.in_flight.values().flat_map(|flight| &flight.sequences).copied()
    }

    /// Sequences whose KV is being swapped in.
    pub(super) fn arriving(&self) -> impl Iterator<Item = SequenceId> {
        let flights = self.in_flight.values().filter(|flight| flight.direction == SwapDirection::In);
        flights.flat_map(|flight| &flight.sequences).copied()
    }

    /// Blocks that come free when all that do not hang have ended.
    pub(super) fn blocks_leaving(&self) -> usize {
        self.in_flight.values().filter(|flight| !self.hangs(flight)).map(|flight| flight.num_freed).sum()
    }

    /// Blocks that are being copied, either way.
    pub(super) fn blocks_in_flight(&self) -> usize {
        self.in_flight.values().map(|flight| flight.blocks).sum()
    }

    /// Blocks of swaps that hang, which may never come back.
    pub(super) fn blocks_hanging(&self) -> usize {
        self.in_flight.values().filter(|flight| self.hangs(flight)).map(|flight| flight.blocks).sum()
    }

    /// Whether blocks are on their way in, and will arrive.
    pub(super) fn any_arrives(&self) -> bool {
        self.in_flight.values().any(|flight| flight.direction == SwapDirection::In && !self.hangs(flight))
    }

    /// Whether a swap hangs: then no other is begun.
    pub(super) fn any_hangs(&self) -> bool {
        self.in_flight.values().any(|flight| self.hangs(flight))
    }

    fn hangs(&self, flight: &SwapInFlight) -> bool {
        self.steps - flight.begun > SWAP_STEPS_MAX
    }
}

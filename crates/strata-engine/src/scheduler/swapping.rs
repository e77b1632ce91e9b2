//! Sequences on their way to swap space and back (K12, S1).

use strata_kv::{AllocStatus, SequenceId, Swap, SwapDirection, SwapId, SwapOutcome};

use super::{Scheduler, StepPlan};
use crate::kv_swap::{SwapTook, SwapTrial};
use crate::sequence::Place;

/// A swap under way.
#[derive(Debug)]
pub(super) struct Flight {
    /// One, or the beams of a search.
    sequences: Vec<SequenceId>,
    direction: SwapDirection,
    /// Blocks that are being copied.
    blocks: usize,
}

impl Scheduler {
    /// What moving blocks took on trial, and how large they are: from now on it is known what a swap would take.
    pub(crate) fn set_swap_trial(&mut self, block_bytes: u64, trial: SwapTrial) {
        self.block_bytes = block_bytes;
        self.planner.swapped_out(trial.bytes, trial.write_seconds);
        self.planner.swapped_in(trial.bytes, trial.read_seconds);
    }

    /// A swap has come to its end, well or not; its sequences may be gone. Those whose swap failed have lost their KV, which
    /// is computed again. Returns whether this was one failure too many, so that no more swaps will be begun.
    pub(crate) fn finish_swap(&mut self, id: SwapId, outcome: Result<SwapTook, ()>) -> bool {
        let Some(flight) = self.flights.remove(&id) else { return false };
        let gave_up = match (outcome, flight.direction) {
            (Ok(took), SwapDirection::Out) => {
                self.planner.swapped_out(took.bytes, took.seconds);
                false
            }
            (Ok(took), SwapDirection::In) => {
                self.planner.swapped_in(took.bytes, took.seconds);
                false
            }
            (Err(()), _) => self.planner.swap_failed(),
        };
        let kept = if outcome.is_ok() { SwapOutcome::Done } else { SwapOutcome::Failed };
        self.blocks.finish_swap(id, kept);
        self.refused = false;
        for id in flight.sequences {
            let Some(sequence) = self.sequences.get_mut(&id) else { continue };
            match (kept, flight.direction) {
                (SwapOutcome::Failed, direction) => {
                    if direction == SwapDirection::In {
                        self.seats_reserved -= sequence.seats - 1;
                    }
                    self.recompute(id);
                }
                (SwapOutcome::Done, SwapDirection::Out) => {
                    sequence.place = Place::Swapped;
                    self.swapped.insert(sequence.running_key(), id);
                }
                (SwapOutcome::Done, SwapDirection::In) => {
                    sequence.place = Place::Running;
                    self.running.insert(sequence.running_key(), id);
                }
            }
        }
        gave_up
    }

    /// Sequences whose KV is in swap space, and which do not come back yet.
    pub(crate) fn num_swapped(&self) -> usize {
        self.swapped.len()
    }

    /// Swaps under way.
    pub(crate) fn num_swaps(&self) -> usize {
        self.flights.len()
    }

    /// Notes that the swap of `sequences` begins with this step.
    pub(super) fn depart(&mut self, sequences: Vec<SequenceId>, swap: Swap, plan: &mut StepPlan) {
        let flight = Flight { sequences, direction: swap.direction, blocks: swap.copies.len() };
        self.flights.insert(swap.id, flight);
        plan.swaps.push(swap);
    }

    /// Swaps in, in order, whoever finds room; the first that does not keeps all behind it, and new sequences, waiting.
    pub(super) fn bring_back(&mut self, plan: &mut StepPlan) {
        while self.seats_taken() < self.config.max_num_seqs
            && let Some((_, &id)) = self.swapped.first_key_value()
        {
            let group = self.group(id, &self.swapped);
            let sequences: Vec<_> = group.iter().map(|id| &self.sequences[id]).collect();
            let seats: usize = sequences.iter().map(|sequence| sequence.seats).sum();
            let fits = self.seats_taken() + seats <= self.config.max_num_seqs
                && self.blocks.can_swap_in(&group) == AllocStatus::Ok
                && self.has_room_to_grow(&sequences, self.blocks.swap_cost(&group));
            let swap = if fits { self.blocks.swap_in(&group).ok() } else { None };
            // Blocks will not become more by waiting where nothing runs: it takes its chance with all others.
            if swap.is_none() && !(self.running.is_empty() && self.flights.is_empty()) {
                return;
            }
            for &id in &group {
                let sequence = self.sequences.get_mut(&id).expect("a swapped sequence is known");
                self.swapped.remove(&sequence.running_key());
                sequence.place = Place::Arriving;
                if swap.is_some() {
                    self.seats_reserved += sequence.seats - 1;
                } else {
                    self.recompute(id);
                }
            }
            if let Some(swap) = swap {
                self.depart(group, swap, plan);
            }
        }
    }

    /// Blocks that come free when the swaps under way have ended.
    pub(super) fn blocks_leaving(&self) -> usize {
        let out = self.flights.values().filter(|flight| flight.direction == SwapDirection::Out);
        out.map(|flight| flight.blocks).sum()
    }

    /// Blocks that are being copied, either way.
    pub(super) fn blocks_under_way(&self) -> usize {
        self.flights.values().map(|flight| flight.blocks).sum()
    }

    pub(super) fn swaps_in_under_way(&self) -> bool {
        self.flights.values().any(|flight| flight.direction == SwapDirection::In)
    }

    pub(super) fn num_arriving(&self) -> usize {
        self.arriving().count()
    }

    /// Sequences whose KV is being swapped in.
    pub(super) fn arriving(&self) -> impl Iterator<Item = SequenceId> {
        let flights = self.flights.values().filter(|flight| flight.direction == SwapDirection::In);
        flights.flat_map(|flight| &flight.sequences).copied().filter(|id| self.sequences.contains_key(id))
    }
}

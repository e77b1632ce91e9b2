//! Sequences on their way to swap space and back (K12, S1).

use strata_kv::{AllocStatus, SequenceId, Swap, SwapDirection, SwapId, SwapOutcome};

use super::{Scheduler, StepPlan};
use crate::kv_swap::{SwapTook, SwapTrial};
use crate::sequence::Place;

/// A swap under way.
#[derive(Debug)]
pub(super) struct Flight {
    sequence: SequenceId,
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

    /// A swap has come to its end, well or not; its sequence may be gone. One whose swap failed has lost its KV, which is
    /// computed again. Returns whether this was one failure too many, so that no more swaps will be begun.
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
        let Some(sequence) = self.sequences.get_mut(&flight.sequence) else { return gave_up };
        match (kept, flight.direction) {
            (SwapOutcome::Failed, _) => self.recompute(flight.sequence),
            (SwapOutcome::Done, SwapDirection::Out) => {
                sequence.place = Place::Swapped;
                self.swapped.insert(sequence.running_key(), flight.sequence);
            }
            (SwapOutcome::Done, SwapDirection::In) => {
                sequence.place = Place::Running;
                self.running.insert(sequence.running_key(), flight.sequence);
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

    /// Notes that the swap of `id` begins with this step.
    pub(super) fn depart(&mut self, id: SequenceId, swap: Swap, plan: &mut StepPlan) {
        let flight = Flight { sequence: id, direction: swap.direction, blocks: swap.copies.len() };
        self.flights.insert(swap.id, flight);
        plan.swaps.push(swap);
    }

    /// Swaps in, in order, whoever finds room; the first that does not keeps all behind it, and new sequences, waiting.
    pub(super) fn bring_back(&mut self, plan: &mut StepPlan) {
        while self.seats_taken() < self.config.max_num_seqs
            && let Some((&key, &id)) = self.swapped.first_key_value()
        {
            let fits = self.blocks.can_swap_in(&[id]) == AllocStatus::Ok && {
                let sequence = &self.sequences[&id];
                self.has_room_to_grow(sequence, self.blocks.swap_cost(&[id]))
            };
            let swap = if fits { self.blocks.swap_in(&[id]).ok() } else { None };
            let sequence = self.sequences.get_mut(&id).expect("a swapped sequence is known");
            match swap {
                Some(swap) => {
                    self.swapped.remove(&key);
                    sequence.place = Place::Arriving;
                    self.depart(id, swap, plan);
                }
                // Blocks will not become more by waiting: it takes its chance with all others.
                None if self.running.is_empty() && self.flights.is_empty() => {
                    self.swapped.remove(&key);
                    self.recompute(id);
                }
                None => return,
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
        let known =
            |flight: &&Flight| flight.direction == SwapDirection::In && self.sequences.contains_key(&flight.sequence);
        self.flights.values().filter(known).map(|flight| flight.sequence)
    }
}

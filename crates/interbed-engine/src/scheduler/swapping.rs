//! Schedules sequences on their way to swap space and back.

use interbed_kv::{SequenceId, Swap, SwapDirection, SwapFailure, SwapId, SwapOutcome, SwapTook, SwapTrial};

use super::{Scheduler, StepPlan};
use crate::sequence::SequenceStatus;

impl Scheduler {
    /// Lets all preempted KV be computed again until there is a tier that it can be swapped to.
    pub(crate) fn await_swap_tier(&mut self) {
        self.planner.await_tier(true);
    }

    /// Notes that there is a tier that KV can be swapped to. Records how long moving blocks took in a trial, and how
    /// large a block is, so that the time of a swap can be estimated.
    pub(crate) fn set_swap_trial(&mut self, block_bytes: u64, trial: SwapTrial) {
        self.block_bytes = block_bytes;
        self.planner.await_tier(false);
        self.planner.swapped_out(trial.bytes, trial.write_seconds);
        self.planner.swapped_in(trial.bytes, trial.read_seconds);
    }

    /// Notes that a swap has ended, with or without success. Sequences of the swap may have ended. Sequences whose swap
    /// failed have lost their KV, which is computed again. Returns whether this was one failure too many, so that no
    /// more swaps are begun for a while.
    pub(crate) fn finish_swap(&mut self, id: SwapId, outcome: Result<SwapTook, &SwapFailure>) -> bool {
        let Some(flight) = self.flights.land(id) else { return false };
        let gave_up = match (outcome, flight.direction) {
            (Ok(took), SwapDirection::Out) => {
                self.planner.left((flight.blocks as u64).saturating_mul(self.block_bytes), took.bytes);
                self.planner.swapped_out(took.bytes, took.seconds);
                false
            }
            (Ok(took), SwapDirection::In) => {
                self.planner.swapped_in(took.bytes, took.seconds);
                false
            }
            // Room may be free again soon.
            (Err(SwapFailure::NoRoom), _) => false,
            (Err(SwapFailure::Broken(_)), direction) => self.planner.swap_failed(direction, self.flights.steps()),
        };
        let kept = if outcome.is_ok() { SwapOutcome::Done } else { SwapOutcome::Failed };
        self.blocks.finish_swap(id, kept);
        self.reconsider();
        let alive: Vec<_> = flight.sequences.into_iter().filter(|id| self.sequences.contains_key(id)).collect();
        let place = match flight.direction {
            SwapDirection::Out => SequenceStatus::Swapped,
            SwapDirection::In => SequenceStatus::Running(None),
        };
        match kept {
            SwapOutcome::Done => alive.iter().for_each(|&id| self.move_to(id, place)),
            SwapOutcome::Failed => self.recompute(&alive),
        }
        gave_up
    }

    /// Returns the number of sequences whose KV is in swap space, or on its way there or back.
    pub(crate) fn num_swapped(&self) -> usize {
        self.queues.leaving().len() + self.queues.swapped().len() + self.queues.arriving().len()
    }

    /// Returns the number of swaps in flight.
    pub(crate) fn num_swaps(&self) -> usize {
        self.flights.swaps()
    }

    /// Records that the swap of `sequences`, which have their new status, begins with this step.
    pub(super) fn depart(&mut self, sequences: Vec<SequenceId>, swap: Swap, plan: &mut StepPlan) {
        self.flights.depart(sequences, &swap);
        plan.swaps.push(swap);
    }
}

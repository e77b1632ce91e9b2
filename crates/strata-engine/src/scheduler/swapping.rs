//! Sequences on their way to swap space and back (K12, S1).

use strata_kv::{AllocStatus, SequenceId, Swap, SwapDirection, SwapId, SwapOutcome};

use super::shares::{Holding, Shares};
use super::{Scheduler, StepPlan};
use crate::TenantId;
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
    /// Blocks that come free when it has ended.
    num_freed: usize,
    /// Number of the step that began it.
    begun: u64,
}

/// Steps after which a swap that has not ended is taken to hang. One that plans nothing waits for swaps, so these are seconds.
pub(super) const SWAP_STEPS_MAX: u64 = 1000;

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
            (Err(()), direction) => self.planner.swap_failed(direction),
        };
        let kept = if outcome.is_ok() { SwapOutcome::Done } else { SwapOutcome::Failed };
        self.blocks.finish_swap(id, kept);
        self.reconsider();
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

    /// Sequences whose KV is in swap space, or on its way there or back.
    pub(crate) fn num_swapped(&self) -> usize {
        let under_way = self.flights.values().flat_map(|flight| &flight.sequences);
        self.swapped.len() + under_way.filter(|id| self.sequences.contains_key(id)).count()
    }

    /// Swaps under way.
    pub(crate) fn num_swaps(&self) -> usize {
        self.flights.len()
    }

    /// Notes that the swap of `sequences` begins with this step.
    pub(super) fn depart(&mut self, sequences: Vec<SequenceId>, swap: Swap, plan: &mut StepPlan) {
        let Swap { direction, num_freed, .. } = swap;
        let flight = Flight { sequences, direction, blocks: swap.transfers.len(), num_freed, begun: self.steps };
        self.flights.insert(swap.id, flight);
        plan.swaps.push(swap);
    }

    /// Swaps in, in order, whoever finds room; the first that does not keeps all behind it, and new sequences, waiting. Whoever
    /// would have more than its tenant's share gives way to what another tenant may claim: it may be for that claim that it
    /// left. Returns whether any has lost its KV, which would have waited for ever.
    pub(super) fn bring_back(&mut self, plan: &mut StepPlan) -> bool {
        if self.swapped.is_empty() || (self.kept_out && self.may_wait()) {
            return false;
        }
        let mut dropped = false;
        let mut shares = self.shares();
        let claimants = self.claimants(&shares);
        while self.seats_taken() < self.config.max_num_seqs
            && let Some(id) = self.swapped.values().copied().find(|&id| !self.gives_way(id, &shares, &claimants))
        {
            let group = self.group(id, &self.swapped);
            let swap = if !self.swaps_hang() && self.fits(&group) { self.blocks.swap_in(&group).ok() } else { None };
            if swap.is_none() && self.may_wait() {
                break;
            }
            for &id in &group {
                let sequence = self.sequences.get_mut(&id).expect("a swapped sequence is known");
                self.swapped.remove(&sequence.running_key());
                sequence.place = Place::Arriving;
                if swap.is_some() {
                    self.seats_reserved += sequence.seats - 1;
                    let sequence = &self.sequences[&id];
                    shares.add(sequence.tenant, self.holding_of(sequence));
                } else {
                    self.recompute(id);
                    dropped = true;
                }
            }
            if let Some(swap) = swap {
                self.depart(group, swap, plan);
            }
        }
        // Once nobody gives way any more, another one is the first.
        self.kept_out &= claimants.is_empty();
        dropped
    }

    /// Whether blocks may become more by waiting. They will not where nothing runs, or swaps hang: who is swapped out then
    /// takes its chance with all others.
    fn may_wait(&self) -> bool {
        let nothing_goes_on = self.running.is_empty() && self.flights.is_empty();
        !nothing_goes_on && !self.swaps_hang()
    }

    /// Whether the swapped `group` finds seats, blocks, also for its tokens that have no KV yet, and room to grow.
    fn fits(&mut self, group: &[SequenceId]) -> bool {
        let sequences: Vec<_> = group.iter().map(|id| &self.sequences[id]).collect();
        let seats: usize = sequences.iter().map(|sequence| sequence.seats).sum();
        let blocks = |tokens| self.blocks.num_required_blocks(tokens, 0);
        let pending: usize = sequences.iter().map(|one| blocks(one.tokens.len()) - blocks(one.computed)).sum();
        if self.seats_taken() + seats > self.config.max_num_seqs
            || !self.has_room_to_grow(&sequences, self.blocks.swap_cost(group) + pending)
        {
            return false;
        }
        // This looks at every token.
        self.kept_out = self.blocks.can_swap_in(group) != AllocStatus::Ok;
        !self.kept_out
    }

    /// Whether the swapped `id`, with all that comes back with it, leaves its place to what one of `claimants` waits for.
    fn gives_way(&self, id: SequenceId, shares: &Shares, claimants: &[Option<TenantId>]) -> bool {
        let sequence = &self.sequences[&id];
        let others_claim = claimants.iter().any(|&other| other != sequence.tenant && shares.may_claim(other, 0));
        if !others_claim || sequence.is_urgent() {
            return false;
        }
        let group = self.group(id, &self.swapped);
        let holdings = group.iter().map(|id| self.holding_of(&self.sequences[id]));
        shares.would_be_above(sequence.tenant, holdings.fold(Holding::default(), Holding::with))
    }

    /// Blocks that come free when the swaps under way have ended, but for those that hang.
    pub(super) fn blocks_leaving(&self) -> usize {
        self.flights.values().filter(|flight| !self.hangs(flight)).map(|flight| flight.num_freed).sum()
    }

    /// Blocks that are being copied, either way.
    pub(super) fn blocks_under_way(&self) -> usize {
        self.flights.values().map(|flight| flight.blocks).sum()
    }

    /// Blocks of swaps that hang: nobody is to count on them.
    pub(super) fn blocks_hanging(&self) -> usize {
        self.flights.values().filter(|flight| self.hangs(flight)).map(|flight| flight.blocks).sum()
    }

    /// Whether blocks are on their way in, and will arrive.
    pub(super) fn swaps_in_under_way(&self) -> bool {
        self.flights.values().any(|flight| flight.direction == SwapDirection::In && !self.hangs(flight))
    }

    /// Whether some swap does not end: then no other is begun.
    pub(super) fn swaps_hang(&self) -> bool {
        self.flights.values().any(|flight| self.hangs(flight))
    }

    fn hangs(&self, flight: &Flight) -> bool {
        self.steps - flight.begun > SWAP_STEPS_MAX
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

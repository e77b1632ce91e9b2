//! Decides which sequence has to make room when blocks run out, and whether its KV is swapped out or dropped.

use interbed_kv::{AllocStatus, BlockError, SequenceId};

use super::long::Growing;
use super::shares::Shares;
use super::{Scheduler, StepPlan};
use crate::preemption::{Effort, Way};
use crate::sequence::{Sequence, SequenceStatus};

impl Scheduler {
    /// Makes sure that every token of `id` has a slot. If blocks are short, this preempts other sequences, unless
    /// enough blocks are already on their way out. `leaving` counts the blocks on their way out that no other sequence
    /// waits for. Returns whether `id` takes part in this pass.
    pub(super) fn grow(&mut self, id: SequenceId, leaving: &mut usize, plan: &mut StepPlan) -> bool {
        loop {
            let sequence = &self.sequences[&id];
            if sequence.is_long() {
                match self.grow_long(id, plan) {
                    Growing::Grown => return true,
                    Growing::Waits => return false,
                    Growing::Short => {}
                }
                if !self.make_way(id, 1, leaving, plan) {
                    return false;
                }
                continue;
            }
            let missing = self.blocks.unseen_token_ids(id, sequence.tokens());
            if missing.is_empty() && !self.blocks.lacks_place(id) {
                return true;
            }
            let short = match self.blocks.append(id, missing) {
                Ok(()) => return true,
                Err(BlockError::OutOfBlocks { need, available }) => need.saturating_sub(available).max(1),
                Err(_) if self.long_limits(sequence).is_some() => {
                    self.become_long(id, plan);
                    return false;
                }
                // The sequence has outgrown the whole pool, so preempting others cannot help.
                Err(_) => usize::MAX,
            };
            if !self.make_way(id, short, leaving, plan) {
                return false;
            }
        }
    }

    /// Takes blocks from other sequences for `id`, which lacks `short` blocks, unless enough are on their way out.
    /// Returns whether `id` should try again now.
    fn make_way(&mut self, id: SequenceId, short: usize, leaving: &mut usize, plan: &mut StepPlan) -> bool {
        if self.make_room_below() {
            return true;
        }
        if *leaving >= short {
            *leaving -= short;
            return false;
        }
        let Some(victim) = self.victim() else { return false };
        let itself = self.group(victim).contains(&id);
        let is_spared = self.sequences[&victim].is_spared();
        // Sequences that are being swapped in hold blocks, but cannot be preempted yet.
        if (itself || is_spared) && self.flights.any_arrives() {
            return false;
        }
        // All remaining sequences were promised blocks, but some blocks are still on their way out. Beams that wait to
        // copy the same block together lack fewer blocks than the sum of what each lacks.
        if is_spared && self.flights.blocks_leaving() > 0 {
            return false;
        }
        *leaving += self.preempt(victim, plan);
        !itself
    }

    /// Returns the running sequence to preempt next: the last in order among those of tenants above their share, or
    /// among all. Sequences that were preempted often enough are spared, because they were admitted only while all of
    /// them together fit if the others make room.
    fn victim(&self) -> Option<SequenceId> {
        let above = if self.tenants.of.len() > 1 { self.victim_above(&self.shares()) } else { None };
        above.or_else(|| self.last_running(|sequence| !sequence.is_spared())).or_else(|| self.last_running(|_| true))
    }

    /// Returns the running sequence to preempt next among those of tenants above their share. A sequence that had to
    /// let many pass is not taken.
    pub(super) fn victim_above(&self, shares: &Shares) -> Option<SequenceId> {
        self.last_running(|sequence| shares.is_above(sequence.request.tenant) && !sequence.is_urgent())
    }

    fn last_running(&self, chosen: impl Fn(&Sequence) -> bool) -> Option<SequenceId> {
        self.queues.running().rev().find(|id| chosen(&self.sequences[id]))
    }

    /// Preempts the running `id`, and all other beams if it is a beam. Returns how many of their blocks become free
    /// only when a swap has ended; the others are free now.
    pub(super) fn preempt(&mut self, id: SequenceId, plan: &mut StepPlan) -> usize {
        let group = self.group(id);
        let way = match self.blocks.can_swap_out(&group) {
            // The KV that a long sequence has on disk need not be computed again, and the rest is short.
            _ if self.sequences[&id].is_long() => Way::Recompute,
            AllocStatus::Ok if !self.flights.any_hangs() => {
                self.planner.choose(self.effort(&group), self.flights.steps())
            }
            AllocStatus::Ok | AllocStatus::Later | AllocStatus::Never { .. } => Way::Recompute,
        };
        let swap = match way {
            Way::Recompute => None,
            // The destination is reserved before anything moves. If that fails, the KV is computed again.
            Way::Swap => self.blocks.swap_out(&group).ok(),
        };
        self.reconsider();
        for &id in &group {
            plan.take_entry(id);
            plan.preempted.push(id);
            let sequence = self.sequences.get_mut(&id).expect("a running sequence is known");
            self.queues.take(sequence);
            sequence.past.preemptions += 1;
            sequence.past.swaps += u32::from(swap.is_some());
            // Blocks that are being fetched for the sequence are not among the blocks that it comes back to.
            sequence.status = SequenceStatus::Leaving;
            self.queues.put(sequence);
        }
        match swap {
            Some(swap) => {
                self.preemptions.swap += 1;
                let num_freed = swap.num_freed;
                self.depart(group, swap, plan);
                num_freed
            }
            None => {
                self.preemptions.recompute += 1;
                group.iter().for_each(|&id| self.blocks.keep_last_states(id));
                self.recompute(&group);
                0
            }
        }
    }

    /// Returns the sequences that are preempted and come back together with `id`, in order: `id` itself, or all beams
    /// of its search.
    pub(super) fn group(&self, id: SequenceId) -> Vec<SequenceId> {
        let one = &self.sequences[&id];
        let Some(search) = one.search() else { return vec![id] };
        let in_search = |id: &SequenceId| self.sequences[id].search() == Some(search);
        match one.status {
            SequenceStatus::Running(_) => self.queues.running().filter(in_search).collect(),
            SequenceStatus::Swapped => self.queues.swapped().filter(in_search).collect(),
            SequenceStatus::Waiting | SequenceStatus::Leaving | SequenceStatus::Arriving | SequenceStatus::Fetching => {
                vec![id]
            }
        }
    }

    /// Drops the KV of `group`, whose sequences then wait at the front of the queue. Beams wait as one sequence.
    pub(super) fn recompute(&mut self, group: &[SequenceId]) {
        let Some(&first) = group.first() else { return };
        for &id in group {
            self.part(id);
            self.blocks.free(id);
            self.queues.take(&self.sequences[&id]);
        }
        let num_common = self.gather(group);
        let sequence = self.sequences.get_mut(&first).expect("it stands for all of them");
        sequence.status = SequenceStatus::Waiting;
        sequence.lose_kv(num_common);
        self.queues.put(sequence);
    }

    /// Returns the work that it takes to bring the KV of `group` back, by swapping and by computing.
    pub(super) fn effort(&self, group: &[SequenceId]) -> Effort {
        let swap_blocks = self.blocks.swap_cost(group);
        let computed: usize = group.iter().map(|id| self.sequences[id].computed).sum();
        // Beams share most of their tokens.
        let computed = computed.min(swap_blocks * self.blocks.block_size());
        // The prefix cache holds published blocks until others want them. Others will want them, since nothing else is
        // left to evict. Blocks that others hold as well stay.
        let others = self.queues.running().filter(|other| !group.contains(other));
        let soonest = others.clone().map(|other| self.tokens_left(&self.sequences[&other])).min().unwrap_or(0);
        let exclusive = self.blocks.blocks_exclusive(group) * self.blocks.block_size();
        let taken = soonest.saturating_mul(others.count()).min(exclusive);
        let unpublished = self.blocks.recompute_cost(group).min(computed);
        let block_bytes = self.block_bytes;
        Effort {
            swap_bytes: (swap_blocks as u64).saturating_mul(block_bytes),
            bytes_ahead: (self.flights.blocks_in_flight() as u64).saturating_mul(block_bytes),
            recompute_tokens: computed.min(unpublished.saturating_add(taken)),
        }
    }
}

impl StepPlan {
    /// Takes `id` out of the pass, if it is in the pass.
    pub(super) fn take_entry(&mut self, id: SequenceId) {
        if let Some(index) = self.entries.iter().position(|entry| entry.id == id) {
            let entry = self.entries.remove(index);
            self.budget += entry.count;
            self.regain_time(&entry);
        }
    }
}

//! Decides which sequences are admitted, from the waiting queue and from swap space.
//!
//! Candidates are considered in one order:
//!
//! 1. sequences that were swapped out, by [`Rank`](crate::sequence::Rank);
//! 2. waiting sequences: first those of the tenant that holds the fewest blocks, among equals of the one whose turn was
//!    longest ago; within a tenant by `Rank`.
//!
//! For each of the two, one list of rules decides whether a candidate is admitted, and if not, gives the reason, an
//! [`Admission`].

use std::collections::VecDeque;

use interbed_kv::{AllocStatus, SequenceId};

use super::long::LongLimits;
use super::shares::{Aged, Holding, Shares};
use super::tenants::Tenant;
use super::wait::{Admission, Wait};
use super::{Admitted, Rejected, Scheduler, StepPlan};
use crate::TenantId;
use crate::sequence::{Requested, Sequence, SequenceStatus};

/// The number of waiting sequences that admission looks at in one step. It bounds a step's cost when the queue is long.
pub(super) const LOOKAHEAD: usize = 64;

/// The waiting sequences of one tenant, and the blocks that the tenant holds.
struct Queue {
    tenant: Option<TenantId>,
    blocks: usize,
    /// The tenant's [`Tenant::turn`].
    turn: u64,
    waiting: VecDeque<SequenceId>,
}

impl Scheduler {
    /// Swaps sequences in, in order, while there is room. The first sequence that finds no room keeps all swapped-out
    /// ones behind it and new sequences waiting. A sequence that gives way to a claim does not keep others waiting,
    /// since it may have been preempted for that claim. Returns whether any sequence dropped its KV because it would
    /// have waited for ever.
    pub(super) fn bring_back(&mut self, plan: &mut StepPlan) -> bool {
        if self.queues.swapped().len() == 0 || (self.kept_out && self.may_wait()) {
            return false;
        }
        let mut dropped = false;
        let mut shares = self.shares();
        let claimants = self.claimants(&shares);
        while let Some((id, admission)) = self.next_return(&shares, &claimants) {
            self.kept_out = admission == Admission::Waits(Wait::Blocks);
            let group = self.group(id);
            let swap = match admission {
                Admission::Waits(Wait::Seats) => break,
                Admission::Waits(_) | Admission::Never { .. } => None,
                Admission::Now => self.blocks.swap_in(&group).ok(),
            };
            match swap {
                Some(swap) => {
                    for &id in &group {
                        self.move_to(id, SequenceStatus::Arriving);
                        let sequence = &self.sequences[&id];
                        shares.add(sequence.request.tenant, self.holding_of(sequence));
                    }
                    self.depart(group, swap, plan);
                }
                None if self.may_wait() => break,
                None => {
                    self.recompute(&group);
                    dropped = true;
                }
            }
        }
        // Once sequences no longer give way, another sequence may be the first.
        self.kept_out &= claimants.is_empty();
        dropped
    }

    /// Admits waiting sequences while the pass has room. A sequence that has to wait does not stop those behind it,
    /// unless they would wait for the same reason, or many have passed it already.
    pub(super) fn admit(&mut self, plan: &mut StepPlan) {
        if !plan.has_room() || !self.may_admit() {
            return;
        }
        let mut shares = self.shares();
        let mut aged = self.aged_swapped(&shares);
        if aged.keep_all_out() {
            return;
        }
        let mut queues = self.waiting_queues(&shares);
        let mut short = Vec::new();
        let mut all_short = true;
        while plan.has_room()
            && let Some(queue) = next_queue(&mut queues)
            && let Some(id) = queue.waiting.pop_front()
        {
            let admission = self.admission(&self.sequences[&id], &shares, &aged);
            match admission {
                Admission::Never { need, limit } => {
                    let sequence = self.remove(id).expect("a waiting sequence is known");
                    plan.rejected.push(Rejected { sequence, need, limit });
                }
                Admission::Waits(wait) if wait.is_shortage() && self.make_room_below() => {
                    queue.waiting.push_front(id);
                }
                Admission::Waits(wait) if wait.may_claim() && self.claim(id, &mut shares, plan) => {
                    queue.waiting.push_front(id);
                }
                Admission::Waits(wait) => {
                    let sequence = &self.sequences[&id];
                    all_short &= wait.is_shortage() || wait == Wait::AgedFirst;
                    if wait.stops_queue() {
                        queue.waiting.clear();
                    }
                    if wait.is_shortage() {
                        short.push(id);
                        if sequence.is_urgent() {
                            aged.add(sequence.request.tenant, &shares);
                        }
                    }
                }
                Admission::Now => {
                    self.start(id, plan);
                    let holding = self.holding_of(&self.sequences[&id]);
                    queue.blocks += holding.blocks;
                    queue.turn = self.tenants.of[&queue.tenant].turn;
                    shares.add(queue.tenant, holding);
                    self.plan_entry(id, plan);
                }
            }
        }
        self.refused = all_short && plan.has_room() && plan.admitted.is_empty() && plan.preempted.is_empty();
        self.count_overtaken(plan, &short);
    }

    /// Returns whether any sequence waits for which admission may succeed.
    pub(super) fn may_admit(&self) -> bool {
        let any_runs = self.queues.running().len() + self.queues.fetching().len() > 0;
        self.num_waiting() > 0 && !(self.refused && any_runs)
    }

    /// Returns the reason why the first waiting sequence waits; `None` if it need not wait.
    pub(crate) fn first_wait(&self) -> Option<Wait> {
        let shares = self.shares();
        let first = &self.sequences[&self.queues.waiting().next()?];
        match self.admission(first, &shares, &self.aged_swapped(&shares)) {
            Admission::Waits(wait) => Some(wait),
            Admission::Now | Admission::Never { .. } => None,
        }
    }

    /// Decides whether `one`, which waits, is admitted. The first rule that keeps it out gives the reason.
    pub(super) fn admission(&self, one: &Sequence, shares: &Shares, aged: &Aged) -> Admission {
        let seats_free = self.config.max_num_seqs - self.queues.seats();
        let wait = None
            .or_else(|| aged.keep_out(one.request.tenant).then_some(Wait::AgedFirst))
            .or_else(|| (seats_free == 0).then_some(Wait::Seats))
            .or_else(|| self.is_behind_swapped(one, shares).then_some(Wait::SwappedFirst));
        if let Some(wait) = wait {
            return Admission::Waits(wait);
        }
        if let Some(LongLimits { least, .. }) = self.long_limits(one) {
            if one.awaits_tails {
                return Admission::Waits(Wait::Tails);
            }
            return self.short_of(&[one], least).map_or(Admission::Now, Admission::Waits);
        }
        if self.is_awaiting(one) {
            return Admission::Waits(Wait::Identity);
        }
        let found = self.blocks.look_up(one.tokens(), &one.hashes);
        let wait = match found.status {
            AllocStatus::Never { need, limit } => return Admission::Never { need, limit },
            AllocStatus::Later => Some(Wait::Blocks),
            AllocStatus::Ok => None
                .or_else(|| (seats_free < one.seats()).then_some(Wait::BeamSeats))
                .or_else(|| self.prefix_is_being_computed(one, found.num_cached_tokens).then_some(Wait::Prefix))
                .or_else(|| self.short_of(&[one], found.num_blocks))
                .or_else(|| self.takes_what_is_kept(one, found.num_blocks).then_some(Wait::Kept)),
        };
        wait.map_or(Admission::Now, Admission::Waits)
    }

    /// Returns the first swapped-out sequence that does not give way to a claim, and whether it comes back.
    fn next_return(&self, shares: &Shares, claimants: &[Option<TenantId>]) -> Option<(SequenceId, Admission)> {
        let mut all = self.queues.swapped().map(|id| (id, self.return_of(id, shares, claimants)));
        all.find(|(_, admission)| *admission != Admission::Waits(Wait::Claimed))
    }

    /// Decides whether the swapped-out `id` comes back, together with all sequences of its group.
    pub(super) fn return_of(&self, id: SequenceId, shares: &Shares, claimants: &[Option<TenantId>]) -> Admission {
        let seats_free = self.config.max_num_seqs - self.queues.seats();
        let wait = None
            .or_else(|| (seats_free == 0).then_some(Wait::Seats))
            .or_else(|| self.gives_way(id, shares, claimants).then_some(Wait::Claimed))
            .or_else(|| self.flights.any_hangs().then_some(Wait::SwapHangs));
        if let Some(wait) = wait {
            return Admission::Waits(wait);
        }
        let group = self.group(id);
        let sequences: Vec<_> = group.iter().map(|id| &self.sequences[id]).collect();
        let seats: usize = sequences.iter().map(|sequence| sequence.seats()).sum();
        let blocks = |tokens| self.blocks.num_required_blocks(tokens, 0);
        // Tokens that have no KV yet need blocks, too.
        let pending: usize = sequences.iter().map(|one| blocks(one.len()) - blocks(one.computed)).sum();
        None.or_else(|| (seats_free < seats).then_some(Wait::BeamSeats))
            .or_else(|| self.short_of(&sequences, self.blocks.swap_cost(&group) + pending))
            // This check looks at every token, so it comes last.
            .or_else(|| (self.blocks.can_swap_in(&group) != AllocStatus::Ok).then_some(Wait::Blocks))
            .map_or(Admission::Now, Admission::Waits)
    }

    /// Returns whether swapped-out sequences come before the waiting `one`. If the first of them belongs to the same
    /// tenant, it comes first unless `one` is more urgent or important. If it belongs to another tenant, it comes first
    /// if the tenant of `one` is above its share.
    fn is_behind_swapped(&self, one: &Sequence, shares: &Shares) -> bool {
        let Some(first) = self.queues.swapped().next().map(|id| &self.sequences[&id]) else { return false };
        if one.request.tenant != first.request.tenant {
            return shares.is_above(one.request.tenant);
        }
        !one.rank().outranks(&first.rank())
    }

    /// Returns the swapped-out sequences that many others have passed, so that no other is admitted before them.
    /// Sequences of tenants above their share are left out.
    pub(super) fn aged_swapped(&self, shares: &Shares) -> Aged {
        let mut aged = Aged::default();
        let urgent = self.queues.swapped().map(|id| &self.sequences[&id]).take_while(|sequence| sequence.is_urgent());
        for sequence in urgent.filter(|sequence| !shares.is_above(sequence.request.tenant)) {
            aged.add(sequence.request.tenant, shares);
        }
        aged
    }

    /// Returns whether the swapped-out `id`, with its whole group, gives way to one of `claimants`.
    fn gives_way(&self, id: SequenceId, shares: &Shares, claimants: &[Option<TenantId>]) -> bool {
        let sequence = &self.sequences[&id];
        let others_claim =
            claimants.iter().any(|&other| other != sequence.request.tenant && shares.may_claim(other, 0));
        if !others_claim || sequence.is_urgent() {
            return false;
        }
        let group = self.group(id);
        let holdings = group.iter().map(|id| self.holding_of(&self.sequences[id]));
        shares.would_be_above(sequence.request.tenant, holdings.fold(Holding::default(), Holding::with))
    }

    /// Returns whether waiting may free blocks. It does not if nothing runs or a swap hangs; swapped-out KV is then
    /// dropped, so that its sequence can be admitted like any other.
    fn may_wait(&self) -> bool {
        let nothing_goes_on = self.queues.running().len() == 0 && self.flights.is_empty();
        !nothing_goes_on && !self.flights.any_hangs()
    }

    /// Returns whether another sequence is computing, or fetching, blocks that `sequence` could share once they are
    /// done. `cached` tokens of `sequence` are cached already. Waiting a few steps is then cheaper than computing the
    /// blocks twice.
    fn prefix_is_being_computed(&self, sequence: &Sequence, cached: usize) -> bool {
        let block = self.blocks.block_size();
        let computing = |other: &&Sequence| other.fresh() > 1 && other.hashes.root() == sequence.hashes.root();
        let known = self.queues.running().chain(self.queues.fetching()).map(|id| &self.sequences[&id]);
        let mut others = known.filter(computing).peekable();
        if !self.blocks.prefix_caching() || !sequence.hashes.root().is_shared() || others.peek().is_none() {
            return false;
        }
        // The last token is always computed again, so a block that ends with it is of no use.
        let usable = (sequence.len() - 1) / block * block;
        others.any(|other| {
            let pairs = sequence.tokens()[..usable].iter().zip(other.tokens());
            let common = pairs.take_while(|(a, b)| a == b).count();
            // Where layers keep states, others can go on behind a prompt, and seldom before its end.
            let goes_on = !self.blocks.keeps_states() || common >= (other.len() - 1) / block * block;
            goes_on && common / block * block > cached.max(other.computed / block * block)
        })
    }

    /// Returns the tenants that have nothing, and wait for what they may [`claim`](Self::claim).
    pub(super) fn claimants(&self, shares: &Shares) -> Vec<Option<TenantId>> {
        if self.tenants.of.len() < 2 {
            return Vec::new();
        }
        let claims = |queue: &Queue| queue.waiting.iter().any(|&id| shares.may_claim(queue.tenant, self.blocks_of(id)));
        self.waiting_queues(shares).into_iter().filter(claims).map(|queue| queue.tenant).collect()
    }

    /// Preempts a sequence of a tenant that has more than its share, for `id`, whose tenant has none. Returns whether
    /// its blocks and seat are free now.
    fn claim(&mut self, id: SequenceId, shares: &mut Shares, plan: &mut StepPlan) -> bool {
        let (tenant, need) = (self.sequences[&id].request.tenant, self.blocks_of(id));
        let enough_leave = self.flights.blocks_leaving() >= need;
        if self.tenants.of.len() < 2 || !shares.may_claim(tenant, need) || enough_leave {
            return false;
        }
        let Some(victim) = self.victim_above(shares) else { return false };
        let leaving = self.preempt(victim, plan);
        *shares = self.shares();
        leaving == 0
    }

    /// Counts, for each waiting sequence, the later ones that were admitted before it, and the ones of other tenants
    /// that it had to let pass. Also counts those that passed the first swapped-out sequence.
    fn count_overtaken(&mut self, plan: &StepPlan, short: &[SequenceId]) {
        let first_swapped = self.queues.swapped().next();
        if let Some(first) = first_swapped.filter(|_| !plan.admitted.is_empty()) {
            for id in self.group(first) {
                self.overtake(id, plan.admitted.len() as u32);
            }
        }
        for Admitted { id, .. } in &plan.admitted {
            let Requested { group, tenant, .. } = self.sequences[id].request;
            let earlier = |id: &SequenceId| self.sequences[id].request.group < group;
            let others = short.iter().copied().filter(|id| self.sequences[id].request.tenant != tenant);
            let passed: Vec<_> = self.queues.waiting_of(tenant).filter(earlier).chain(others).collect();
            passed.into_iter().for_each(|id| self.overtake(id, 1));
        }
    }

    /// Records that `by` more sequences have passed `id`. The sequence may become urgent, and so move in its queue.
    fn overtake(&mut self, id: SequenceId, by: u32) {
        let sequence = self.sequences.get_mut(&id).expect("a sequence in a queue is known");
        self.queues.take(sequence);
        sequence.past.overtaken += by;
        self.queues.put(sequence);
    }

    /// Returns what each tenant holds, and its fair share.
    pub(super) fn shares(&self) -> Shares {
        let all = Holding { blocks: self.blocks.usable(), seats: self.config.max_num_seqs };
        let mut shares = Shares::new(self.tenants.of.keys().copied(), all);
        if self.tenants.of.len() > 1 {
            for sequence in self.holders() {
                shares.add(sequence.request.tenant, self.holding_of(sequence));
            }
        }
        shares
    }

    fn waiting_queues(&self, shares: &Shares) -> Vec<Queue> {
        let each = LOOKAHEAD.div_ceil(self.tenants.of.len().max(1));
        let queue = |(&tenant, &Tenant { turn, .. }): (&Option<TenantId>, &Tenant)| {
            let waiting = self.queues.waiting_of(tenant).take(each).collect();
            Queue { tenant, blocks: shares.of(tenant).blocks, turn, waiting }
        };
        self.tenants.of.iter().map(queue).collect()
    }

    /// Returns what `sequence` takes of its tenant's share while it runs. A search takes all its seats from the start.
    fn holding_of(&self, sequence: &Sequence) -> Holding {
        Holding { blocks: self.blocks_taken(sequence), seats: sequence.seats() }
    }

    /// Returns the number of blocks that the tokens of `id` take.
    pub(super) fn blocks_of(&self, id: SequenceId) -> usize {
        self.blocks_taken(&self.sequences[&id])
    }
}

/// Returns the queue of the tenant that holds the fewest blocks; among equal ones, the queue whose turn was longest
/// ago.
fn next_queue(queues: &mut [Queue]) -> Option<&mut Queue> {
    queues.iter_mut().filter(|queue| !queue.waiting.is_empty()).min_by_key(|queue| (queue.blocks, queue.turn))
}

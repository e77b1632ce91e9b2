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

use std::collections::{HashSet, VecDeque};
use std::fmt;

use interbed_kv::{AllocStatus, SequenceId};

use super::long::LongLimits;
use super::shares::{Aged, Holding, Shares};
use super::tenants::Tenant;
use super::{Admitted, Rejected, Scheduler, StepPlan};
use crate::TenantId;
use crate::forecast::{Growth, blocks_wanted};
use crate::sequence::{Requested, Sequence, SequenceStatus};

/// The number of waiting sequences that admission looks at in one step. It bounds a step's cost when the queue is long.
pub(super) const LOOKAHEAD: usize = 64;

/// The decision whether a sequence is admitted, with the reason if it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Now,
    /// The sequence is not admitted now, for this reason.
    Waits(Wait),
    /// The sequence needs more KV blocks than the engine has in total.
    Never {
        need: usize,
        limit: usize,
    },
}

/// The reason why a sequence has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// No more sequences may run, because `max_num_seqs` is reached.
    Seats,
    /// The sequence belongs to a beam search, whose beams must all run at the same time. With them, more than
    /// `max_num_seqs` sequences would run.
    BeamSeats,
    /// Another sequence must be admitted first, because it was passed over or preempted too often.
    AgedFirst,
    /// A sequence that is swapped out must return first.
    SwappedFirst,
    /// The sequence is swapped out. If it returned, its tenant would hold more than its fair share of blocks or of
    /// running sequences. It waits because another tenant, which holds nothing, waits to have a sequence admitted.
    Claimed,
    /// The sequence is swapped out, and an earlier swap has hung. No other swap begins until the hanging swap ends.
    SwapHangs,
    /// Other sequences are computing or fetching KV blocks that the sequence can share once they are complete.
    Prefix,
    /// To be admitted, the sequence would have to evict cached blocks that lie within another tenant's fair share of
    /// blocks. It waits instead until other sequences of its own tenant release blocks.
    Kept,
    /// Too few KV blocks are available for the tokens that the sequence already has.
    Blocks,
    /// Enough KV blocks are available for the tokens that the sequence already has, but not for the expected growth of
    /// this sequence and of those that hold blocks.
    Growth,
    /// The KV of the sequence does not fit in memory, so the sequence needs a KV tier on disk. This tier is attached
    /// once the model's identity, which is a hash of the weights, is known.
    Identity,
    /// The sequence was preempted so often that it must not be preempted again. Too few KV blocks exist for it and all
    /// other such sequences to reach their maximum lengths, so it is not admitted yet.
    VeryEnd,
}

impl Wait {
    /// Returns whether the reason is a lack of blocks, or of several seats at once, which sequences behind this one may
    /// not need.
    fn is_shortage(self) -> bool {
        matches!(self, Self::BeamSeats | Self::Blocks | Self::Growth | Self::VeryEnd)
    }

    /// Returns whether sequences of the same tenant behind this one have to wait too.
    fn stops_queue(self) -> bool {
        // Smaller sequences of the tenant would otherwise keep this one waiting for ever.
        matches!(self, Self::Seats | Self::AgedFirst | Self::SwappedFirst | Self::Kept)
    }

    /// Returns whether the reason would go away if another sequence made room.
    fn may_claim(self) -> bool {
        self.is_shortage() || matches!(self, Self::Seats | Self::SwappedFirst)
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Seats => "all seats are taken (--max-num-seqs)",
            Self::BeamSeats => "its beams need more seats than are free (--max-num-seqs)",
            Self::AgedFirst => "a request that waits for longer comes first",
            Self::SwappedFirst => "a request that was swapped out comes first",
            Self::Claimed => "another tenant has a claim on its blocks",
            Self::SwapHangs => "a swap does not end",
            Self::Prefix => "another request computes the same prefix",
            Self::Kept => "what is free and its tenant's own is short, and the rest is cached for others",
            Self::Blocks => "KV blocks are short",
            Self::Growth => "KV blocks would be short soon",
            Self::Identity => "it is longer than memory, and the model is yet to be read wholly before KV goes to disk",
            Self::VeryEnd => "KV blocks would be short before its end, and it has made room too often",
        })
    }
}

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

    /// Returns the reason, if there is one, why `sequences`, which take `need` blocks now, are not expected to find
    /// enough blocks to grow beside all others. Sequences that must not be preempted again have to find blocks up to
    /// their ends. Any other sequence is admitted when no other holds blocks, however far it may grow.
    pub(super) fn short_of(&self, sequences: &[&Sequence], need: usize) -> Option<Wait> {
        let together = || self.holders().chain(sequences.iter().copied());
        let any_spared = sequences.iter().any(|sequence| sequence.is_spared());
        if any_spared && self.blocks_promised(together()) > self.blocks.usable() {
            return Some(Wait::VeryEnd);
        }
        let stats = self.blocks.stats();
        let available = stats.blocks_free + stats.blocks_cached;
        if self.holders().next().is_none() {
            return (need > available).then_some(Wait::Blocks);
        }
        (need + self.growth_of(together()) > available).then_some(Wait::Growth)
    }

    /// Returns whether `one`, which takes `need` blocks now, would evict blocks that other tenants have cached within
    /// their shares, while sequences of its own tenant hold blocks that they will give back.
    fn takes_what_is_kept(&self, one: &Sequence, need: usize) -> bool {
        let kept = self.blocks.blocks_kept_from(one.hashes.root());
        if kept == 0 || !self.holders().any(|other| other.request.tenant == one.request.tenant) {
            return false;
        }
        let stats = self.blocks.stats();
        let growth = self.growth_of(self.holders().chain(std::iter::once(one)));
        need + growth + kept > stats.blocks_free + stats.blocks_cached
    }

    /// Returns the number of blocks that `sequences` are expected to take as they grow.
    fn growth_of<'a>(&self, sequences: impl Iterator<Item = &'a Sequence>) -> usize {
        let mut growths: Vec<_> = sequences.flat_map(|one| self.growths(one)).collect();
        blocks_wanted(&mut growths, self.blocks.block_size())
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
        let computing = |other: &&Sequence| other.pending() > 1 && other.hashes.root() == sequence.hashes.root();
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
            common / block * block > cached.max(other.computed / block * block)
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

    /// Returns the sequences that hold blocks and are not on their way out.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Sequence> {
        let ids = self.queues.running().chain(self.queues.fetching()).chain(self.queues.arriving());
        ids.map(|id| &self.sequences[&id])
    }

    /// Returns the number of blocks that must be kept for those of `sequences` that must not be preempted again, up to
    /// their ends. The full blocks of a prompt count once for all beams of a search. Blocks of swaps that hang count
    /// too, because no sequence can have them.
    pub(super) fn blocks_promised<'a>(&self, sequences: impl Iterator<Item = &'a Sequence>) -> usize {
        let blocks_total = self.blocks.stats().blocks_total;
        let mut searches = HashSet::new();
        let promised = |one: &Sequence| {
            // The last token has no KV.
            let all = match self.long_limits(one) {
                Some(limits) => limits.least,
                None => self.blocks.num_required_blocks(one.prompt_len.max(one.tokens_max.saturating_sub(1)), 0),
            };
            let shared = one.search().map_or(0, |_| one.prompt_len / self.blocks.block_size());
            let is_counted = one.search().is_some_and(|search| !searches.insert(search));
            let blocks = (all - shared).saturating_mul(one.seats()).saturating_add(if is_counted { 0 } else { shared });
            // A sequence that would outgrow the whole pool is rejected when it does.
            blocks.min(blocks_total)
        };
        sequences.filter(|one| one.is_spared()).map(promised).sum::<usize>() + self.flights.blocks_hanging()
    }

    /// Returns the number of tokens that `sequence` is expected still to generate. For a sequence that must not be
    /// preempted again, this is all that it may generate.
    pub(super) fn tokens_left(&self, sequence: &Sequence) -> usize {
        let left_max = sequence.tokens_max.saturating_sub(sequence.len());
        if sequence.is_spared() { left_max } else { self.forecast.tokens_left(sequence.generated(), left_max) }
    }

    /// Returns how a sequence will grow: once, or, if it is the trunk of a search, once for each beam.
    pub(super) fn growths(&self, sequence: &Sequence) -> impl Iterator<Item = Growth> + use<> {
        let tokens = sequence.len();
        let blocks_held = self.blocks_taken(sequence);
        let growth = match self.long_limits(sequence) {
            // A long sequence does not grow in memory, because the stretches that it computes push older ones out.
            Some(_) => Growth { tokens_left: 0, slots_empty: 0, blocks_held },
            None => {
                let slots_empty = blocks_held * self.blocks.block_size() - tokens;
                Growth { tokens_left: self.tokens_left(sequence), slots_empty, blocks_held }
            }
        };
        let branch = Growth { slots_empty: 0, blocks_held: 0, ..growth };
        std::iter::once(growth).chain(std::iter::repeat_n(branch, sequence.seats() - 1))
    }
}

/// Returns the queue of the tenant that holds the fewest blocks; among equal ones, the queue whose turn was longest
/// ago.
fn next_queue(queues: &mut [Queue]) -> Option<&mut Queue> {
    queues.iter_mut().filter(|queue| !queue.waiting.is_empty()).min_by_key(|queue| (queue.blocks, queue.turn))
}

//! Who leaves the waiting queue (S1, S3, S5).

use std::collections::{HashSet, VecDeque};

use strata_kv::{AllocStatus, SequenceId};

use super::shares::{Holding, Shares};
use super::{Admitted, LOOKAHEAD, Scheduler, StepPlan, Tenant};
use crate::TenantId;
use crate::forecast::{Growth, blocks_wanted};
use crate::sequence::{Place, Sequence, WaitingKey};

/// What one tenant has waiting, and holds.
struct Queue {
    tenant: Option<TenantId>,
    blocks: usize,
    /// [`Tenant::turn`].
    turn: u64,
    waiting: VecDeque<SequenceId>,
}

/// Whether a sequence may be admitted.
enum Verdict {
    Now,
    /// There is no place for it, nor for those behind it.
    Behind,
    /// Blocks are short, or would be soon.
    Short,
    /// Others are computing what it could share.
    Soon,
    Never {
        need: usize,
        limit: usize,
    },
}

impl Scheduler {
    /// Admits waiting sequences while the budget, the number of sequences and the blocks allow, those of the tenant that
    /// holds the least first; of tenants that hold as much, those of the one whose turn was longest ago. One that does not
    /// fit yet does not stop those behind it (`lessons.md`, vllm#45387), except after many have passed it. Those that were
    /// swapped out come first, unless they rank lower; they age as well.
    pub(super) fn admit(&mut self, plan: &mut StepPlan) {
        if self.waiting.is_empty() || plan.budget == 0 || (self.refused && !self.running.is_empty()) {
            return;
        }
        let mut shares = self.shares();
        if self.swapped_keep_all(&shares) {
            return;
        }
        let mut queues = self.queues(&shares);
        let mut short = Vec::new();
        let mut all_short = true;
        while plan.budget > 0
            && let Some(queue) = next_queue(&mut queues)
            && let Some(id) = queue.waiting.pop_front()
        {
            let blocked = self.seats_taken() == self.config.max_num_seqs || self.is_behind_swapped(id, &shares);
            let verdict = if blocked { Verdict::Behind } else { self.verdict(id) };
            match verdict {
                Verdict::Never { need, limit } => {
                    self.remove(id);
                    plan.rejected.push((id, need, limit));
                }
                Verdict::Soon => all_short = false,
                Verdict::Behind | Verdict::Short if self.claim(id, &mut shares, plan) => queue.waiting.push_front(id),
                Verdict::Behind => {
                    all_short = false;
                    queue.waiting.clear();
                }
                Verdict::Short => {
                    let sequence = &self.sequences[&id];
                    short.push(id);
                    if sequence.is_urgent() {
                        // Whoever is admitted past it would keep it waiting. Other tenants have nothing to do with one that
                        // has its share.
                        let keeps_all = !shares.is_above(sequence.tenant);
                        queues.retain(|queue| !keeps_all && queue.tenant != sequence.tenant);
                    }
                }
                Verdict::Now => {
                    self.start(id, plan);
                    let holding = self.holding_of(&self.sequences[&id]);
                    queue.blocks += holding.blocks;
                    queue.turn = 2 * self.admissions;
                    shares.add(queue.tenant, holding);
                    self.plan_entry(id, plan);
                }
            }
        }
        self.refused = all_short && plan.budget > 0 && plan.admitted.is_empty() && plan.preempted.is_empty();
        self.count_overtaken(plan, &short);
    }

    /// Whether sequences that take `need` blocks now find enough of them to grow beside all others, as far as can be
    /// foreseen. Those that were preempted often enough must find them up to their very end; of all others, one that is
    /// alone takes its chance.
    pub(super) fn has_room_to_grow(&self, sequences: &[&Sequence], need: usize) -> bool {
        if sequences.iter().any(|sequence| sequence.is_spared())
            && self.blocks_promised(self.holders().chain(sequences.iter().copied())) > self.blocks.usable()
        {
            return false;
        }
        let stats = self.blocks.stats();
        let available = stats.blocks_free + stats.blocks_cached;
        if self.holders().next().is_none() {
            return need <= available;
        }
        let mut growths: Vec<_> =
            self.holders().chain(sequences.iter().copied()).flat_map(|one| self.growths(one)).collect();
        need + blocks_wanted(&mut growths, self.blocks.block_size()) <= available
    }

    /// Blocks that have to be there for those of `sequences` that are not to make room again, up to their very ends: the
    /// full blocks of a prompt once for all beams of a search. Those that hang are nobody's.
    pub(super) fn blocks_promised<'a>(&self, sequences: impl Iterator<Item = &'a Sequence>) -> usize {
        let blocks_total = self.blocks.stats().blocks_total;
        let mut searches = HashSet::new();
        let promised = |one: &Sequence| {
            // The last token has no KV.
            let all = self.blocks.num_required_blocks(one.prompt_len.max(one.tokens_max.saturating_sub(1)), 0);
            let shared = one.search.map_or(0, |_| one.prompt_len / self.blocks.block_size());
            let is_counted = one.search.is_some_and(|search| !searches.insert(search));
            let blocks = (all - shared).saturating_mul(one.seats).saturating_add(if is_counted { 0 } else { shared });
            // Whoever would outgrow the whole pool is rejected when it has.
            blocks.min(blocks_total)
        };
        sequences.filter(|one| one.is_spared()).map(promised).sum::<usize>() + self.blocks_hanging()
    }

    /// Tokens that `sequence` is likely to generate yet; all that it may, if it is not to make room again.
    pub(super) fn tokens_left(&self, sequence: &Sequence) -> usize {
        let left_max = sequence.tokens_max.saturating_sub(sequence.tokens.len());
        if sequence.is_spared() { left_max } else { self.forecast.tokens_left(sequence.generated(), left_max) }
    }

    /// What each tenant has, and should have.
    pub(super) fn shares(&self) -> Shares {
        let all = Holding { blocks: self.blocks.usable(), seats: self.config.max_num_seqs };
        let mut shares = Shares::new(self.tenants.keys().copied(), all);
        if self.tenants.len() > 1 {
            for sequence in self.holders() {
                shares.add(sequence.tenant, self.holding_of(sequence));
            }
        }
        shares
    }

    /// Tenants that have nothing, and wait for what they may [`claim`](Self::claim).
    pub(super) fn claimants(&self, shares: &Shares) -> Vec<Option<TenantId>> {
        if self.tenants.len() < 2 {
            return Vec::new();
        }
        let claims = |queue: &Queue| queue.waiting.iter().any(|&id| shares.may_claim(queue.tenant, self.blocks_of(id)));
        self.queues(shares).into_iter().filter(claims).map(|queue| queue.tenant).collect()
    }

    fn queues(&self, shares: &Shares) -> Vec<Queue> {
        let each = LOOKAHEAD.div_ceil(self.tenants.len().max(1));
        let queue = |(&tenant, &Tenant { turn, .. }): (&Option<TenantId>, &Tenant)| {
            let waiting = self.waiting_of(tenant).take(each).collect();
            Queue { tenant, blocks: shares.of(tenant).blocks, turn, waiting }
        };
        self.tenants.iter().map(queue).collect()
    }

    /// What a tenant has waiting, the urgent first.
    pub(super) fn waiting_of(&self, tenant: Option<TenantId>) -> impl Iterator<Item = SequenceId> {
        let from_first = self.waiting.range(WaitingKey::first_of(tenant)..);
        from_first.take_while(move |(key, _)| key.tenant == tenant).map(|(_, &id)| id)
    }

    fn verdict(&self, id: SequenceId) -> Verdict {
        let sequence = &self.sequences[&id];
        match self.blocks.can_allocate(&sequence.tokens, &sequence.hashes) {
            AllocStatus::Never { need, limit } => Verdict::Never { need, limit },
            AllocStatus::Later => Verdict::Short,
            AllocStatus::Ok if self.seats_taken() + sequence.seats > self.config.max_num_seqs => Verdict::Short,
            AllocStatus::Ok if self.prefix_is_under_way(sequence) => Verdict::Soon,
            AllocStatus::Ok => {
                let (need, _) = self.blocks.demand(&sequence.tokens, &sequence.hashes);
                if self.has_room_to_grow(&[sequence], need) { Verdict::Now } else { Verdict::Short }
            }
        }
    }

    /// Whether swapped sequences come before the waiting `id`: they do, unless they are less urgent or important, or
    /// belong to others who have as much as `id`'s tenant at least.
    fn is_behind_swapped(&self, id: SequenceId, shares: &Shares) -> bool {
        let Some((&(urgent, priority, ..), first)) = self.swapped.first_key_value() else { return false };
        let (sequence, first) = (&self.sequences[&id], &self.sequences[first]);
        if sequence.tenant != first.tenant {
            return shares.is_above(sequence.tenant);
        }
        let key = sequence.running_key();
        (key.0, key.1) >= (urgent, priority)
    }

    /// Whether somebody who is swapped out has let so many pass that nobody else is admitted before it. Other tenants have
    /// nothing to do with one that has its share.
    fn swapped_keep_all(&self, shares: &Shares) -> bool {
        let mut urgent =
            self.swapped.values().map(|id| &self.sequences[id]).take_while(|sequence| sequence.is_urgent());
        urgent.any(|sequence| !shares.is_above(sequence.tenant))
    }

    /// Takes blocks for `id`, whose tenant has none, from tenants that have more than their share. Returns whether any came
    /// free, or a seat.
    fn claim(&mut self, id: SequenceId, shares: &mut Shares, plan: &mut StepPlan) -> bool {
        let (tenant, need) = (self.sequences[&id].tenant, self.blocks_of(id));
        if self.tenants.len() < 2 || !shares.may_claim(tenant, need) || self.blocks_leaving() >= need {
            return false;
        }
        let Some(victim) = self.victim_above(shares) else { return false };
        let leaving = self.preempt(victim, plan);
        *shares = self.shares();
        leaving == 0
    }

    /// Whoever came before one that was admitted, or had to let one of another tenant pass, has been overtaken by it; and so
    /// has the first that is swapped out.
    fn count_overtaken(&mut self, plan: &StepPlan, short: &[SequenceId]) {
        if !plan.admitted.is_empty()
            && let Some((_, &first)) = self.swapped.first_key_value()
        {
            for id in self.group(first, &self.swapped) {
                let sequence = self.sequences.get_mut(&id).expect("a swapped sequence is known");
                self.swapped.remove(&sequence.running_key());
                sequence.overtaken += plan.admitted.len() as u32;
                self.swapped.insert(sequence.running_key(), id);
            }
        }
        for Admitted { id, .. } in &plan.admitted {
            let (arrival, tenant) = (self.sequences[id].arrival, self.sequences[id].tenant);
            let earlier = |id: &SequenceId| self.sequences[id].arrival < arrival;
            let others = short.iter().copied().filter(|id| self.sequences[id].tenant != tenant);
            let passed: Vec<_> = self.waiting_of(tenant).filter(earlier).chain(others).collect();
            for id in passed {
                let sequence = self.sequences.get_mut(&id).expect("a waiting sequence is known");
                // It may become urgent, and so have another place.
                self.waiting.remove(&sequence.waiting_key());
                sequence.overtaken += 1;
                self.waiting.insert(sequence.waiting_key(), id);
            }
        }
    }

    /// Gives `id` its blocks.
    fn start(&mut self, id: SequenceId, plan: &mut StepPlan) {
        let sequence = self.sequences.get_mut(&id).expect("a waiting sequence is known");
        let wanted = sequence.explain || self.explain_all;
        let miss = wanted.then(|| self.blocks.explain(&sequence.tokens, &sequence.hashes));
        let allocation = self.blocks.allocate(id, &sequence.tokens, &sequence.hashes);
        let cached = allocation.expect("can_allocate said so, and nothing happened since").num_cached_tokens;
        self.waiting.remove(&sequence.waiting_key());
        self.admissions += 1;
        self.tenants.get_mut(&sequence.tenant).expect("it has a sequence").turn = 2 * self.admissions;
        sequence.admission.get_or_insert(self.admissions);
        sequence.place = Place::Running;
        sequence.computed = cached;
        self.seats_reserved += sequence.seats - 1;
        self.running.insert(sequence.running_key(), id);
        plan.admitted.push(Admitted { id, cached, miss });
    }

    /// What `sequence` takes of its tenant's share while it runs: a search all seats from the start.
    pub(super) fn holding_of(&self, sequence: &Sequence) -> Holding {
        Holding { blocks: self.blocks.num_required_blocks(sequence.tokens.len(), 0), seats: sequence.seats }
    }

    /// Blocks that the tokens of `id` take.
    pub(super) fn blocks_of(&self, id: SequenceId) -> usize {
        self.blocks.num_required_blocks(self.sequences[&id].tokens.len(), 0)
    }

    /// Sequences that hold blocks to stay.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Sequence> {
        self.running.values().copied().chain(self.arriving()).map(|id| &self.sequences[&id])
    }

    /// How a sequence will grow; one that beams will branch off, so many times.
    pub(super) fn growths(&self, sequence: &Sequence) -> impl Iterator<Item = Growth> + use<> {
        let tokens = sequence.tokens.len();
        let blocks_held = self.blocks.num_required_blocks(tokens, 0);
        let slots_empty = blocks_held * self.blocks.block_size() - tokens;
        let growth = Growth { tokens_left: self.tokens_left(sequence), slots_empty, blocks_held };
        let branch = Growth { slots_empty: 0, blocks_held: 0, ..growth };
        std::iter::once(growth).chain(std::iter::repeat_n(branch, sequence.seats - 1))
    }

    /// Whether a running sequence is computing blocks that this one could share once they are done. Then waiting a few
    /// steps is cheaper than computing them twice: the rule that makes `n` completions of a prompt compute it once.
    fn prefix_is_under_way(&self, sequence: &Sequence) -> bool {
        let block = self.blocks.block_size();
        let computing = |other: &&Sequence| other.pending() > 1 && other.hashes.root() == sequence.hashes.root();
        let mut others = self.running.values().map(|id| &self.sequences[id]).filter(computing).peekable();
        if !self.blocks.prefix_caching() || !sequence.hashes.root().is_shared() || others.peek().is_none() {
            return false;
        }
        // The last token is always recomputed, so a block that ends with it is of no use.
        let usable = (sequence.tokens.len() - 1) / block * block;
        let cached = self.blocks.cached_prefix(&sequence.tokens, &sequence.hashes);
        others.any(|other| {
            let common = sequence.tokens[..usable].iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
            common / block * block > cached.max(other.computed / block * block)
        })
    }
}

/// The one whose turn it is.
fn next_queue(queues: &mut [Queue]) -> Option<&mut Queue> {
    queues.iter_mut().filter(|queue| !queue.waiting.is_empty()).min_by_key(|queue| (queue.blocks, queue.turn))
}

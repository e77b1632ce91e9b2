//! Which sequences take part in the next pass, and with how many tokens (S1 to S5). A planner: no I/O, no clock.

mod groups;

use std::collections::{BTreeMap, HashMap};

use strata_kv::{AllocStatus, BlockCopy, BlockManager, ChainRoot, Resize, SequenceId};

use crate::TokenId;
use crate::memory_trade::KvDemand;
use crate::sequence::{Place, RunningKey, Sequence, WaitingKey};

/// Limits of one pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Sequences that run at a time.
    pub max_num_seqs: usize,
    /// Tokens that a pass computes, prefill chunks and decodes together.
    pub max_num_batched_tokens: usize,
}

/// Waiting sequences that admission looks at in one step; bounds a step's cost when the queue is long.
const LOOKAHEAD: usize = 64;

/// One sequence's part of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) id: SequenceId,
    /// Position of the first token to compute.
    pub(crate) start: usize,
    /// Tokens to compute.
    pub(crate) count: usize,
    /// Whether these are the last of its tokens, so that the next can be sampled.
    pub(crate) samples: bool,
}

/// What the next pass computes, and what the way there cost.
#[derive(Debug, Default)]
pub(crate) struct StepPlan {
    pub(crate) entries: Vec<Entry>,
    /// Newly admitted, with the tokens that the prefix cache spared them.
    pub(crate) admitted: Vec<(SequenceId, usize)>,
    /// Lost their blocks, and wait again.
    pub(crate) preempted: Vec<SequenceId>,
    /// Can never fit (S3): sequence, blocks needed, blocks in all. They have left the queue.
    pub(crate) rejected: Vec<(SequenceId, usize, usize)>,
}

/// Owner of the queues and of the block manager.
#[derive(Debug)]
pub(crate) struct Scheduler {
    config: SchedulerConfig,
    blocks: BlockManager,
    sequences: HashMap<SequenceId, Sequence>,
    waiting: BTreeMap<WaitingKey, SequenceId>,
    running: BTreeMap<RunningKey, SequenceId>,
    /// Of those that run; at most `max_num_seqs`.
    seats: usize,
    arrivals: u64,
    admissions: u64,
    preemptions: u64,
    /// Kept between steps, to be filled anew in each.
    order: Vec<SequenceId>,
}

impl Scheduler {
    pub(crate) fn new(config: SchedulerConfig, blocks: BlockManager) -> Self {
        assert!(config.max_num_seqs > 0 && config.max_num_batched_tokens >= config.max_num_seqs);
        Self {
            config,
            blocks,
            sequences: HashMap::new(),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            seats: 0,
            arrivals: 0,
            admissions: 0,
            preemptions: 0,
            order: Vec::new(),
        }
    }

    /// Puts a new sequence into the waiting queue.
    pub(crate) fn add(&mut self, id: SequenceId, prompt: Vec<TokenId>, root: ChainRoot, priority: i32) {
        self.arrivals += 1;
        let sequence = Sequence {
            tokens: prompt,
            computed: 0,
            root,
            priority,
            arrival: self.arrivals,
            preemptions: 0,
            overtaken: 0,
            admission: None,
            seats: 1,
            place: Place::Waiting,
        };
        self.waiting.insert(sequence.waiting_key(), id);
        let before = self.sequences.insert(id, sequence);
        debug_assert!(before.is_none(), "{id} was added twice");
    }

    /// Takes a sequence out, whatever its state, and gives its blocks back. An unknown id changes nothing, so a late
    /// cancellation is harmless.
    pub(crate) fn remove(&mut self, id: SequenceId) -> Option<Sequence> {
        let sequence = self.sequences.remove(&id)?;
        match sequence.place {
            Place::Waiting => drop(self.waiting.remove(&sequence.waiting_key())),
            Place::Running => {
                self.running.remove(&sequence.running_key());
                self.seats -= sequence.seats;
                self.blocks.free(id);
            }
        }
        Some(sequence)
    }

    /// Plans the next pass into `plan`.
    ///
    /// Decodes come first, for they are one token each and somebody is reading them; then the chunks of prompts under
    /// way; then, if nobody had to be preempted, new sequences.
    pub(crate) fn schedule(&mut self, plan: &mut StepPlan) {
        plan.entries.clear();
        plan.admitted.clear();
        plan.preempted.clear();
        plan.rejected.clear();
        let mut budget = self.config.max_num_batched_tokens;
        for decodes in [true, false] {
            let mut order = std::mem::take(&mut self.order);
            order.clear();
            let pending = |id| self.sequences[id].pending();
            order.extend(self.running.values().filter(|id| pending(id) > 0 && (pending(id) == 1) == decodes));
            for &id in &order {
                // One that ran earlier in this loop may have preempted this one.
                if budget > 0 && !plan.preempted.contains(&id) && self.grow(id, plan) {
                    budget -= self.plan_entry(id, budget, plan);
                }
            }
            self.order = order;
        }
        if plan.preempted.is_empty() {
            self.admit(budget, plan);
        }
    }

    /// The pass has retired: what it computed may now be found by others.
    pub(crate) fn complete(&mut self, entry: &Entry) {
        let Some(sequence) = self.sequences.get_mut(&entry.id) else { return };
        sequence.computed = entry.start + entry.count;
        self.blocks.commit(entry.id, sequence.computed);
    }

    /// Appends a sampled token, whose KV the next pass computes.
    pub(crate) fn push_token(&mut self, id: SequenceId, token: TokenId) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            debug_assert_eq!(sequence.pending(), 0, "a token is sampled once all before it are computed");
            sequence.tokens.push(token);
        }
    }

    pub(crate) fn sequence(&self, id: SequenceId) -> &Sequence {
        &self.sequences[&id]
    }

    pub(crate) fn blocks(&self) -> &BlockManager {
        &self.blocks
    }

    /// What KV has, and what the next passes could use besides: a block for each sequence that runs, and those of the
    /// sequences that one pass could admit.
    pub(crate) fn kv_demand(&self) -> KvDemand {
        let stats = self.blocks.stats();
        let mut demand = KvDemand {
            present: self.blocks.present(),
            used: stats.blocks_used,
            wanted: self.blocks.reserve() + self.running.len(),
        };
        let mut budget = self.config.max_num_batched_tokens;
        let room = self.config.max_num_seqs - self.seats;
        for id in self.waiting.values().take(room.min(LOOKAHEAD)) {
            let sequence = &self.sequences[id];
            let (blocks, tokens) = self.blocks.demand(&sequence.tokens, &sequence.root);
            // One that can never fit is about to be rejected.
            if blocks > stats.blocks_total {
                continue;
            }
            demand.wanted += blocks;
            budget = budget.saturating_sub(tokens);
            if budget == 0 {
                break;
            }
        }
        demand
    }

    /// Changes how many blocks may be used.
    pub(crate) fn set_usable_blocks(&mut self, blocks: usize) {
        self.blocks.set_usable(blocks);
    }

    /// What must be copied before the next pass, and before blocks that have left are given back.
    pub(crate) fn take_copies(&mut self, copies: &mut Vec<BlockCopy>) {
        self.blocks.take_copies(copies);
    }

    /// Blocks that came and left since the last call.
    pub(crate) fn take_resize(&mut self) -> Resize {
        self.blocks.take_resize()
    }

    pub(crate) fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn num_running(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn preemptions(&self) -> u64 {
        self.preemptions
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    /// With no sequence alive, every block must be free or cached. Returns how many were neither; if any were, all blocks
    /// are free afterwards, and the prefix cache empty.
    pub(crate) fn recover_leaks(&mut self) -> usize {
        debug_assert!(self.is_idle());
        let leaked = self.blocks.stats().blocks_used;
        if leaked > 0 {
            self.blocks = self.blocks.emptied();
        }
        leaked
    }

    /// Sees to it that every token of `id` has a slot, preempting the last-come where blocks are short (S2). Returns
    /// whether `id` still runs.
    fn grow(&mut self, id: SequenceId, plan: &mut StepPlan) -> bool {
        loop {
            let sequence = &self.sequences[&id];
            let held = self.blocks.num_tokens(id).unwrap_or(0);
            let missing = &sequence.tokens[held..];
            if missing.is_empty() || self.blocks.append(id, missing).is_ok() {
                return true;
            }
            let Some((_, &victim)) = self.running.last_key_value() else { return false };
            self.preempt(victim, plan);
            if victim == id {
                return false;
            }
        }
    }

    fn preempt(&mut self, id: SequenceId, plan: &mut StepPlan) {
        let sequence = self.sequences.get_mut(&id).expect("a running sequence is known");
        // Beams that catch up are planned after the others, and may need the blocks of one that is planned already.
        plan.entries.retain(|entry| entry.id != id);
        self.running.remove(&sequence.running_key());
        self.seats -= sequence.seats;
        self.blocks.free(id);
        sequence.place = Place::Waiting;
        sequence.computed = 0;
        sequence.preemptions += 1;
        self.preemptions += 1;
        self.waiting.insert(sequence.waiting_key(), id);
        plan.preempted.push(id);
    }

    /// Adds the next chunk of `id`, of at most `budget` tokens, and returns its length.
    fn plan_entry(&self, id: SequenceId, budget: usize, plan: &mut StepPlan) -> usize {
        let sequence = &self.sequences[&id];
        let count = sequence.pending().min(budget);
        let samples = count == sequence.pending();
        plan.entries.push(Entry { id, start: sequence.computed, count, samples });
        count
    }

    /// Admits waiting sequences while the budget, the number of sequences and the blocks allow. One that does not fit
    /// yet does not stop those behind it (`lessons.md`, vllm#45387), except after many have passed it.
    fn admit(&mut self, mut budget: usize, plan: &mut StepPlan) {
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(self.waiting.values().take(LOOKAHEAD));
        for &id in &order {
            if budget == 0 || self.seats == self.config.max_num_seqs {
                break;
            }
            let sequence = &self.sequences[&id];
            match self.blocks.can_allocate(&sequence.tokens, &sequence.root) {
                AllocStatus::Never { need, limit } => {
                    self.remove(id);
                    plan.rejected.push((id, need, limit));
                }
                AllocStatus::Ok if self.seats + sequence.seats <= self.config.max_num_seqs => {
                    if !self.prefix_is_under_way(sequence) {
                        self.start(id, plan);
                        budget -= self.plan_entry(id, budget, plan);
                    }
                }
                AllocStatus::Ok | AllocStatus::Later if sequence.is_urgent() => break,
                AllocStatus::Ok | AllocStatus::Later => {}
            }
        }
        self.order = order;
        self.count_overtaken(plan);
    }

    /// Whoever still waits and came before one that was admitted has been overtaken by it.
    fn count_overtaken(&mut self, plan: &StepPlan) {
        for (id, _) in &plan.admitted {
            let arrival = self.sequences[id].arrival;
            let passed: Vec<_> =
                self.waiting.iter().filter(|(key, _)| key.3 < arrival).map(|(&key, &id)| (key, id)).collect();
            for (key, id) in passed {
                let sequence = self.sequences.get_mut(&id).expect("a waiting sequence is known");
                sequence.overtaken += 1;
                // It may have become urgent, and so have another place.
                self.waiting.remove(&key);
                self.waiting.insert(sequence.waiting_key(), id);
            }
        }
    }

    fn start(&mut self, id: SequenceId, plan: &mut StepPlan) {
        let sequence = self.sequences.get_mut(&id).expect("a waiting sequence is known");
        let allocation = self.blocks.allocate(id, &sequence.tokens, &sequence.root);
        let cached = allocation.expect("can_allocate said so, and nothing happened since").num_cached_tokens;
        self.waiting.remove(&sequence.waiting_key());
        self.admissions += 1;
        sequence.admission.get_or_insert(self.admissions);
        sequence.place = Place::Running;
        sequence.computed = cached;
        self.seats += sequence.seats;
        self.running.insert(sequence.running_key(), id);
        plan.admitted.push((id, cached));
    }

    /// Whether a running sequence is computing blocks that this one could share once they are done. Then waiting a few
    /// steps is cheaper than computing them twice: the rule that makes `n` completions of a prompt compute it once.
    fn prefix_is_under_way(&self, sequence: &Sequence) -> bool {
        let block = self.blocks.block_size();
        let computing = |other: &&Sequence| other.pending() > 1 && other.root == sequence.root;
        let mut others = self.running.values().map(|id| &self.sequences[id]).filter(computing).peekable();
        if !self.blocks.prefix_caching() || !sequence.root.is_shared() || others.peek().is_none() {
            return false;
        }
        // The last token is always recomputed, so a block that ends with it is of no use.
        let usable = (sequence.tokens.len() - 1) / block * block;
        let cached = self.blocks.cached_prefix(&sequence.tokens, &sequence.root);
        others.any(|other| {
            let common = sequence.tokens[..usable].iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
            common / block * block > cached.max(other.computed / block * block)
        })
    }
}

#[cfg(test)]
mod tests;

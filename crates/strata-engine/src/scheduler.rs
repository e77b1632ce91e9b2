//! Which sequences take part in the next pass, and with how many tokens (S1 to S5). A planner: no I/O, no clock.

mod admission;
mod demand;
mod groups;
mod invariants;
mod preempting;
mod shares;
mod swapping;

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;

use strata_kv::{BlockManager, ChainRoot, IdHasher, Miss, Resize, SequenceId, Swap, SwapId, Transfer};

use crate::forecast::Forecast;
use crate::preemption::PreemptionPlanner;
use crate::sequence::{Place, RunningKey, Sequence, WaitingKey};
use crate::{PreemptionMode, TenantId, TokenId};
use swapping::Flight;

/// Limits of one pass, and what is done when blocks run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Sequences that run at a time.
    pub max_num_seqs: usize,
    /// Tokens that a pass computes, prefill chunks and decodes together.
    pub max_num_batched_tokens: usize,
    /// What becomes of the KV of sequences that have to make room (S2).
    pub preemption: PreemptionMode,
}

/// Waiting sequences that admission looks at in one step; bounds a step's cost when the queue is long.
const LOOKAHEAD: usize = 64;

/// Blocks that are moved together between two looks for new requests.
const COMPACTION_STEPS: usize = 16;

/// A sequence on its way into the waiting queue.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) id: SequenceId,
    pub(crate) prompt: Vec<TokenId>,
    /// Tokens that it may generate.
    pub(crate) max_tokens: usize,
    pub(crate) root: ChainRoot,
    pub(crate) priority: i32,
    pub(crate) tenant: Option<TenantId>,
    /// Whether [`Admitted::miss`] is wanted.
    pub(crate) explain: bool,
    /// The width of the beam search that is to begin with it.
    pub(crate) beams: Option<usize>,
}

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

/// A sequence that has left the waiting queue.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) id: SequenceId,
    /// Tokens that the prefix cache spared it.
    pub(crate) cached: usize,
    /// Where its prefix stopped matching and why, if somebody asked.
    pub(crate) miss: Option<Miss>,
}

/// What the next pass computes, and what the way there cost.
#[derive(Debug, Default)]
pub(crate) struct StepPlan {
    pub(crate) entries: Vec<Entry>,
    pub(crate) admitted: Vec<Admitted>,
    /// Lost their blocks, or are about to.
    pub(crate) preempted: Vec<SequenceId>,
    /// Can never fit (S3): sequence, blocks needed, blocks in all. They have left the queue.
    pub(crate) rejected: Vec<(SequenceId, usize, usize)>,
    /// To be begun, once the copies of [`Scheduler::take_copies`] are made.
    pub(crate) swaps: Vec<Swap>,
    /// Tokens that the pass still has room for.
    budget: usize,
}

/// How often sequences have lost their blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PreemptionCounts {
    /// KV was dropped.
    pub(crate) recompute: u64,
    /// KV was swapped out.
    pub(crate) swap: u64,
}

/// Whoever shares the engine with others (S5).
#[derive(Debug, Clone, Copy)]
struct Tenant {
    sequences: usize,
    /// Twice the number of its last admission; until then one less than that of the last when it came, so that whoever came
    /// during somebody's turn stands before them.
    turn: u64,
}

/// Owner of the queues and of the block manager.
#[derive(Debug)]
pub(crate) struct Scheduler {
    config: SchedulerConfig,
    blocks: BlockManager,
    /// Looked up in every step, hence the plain hash; nothing depends on the map's order.
    sequences: HashMap<SequenceId, Sequence, BuildHasherDefault<IdHasher>>,
    waiting: BTreeMap<WaitingKey, SequenceId>,
    running: BTreeMap<RunningKey, SequenceId>,
    swapped: BTreeMap<RunningKey, SequenceId>,
    /// Swaps under way.
    flights: BTreeMap<SwapId, Flight>,
    /// Those that have any sequence.
    tenants: BTreeMap<Option<TenantId>, Tenant>,
    forecast: Forecast,
    planner: PreemptionPlanner,
    /// Bytes of one block, if any can be swapped.
    block_bytes: u64,
    /// Seats of beam searches that run, or are about to come back, and have fewer beams now.
    seats_reserved: usize,
    arrivals: u64,
    branches: u64,
    admissions: u64,
    preemptions: PreemptionCounts,
    /// Whether nobody could be admitted for want of blocks, and nothing has changed since that could help.
    refused: bool,
    /// The same of the first that is swapped out.
    kept_out: bool,
    /// Steps so far.
    steps: u64,
    /// Whether every admission is to say why its prefix was not cached.
    pub(crate) explain_all: bool,
    /// Kept between steps, to be filled anew in each.
    decodes: Vec<SequenceId>,
    chunks: Vec<SequenceId>,
}

impl Scheduler {
    pub(crate) fn new(config: SchedulerConfig, blocks: BlockManager) -> Self {
        assert!(config.max_num_seqs > 0 && config.max_num_batched_tokens >= config.max_num_seqs);
        Self {
            config,
            blocks,
            sequences: HashMap::default(),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            swapped: BTreeMap::new(),
            flights: BTreeMap::new(),
            tenants: BTreeMap::new(),
            forecast: Forecast::default(),
            planner: PreemptionPlanner::new(config.preemption),
            block_bytes: 0,
            seats_reserved: 0,
            arrivals: 0,
            branches: 0,
            admissions: 0,
            preemptions: PreemptionCounts::default(),
            refused: false,
            kept_out: false,
            steps: 0,
            explain_all: false,
            decodes: Vec::new(),
            chunks: Vec::new(),
        }
    }

    /// Puts a new sequence into the waiting queue.
    pub(crate) fn add(&mut self, arrival: Arrival) {
        let Arrival { id, prompt, max_tokens, root, priority, tenant, explain, beams } = arrival;
        self.arrivals += 1;
        let hashes = self.blocks.hash_prefix(&root, &prompt);
        let sequence = Sequence {
            prompt_len: prompt.len(),
            tokens_max: prompt.len().saturating_add(max_tokens),
            tokens: prompt,
            computed: 0,
            hashes,
            priority,
            tenant,
            explain,
            arrival: self.arrivals,
            branch: 0,
            preemptions: 0,
            swaps: 0,
            overtaken: 0,
            admission: None,
            seats: beams.unwrap_or(1),
            search: beams.map(|_| id),
            place: Place::Waiting,
        };
        self.queue(id, sequence);
    }

    /// Takes a sequence out, whatever its state, and gives its blocks back; those of a swap under way when that has ended.
    /// An unknown id changes nothing, so a late cancellation is harmless.
    pub(crate) fn remove(&mut self, id: SequenceId) -> Option<Sequence> {
        let sequence = self.sequences.remove(&id)?;
        match sequence.place {
            Place::Waiting => drop(self.waiting.remove(&sequence.waiting_key())),
            Place::Running => {
                self.running.remove(&sequence.running_key());
                self.seats_reserved -= sequence.seats - 1;
            }
            Place::Arriving => self.seats_reserved -= sequence.seats - 1,
            Place::Swapped => drop(self.swapped.remove(&sequence.running_key())),
            Place::Leaving => {}
        }
        if sequence.place != Place::Waiting {
            self.blocks.free(id);
        }
        if let Some(tenant) = self.tenants.get_mut(&sequence.tenant) {
            tenant.sequences -= 1;
            if tenant.sequences == 0 {
                self.tenants.remove(&sequence.tenant);
            }
        }
        self.reconsider();
        Some(sequence)
    }

    /// Plans the next pass into `plan`.
    ///
    /// Decodes come first, for they are one token each and somebody is reading them; then the chunks of prompts under
    /// way; then, if nobody had to be preempted, those that were swapped out, and at last new sequences.
    pub(crate) fn schedule(&mut self, plan: &mut StepPlan) {
        plan.entries.clear();
        plan.admitted.clear();
        plan.preempted.clear();
        plan.rejected.clear();
        plan.swaps.clear();
        plan.budget = self.config.max_num_batched_tokens;
        self.steps += 1;
        let (mut decodes, mut chunks) = (std::mem::take(&mut self.decodes), std::mem::take(&mut self.chunks));
        decodes.clear();
        chunks.clear();
        for &id in self.running.values() {
            match self.sequences[&id].pending() {
                // A beam that waits for others of its search.
                0 => {}
                1 => decodes.push(id),
                _ => chunks.push(id),
            }
        }
        // Blocks that swaps under way will give back, and nobody waits for yet.
        let mut leaving = self.blocks_leaving();
        for &id in decodes.iter().chain(&chunks) {
            // One that ran earlier in this loop may have preempted this one.
            if plan.budget > 0 && !plan.preempted.contains(&id) && self.grow(id, &mut leaving, plan) {
                self.plan_entry(id, plan);
            }
        }
        (self.decodes, self.chunks) = (decodes, chunks);
        // Beams that have lost their KV are to be gathered before one of them could be admitted alone.
        if plan.preempted.is_empty() && !self.bring_back(plan) {
            self.admit(plan);
        }
    }

    /// The pass has retired: what it computed may now be found by others.
    pub(crate) fn complete(&mut self, entry: &Entry) {
        let Some(sequence) = self.sequences.get_mut(&entry.id) else { return };
        sequence.computed = entry.start + entry.count;
        self.blocks.commit(entry.id, sequence.computed);
        // A prompt that is published may spare one that waits the blocks that it was refused.
        if entry.count > 1 {
            self.reconsider();
        }
    }

    /// Appends a sampled token, whose KV the next pass computes.
    pub(crate) fn push_token(&mut self, id: SequenceId, token: TokenId) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            debug_assert_eq!(sequence.pending(), 0, "a token is sampled once all before it are computed");
            sequence.tokens.push(token);
        }
    }

    /// A sequence has ended well: what it generated says something of what others will.
    pub(crate) fn ended(&mut self, generated: usize) {
        self.forecast.ended(generated);
    }

    /// Prompts of so many tokens were computed in so many seconds.
    pub(crate) fn prefilled(&mut self, tokens: usize, seconds: f64) {
        self.planner.prefilled(tokens, seconds);
    }

    pub(crate) fn sequence(&self, id: SequenceId) -> &Sequence {
        &self.sequences[&id]
    }

    /// Whether it holds blocks, and may take part in passes.
    pub(crate) fn is_running(&self, id: SequenceId) -> bool {
        self.sequences.get(&id).is_some_and(|sequence| sequence.place == Place::Running)
    }

    pub(crate) fn blocks(&self) -> &BlockManager {
        &self.blocks
    }

    /// Changes how many blocks may be used.
    pub(crate) fn set_usable_blocks(&mut self, blocks: usize) {
        if blocks > self.blocks.usable() {
            self.reconsider();
        }
        self.blocks.set_usable(blocks);
    }

    /// Blocks that came and left since the last call.
    pub(crate) fn take_resize(&mut self) -> Resize {
        self.blocks.take_resize()
    }

    /// Moves a few blocks together; false when nothing is left to be moved, or can be.
    pub(crate) fn compact(&mut self) -> bool {
        self.blocks.compact(COMPACTION_STEPS) > 0
    }

    /// Copies to be made before anything reads or writes KV, and before the memory of blocks that have left goes.
    pub(crate) fn take_copies(&mut self, copies: &mut Vec<Transfer>) {
        self.blocks.take_copies(copies);
    }

    pub(crate) fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn num_running(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn preemptions(&self) -> PreemptionCounts {
        self.preemptions
    }

    /// Whether any sequence is alive.
    pub(crate) fn has_sequences(&self) -> bool {
        !self.sequences.is_empty()
    }

    /// Whether there is nothing to do, and nothing under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.flights.is_empty()
    }

    /// With no sequence alive, every block must be free or cached, and every swap slot free. Returns how many were not; if
    /// any, all are free afterwards, and the prefix cache empty.
    pub(crate) fn recover_leaks(&mut self) -> usize {
        debug_assert!(self.is_idle());
        let stats = self.blocks.stats();
        let leaked = stats.blocks_used + stats.swap_slots_used;
        if leaked > 0 {
            self.blocks = self.blocks.emptied();
        }
        leaked
    }

    /// Sequences that hold a place among those that run: those that are about to come back have one.
    fn seats_taken(&self) -> usize {
        self.running.len() + self.num_arriving() + self.seats_reserved
    }

    /// Puts a sequence that is not known yet into the waiting queue.
    fn queue(&mut self, id: SequenceId, sequence: Sequence) {
        self.waiting.insert(sequence.waiting_key(), id);
        self.know(id, sequence);
    }

    fn know(&mut self, id: SequenceId, sequence: Sequence) {
        let new = Tenant { sequences: 0, turn: (2 * self.admissions).saturating_sub(1) };
        self.tenants.entry(sequence.tenant).or_insert(new).sequences += 1;
        self.reconsider();
        let before = self.sequences.insert(id, sequence);
        debug_assert!(before.is_none(), "{id} was added twice");
    }

    /// Something has changed that may help those who were refused blocks.
    fn reconsider(&mut self) {
        (self.refused, self.kept_out) = (false, false);
    }

    /// Adds the next chunk of `id`, as far as the pass has room.
    fn plan_entry(&self, id: SequenceId, plan: &mut StepPlan) {
        let sequence = &self.sequences[&id];
        let count = sequence.pending().min(plan.budget);
        let samples = count == sequence.pending();
        plan.entries.push(Entry { id, start: sequence.computed, count, samples });
        plan.budget -= count;
    }
}

#[cfg(test)]
mod tests;

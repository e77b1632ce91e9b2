//! Which sequences take part in the next pass, and with how many tokens. A planner: no I/O, no clock.

mod admission;
mod demand;
mod fetching;
mod flights;
mod forks;
mod invariants;
mod live;
mod long;
mod pacing;
mod preempting;
mod queues;
mod shares;
mod swapping;

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::time::Duration;

use interbed_kv::{
    BlockCopy, BlockId, BlockManager, CacheChanges, ChainRoot, Foreseen, IdHasher, Miss, Resize, SequenceId, Swap,
};

use crate::drafter::Drafter;
use crate::event::FoundBelow;
use crate::forecast::Forecast;
use crate::pace::Pace;
use crate::preemption::PreemptionPlanner;
use crate::sequence::{Continuation, GroupId, Sequence, SequenceStatus};
use crate::{PreemptionMode, TenantId, TokenId};
use flights::Flights;
use long::LongLimits;
pub use long::blocks_beside_disk;
use pacing::{Left, Paced};
use queues::Queues;

/// Limits of one pass, and what is done when blocks run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Sequences that run at a time.
    pub max_num_seqs: usize,
    /// Tokens that a pass computes, prefill chunks and decodes together.
    pub max_num_batched_tokens: usize,
    /// What happens to the KV of preempted sequences.
    pub preemption: PreemptionMode,
    /// The longest time between two tokens of a sequence that generates, as far as prefill in its passes is the cause;
    /// none: prefill takes all room that passes have.
    pub max_token_gap: Option<Duration>,
}

/// Tokens of a prompt whose log-probabilities are wanted that a pass computes beside other sequences. Each takes the
/// engine thread a look at the whole vocabulary, for milliseconds in which nobody else gets a token.
const RANKED_BESIDE_OTHERS: usize = 64;

/// Blocks that are moved together between two looks for new requests.
const COMPACTION_STEPS: usize = 16;

/// A sequence on its way into the waiting queue.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) id: SequenceId,
    pub(crate) group: GroupId,
    /// The continuation that is reported to a client; `None` for a beam of a search.
    pub(crate) continuation: Option<Continuation>,
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
    /// Whether it may become longer than memory.
    pub(crate) may_be_long: bool,
    /// Whether log-probabilities of all tokens of the prompt are wanted.
    pub(crate) ranks_prompt: bool,
}

/// One sequence's part of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlannedTokens {
    pub(crate) id: SequenceId,
    /// Position of the first token to compute.
    pub(crate) start: usize,
    /// Tokens to compute, drafts included.
    pub(crate) count: usize,
    /// Tokens that may be sampled: none in the middle of a prompt; otherwise one after the last known token, and one
    /// after each draft.
    pub(crate) rows: usize,
}

impl PlannedTokens {
    /// Whether these are the last of its tokens, so that the next can be sampled.
    pub(crate) fn samples(&self) -> bool {
        self.rows > 0
    }

    /// Tokens to compute that are guesses.
    pub(crate) fn drafts(&self) -> usize {
        self.rows.saturating_sub(1)
    }

    /// Whether it computes part of a prompt, or KV that a sequence has lost, rather than a single token with or without
    /// drafts.
    fn is_prefill(&self) -> bool {
        self.count - self.drafts() > 1
    }
}

/// A sequence that has left the waiting queue.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) id: SequenceId,
    /// Tokens that the prefix cache spared it.
    pub(crate) cached: usize,
    /// What of its prompt came from below memory.
    pub(crate) below: Option<FoundBelow>,
    /// Where its prefix stopped matching and why, if the client asked.
    pub(crate) miss: Option<Miss>,
}

/// A sequence that has left the waiting queue for good.
#[derive(Debug)]
pub(crate) struct Rejected {
    pub(crate) sequence: Sequence,
    /// Blocks that it needs.
    pub(crate) need: usize,
    /// Blocks in all.
    pub(crate) limit: usize,
}

/// What the next pass computes, and the preemptions, swaps and rejections that planning it took.
#[derive(Debug, Default)]
pub(crate) struct StepPlan {
    pub(crate) entries: Vec<PlannedTokens>,
    pub(crate) admitted: Vec<Admitted>,
    /// Lost their blocks, or are about to.
    pub(crate) preempted: Vec<SequenceId>,
    /// Can never fit.
    pub(crate) rejected: Vec<Rejected>,
    /// Were taken out of the pass, and wait to come back as longer than memory.
    pub(crate) left: Vec<SequenceId>,
    /// Are longer than memory, and cannot go on before more of them is on disk.
    pub(crate) waits_for_disk: Vec<SequenceId>,
    /// To be begun, once the copies of [`Scheduler::take_copies`] are made.
    pub(crate) swaps: Vec<Swap>,
    /// Tokens that the pass still has room for.
    budget: usize,
    /// The share of it that prefill may have, if others wait for the pass.
    paced: Option<Paced>,
    /// Scratch.
    drafts: Vec<TokenId>,
}

impl StepPlan {
    /// Tokens of the pass, if most of them are prefill: then its duration tells how long a prompt token takes.
    pub(crate) fn prefill_tokens(&self) -> Option<usize> {
        let tokens = |entry: &PlannedTokens| entry.count;
        let all: usize = self.entries.iter().map(tokens).sum();
        let prefill: usize = self.entries.iter().filter(|entry| entry.is_prefill()).map(tokens).sum();
        (2 * prefill > all).then_some(all)
    }
}

/// How often sequences have lost their blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PreemptionCounts {
    /// KV was dropped.
    pub(crate) recompute: u64,
    /// KV was swapped out.
    pub(crate) swap: u64,
}

/// A tenant: one of the users that share the engine.
#[derive(Debug, Clone, Copy)]
struct Tenant {
    sequences: usize,
    /// Twice the number of its last admission. Before its first, one less than twice the number of the last admission
    /// of any tenant when it arrived, so that it stands before the tenant that was admitted then.
    turn: u64,
}

/// Owner of the queues and of the block manager.
#[derive(Debug)]
pub(crate) struct Scheduler {
    config: SchedulerConfig,
    blocks: BlockManager,
    /// Looked up in every step, hence the plain hash; nothing depends on the map's order.
    sequences: HashMap<SequenceId, Sequence, BuildHasherDefault<IdHasher>>,
    queues: Queues,
    flights: Flights,
    /// Tenants that have at least one sequence.
    tenants: BTreeMap<Option<TenantId>, Tenant>,
    forecast: Forecast,
    planner: PreemptionPlanner,
    /// What passes take, if prefill beside sequences that generate depends on it.
    pace: Option<Pace>,
    /// Bytes of one block, if any can be swapped.
    block_bytes: u64,
    /// Whether, and how, sequences may be longer than memory.
    long: Option<LongLimits>,
    /// Tokens that they may have as soon as there is a tier for them.
    long_awaited: usize,
    ids: u64,
    arrivals: u64,
    branches: u64,
    admissions: u64,
    preemptions: PreemptionCounts,
    /// Fetches in flight, whose sequences may have ended.
    num_fetches: usize,
    /// What was computed of prompts, or of anything, and may be stored below.
    fresh: Vec<BlockId>,
    /// Blocks that were computed and are not to be stored now.
    unstored: Vec<BlockId>,
    /// Whether what sequences generate is to be stored as well.
    stores_generated: bool,
    /// Whether no sequence could be admitted for lack of blocks, and nothing has changed since that could help.
    refused: bool,
    /// The same of the first that is swapped out.
    kept_out: bool,
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
            queues: Queues::default(),
            flights: Flights::default(),
            tenants: BTreeMap::new(),
            forecast: Forecast::default(),
            planner: PreemptionPlanner::new(config.preemption),
            pace: config.max_token_gap.map(Pace::new),
            block_bytes: 0,
            long: None,
            long_awaited: 0,
            ids: 0,
            arrivals: 0,
            branches: 0,
            admissions: 0,
            preemptions: PreemptionCounts::default(),
            num_fetches: 0,
            fresh: Vec::new(),
            unstored: Vec::new(),
            stores_generated: false,
            refused: false,
            kept_out: false,
            explain_all: false,
            decodes: Vec::new(),
            chunks: Vec::new(),
        }
    }

    /// A name that no sequence has had.
    pub(crate) fn new_id(&mut self) -> SequenceId {
        self.ids += 1;
        SequenceId(self.ids)
    }

    /// Puts a new sequence into the waiting queue.
    pub(crate) fn add(&mut self, arrival: Arrival) {
        let Arrival {
            id,
            group,
            continuation,
            prompt,
            max_tokens,
            root,
            priority,
            tenant,
            explain,
            beams,
            may_be_long,
            ranks_prompt,
        } = arrival;
        self.arrivals += 1;
        let hashes = self.blocks.hash_prefix(&root, &prompt);
        let mut sequence = Sequence::new(id, group, prompt, hashes);
        sequence.continuation = continuation;
        sequence.tokens_max = sequence.tokens_max.saturating_add(max_tokens);
        (sequence.priority, sequence.tenant, sequence.explain) = (priority, tenant, explain);
        (sequence.may_be_long, sequence.ranks_prompt) = (may_be_long, ranks_prompt);
        (sequence.arrival, sequence.lockstep, sequence.seats) = (self.arrivals, beams.is_some(), beams.unwrap_or(1));
        self.know(sequence);
    }

    /// Takes a sequence out, whatever its state, and gives its blocks back; blocks of a swap in flight come back when
    /// that has ended. An unknown id changes nothing, so a late cancellation is harmless.
    pub(crate) fn remove(&mut self, id: SequenceId) -> Option<Sequence> {
        let sequence = self.sequences.remove(&id)?;
        self.queues.take(&sequence);
        if sequence.status != SequenceStatus::Waiting {
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
    /// Decodes come first: they are one token each, and somebody is reading them. Then come the next chunks of prompts;
    /// then, if no sequence had to be preempted, those that were swapped out; and last, new sequences. As long as
    /// others could use it, a chunk leaves half of the room that it finds; what they do not take it gets in the end.
    /// Beside sequences that generate, all chunks together have no more than [`Pace`] allows.
    pub(crate) fn schedule(&mut self, plan: &mut StepPlan) {
        plan.entries.clear();
        plan.admitted.clear();
        plan.preempted.clear();
        plan.left.clear();
        plan.waits_for_disk.clear();
        plan.rejected.clear();
        plan.swaps.clear();
        plan.budget = self.config.max_num_batched_tokens;
        self.flights.tick();
        let (mut decodes, mut chunks) = (std::mem::take(&mut self.decodes), std::mem::take(&mut self.chunks));
        decodes.clear();
        chunks.clear();
        for id in self.queues.running() {
            let sequence = &self.sequences[&id];
            match sequence.pending() {
                // A beam that waits for others of its search, or one that waits for what is fetched.
                _ if sequence.computable() == 0 => {}
                1 => decodes.push(id),
                _ => chunks.push(id),
            }
        }
        plan.paced = self.paced(&decodes);
        // Blocks that swaps in flight will give back, and that no sequence waits for yet.
        let mut leaving = self.flights.blocks_leaving();
        for (index, &id) in decodes.iter().chain(&chunks).enumerate() {
            // One that ran earlier in this loop may have preempted this one.
            let is_gone = plan.preempted.contains(&id) || plan.left.contains(&id);
            let is_last = index + 1 == decodes.len() + chunks.len();
            let left = match index < decodes.len() || (is_last && !self.may_admit()) {
                true => Left::default(),
                false => plan.leave_half(),
            };
            if !is_gone && self.room_of(id, plan) > 0 && self.grow(id, &mut leaving, plan) {
                self.plan_entry(id, plan);
            }
            plan.give_back(left);
        }
        (self.decodes, self.chunks) = (decodes, chunks);
        if plan.preempted.is_empty() && !self.bring_back(plan) {
            self.admit(plan);
        }
        self.top_up(plan);
    }

    /// Gives chunks what the pass still has room for, in their order.
    fn top_up(&self, plan: &mut StepPlan) {
        let StepPlan { entries, budget, paced, .. } = plan;
        for entry in entries {
            let sequence = &self.sequences[&entry.id];
            let slots = self.blocks.num_tokens(entry.id).map_or(0, |tokens| tokens.saturating_sub(entry.start));
            let more = paced.as_ref().map_or(usize::MAX, |paced| paced.room(entry.start)).min(*budget);
            let most = self.most_tokens(sequence).min(entry.count + more);
            let count = sequence.computable().min(slots).min(most);
            if count > entry.count {
                let more = count - entry.count;
                *budget -= more;
                paced.iter_mut().for_each(|paced| paced.take(entry.start, more));
                entry.count = count;
                entry.rows = usize::from(count == sequence.pending());
            }
        }
    }

    /// Gives each sequence that generates, and whose next token begins a block, that block already, as far as there are
    /// enough for all that run.
    pub(crate) fn look_ahead(&mut self, plan: &StepPlan) {
        let block_size = self.blocks.block_size();
        for entry in &plan.entries {
            let end = entry.start + entry.count;
            let stats = self.blocks.stats();
            let is_ample =
                stats.blocks_free + stats.blocks_cached > self.queues.running().len() + self.blocks.reserve();
            let sequence = &self.sequences[&entry.id];
            let goes_on = entry.samples() && end < sequence.tokens_max;
            if end.is_multiple_of(block_size) && goes_on && is_ample && !sequence.is_long {
                // Without it, the block comes when the token does.
                let _ = self.blocks.ensure_num_empty_slots(entry.id, 1);
            }
        }
    }

    /// The blocks that the first sequence in the queue will get, if one waits. They are kept for it as far as there are
    /// others.
    pub(crate) fn foresee_first(&mut self) -> Option<Foreseen> {
        let Some(id) = self.queues.waiting().next() else {
            self.blocks.foresee_nothing();
            return None;
        };
        let sequence = &self.sequences[&id];
        Some(self.blocks.foresee(sequence.tokens(), &sequence.hashes))
    }

    /// Lets `drafter` guess the next tokens of the sequences in `plan` that generate, as far as the pass has room and
    /// blocks are left once each running sequence has taken one. Only guesses below `vocab_size` are run.
    pub(crate) fn draft(&mut self, plan: &mut StepPlan, drafter: &mut dyn Drafter, vocab_size: usize) {
        let StepPlan { entries, budget, drafts, .. } = plan;
        for entry in entries {
            let sequence = self.sequences.get_mut(&entry.id).expect("a planned sequence is known");
            // The last token of all is never computed.
            let most = sequence.tokens_max.saturating_sub(sequence.len() + 1).min(*budget);
            if entry.count > 1 || !entry.samples() || sequence.generated() == 0 || sequence.lockstep || most == 0 {
                continue;
            }
            drafts.clear();
            drafter.draft(sequence.tokens(), most, drafts);
            // Behind one that the model does not have, no other can be right.
            let known = drafts.iter().take_while(|&&draft| (draft as usize) < vocab_size).count();
            drafts.truncate(known.min(most));
            let stats = self.blocks.stats();
            let fresh = self.blocks.num_blocks_touched_by_append(entry.id, drafts.len(), 0);
            if fresh + self.queues.running().len() > stats.blocks_free + stats.blocks_cached
                || self.blocks.ensure_num_empty_slots(entry.id, drafts.len()).is_err()
            {
                continue;
            }
            sequence.set_drafts(drafts);
            entry.count += drafts.len();
            entry.rows += drafts.len();
            *budget -= drafts.len();
        }
    }

    /// The pass has retired: what it computed may now be found in the prefix cache. Of the sampled tokens, `accepted`
    /// are kept: all but the last of them equal drafts. What was computed for rejected drafts is dropped.
    pub(crate) fn complete(&mut self, entry: &PlannedTokens, accepted: usize) {
        let Some(sequence) = self.sequences.get_mut(&entry.id) else { return };
        let right = accepted.saturating_sub(1).min(entry.drafts());
        sequence.accept_drafts(right);
        sequence.computed = entry.start + entry.count - (entry.drafts() - right);
        if right > 0 {
            let seen = self.blocks.append(entry.id, self.blocks.unseen_token_ids(entry.id, sequence.tokens()));
            seen.expect("slots were reserved for all drafts");
        }
        self.blocks.commit(entry.id, sequence.computed);
        let published = self.blocks.take_published();
        let is_stored = sequence.is_stored;
        if entry.is_prefill() || self.stores_generated || is_stored {
            self.fresh.extend(published);
        } else {
            self.unstored.extend(published);
        }
        if !is_stored && self.may_outgrow_memory(&self.sequences[&entry.id]) {
            self.fresh.extend(self.blocks.computed_blocks(entry.id));
            self.get_mut(entry.id).into_iter().for_each(|sequence| sequence.is_stored = true);
        }
        self.take_what_came(entry.id);
        // A prompt that is published may spare one that waits the blocks that it was refused.
        if entry.is_prefill() {
            self.reconsider();
        }
    }

    /// Appends a sampled token, whose KV the next pass computes.
    pub(crate) fn push_token(&mut self, id: SequenceId, token: TokenId) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            debug_assert_eq!(sequence.pending(), 0, "a token is sampled once all before it are computed");
            sequence.extend([token]);
        }
    }

    /// A sequence has ended well: what it generated says something of what others will.
    pub(crate) fn ended(&mut self, generated: usize) {
        self.forecast.ended(generated);
    }

    /// Records that `tokens` of prompts were computed in `seconds`.
    pub(crate) fn prefilled(&mut self, tokens: usize, seconds: f64) {
        self.planner.prefilled(tokens, seconds);
    }

    /// A sequence that is known.
    pub(crate) fn sequence(&self, id: SequenceId) -> &Sequence {
        &self.sequences[&id]
    }

    /// A sequence, unless it has ended.
    pub(crate) fn get_mut(&mut self, id: SequenceId) -> Option<&mut Sequence> {
        self.sequences.get_mut(&id)
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

    /// Moves a few blocks together; `false` when no block is left to move, or none can be moved.
    pub(crate) fn compact(&mut self) -> bool {
        self.blocks.compact(COMPACTION_STEPS) > 0
    }

    /// Copies to be made before anything reads or writes KV, and before the memory of blocks that have left goes.
    pub(crate) fn take_copies(&mut self, copies: &mut Vec<BlockCopy>) {
        self.blocks.take_copies(copies);
    }

    /// What can be found since the last call, and what no longer can.
    pub(crate) fn take_cache_changes(&mut self, changes: &mut CacheChanges) {
        self.blocks.take_changes(changes);
    }

    pub(crate) fn num_waiting(&self) -> usize {
        self.queues.waiting().len()
    }

    pub(crate) fn num_running(&self) -> usize {
        self.queues.running().len()
    }

    pub(crate) fn preemptions(&self) -> PreemptionCounts {
        self.preemptions
    }

    /// Whether any sequence is alive.
    pub(crate) fn has_sequences(&self) -> bool {
        !self.sequences.is_empty()
    }

    /// Whether there is nothing to do, and nothing in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.flights.len() == 0 && self.num_fetches == 0
    }

    /// With no sequence alive, every block must be free or cached, and every swap slot free. Returns how many were not;
    /// if any were not, all are freed, and the prefix cache is emptied.
    pub(crate) fn recover_leaks(&mut self) -> usize {
        debug_assert!(self.is_idle());
        let stats = self.blocks.stats();
        let leaked = stats.blocks_used + stats.swap_slots_used;
        if leaked > 0 {
            self.blocks = self.blocks.emptied();
        }
        leaked
    }

    /// Gives `id`, which was admitted, its blocks.
    fn start(&mut self, id: SequenceId, plan: &mut StepPlan) {
        let sequence = &self.sequences[&id];
        let wanted = sequence.explain || self.explain_all;
        let miss = wanted.then(|| self.blocks.explain(sequence.tokens(), &sequence.hashes));
        let cached = if self.long_limits(sequence).is_some() {
            self.start_long(id);
            0
        } else {
            let allocation = self.blocks.allocate(id, sequence.tokens(), &sequence.hashes);
            allocation.expect("can_allocate said so, and nothing happened since").num_cached_tokens
        };
        let sequence = self.sequences.get_mut(&id).expect("a waiting sequence is known");
        // They are not looked up again before it has lost its blocks.
        sequence.hashes.truncate(0);
        self.admissions += 1;
        self.tenants.get_mut(&sequence.tenant).expect("it has a sequence").turn = 2 * self.admissions;
        sequence.computed = cached;
        // Its rank in the waiting queue does not depend on this.
        sequence.admission.get_or_insert(self.admissions);
        self.move_to(id, SequenceStatus::Running);
        plan.admitted.push(Admitted { id, cached, below: None, miss });
    }

    /// Moves a sequence from its queue to that of another place.
    fn move_to(&mut self, id: SequenceId, status: SequenceStatus) {
        let sequence = self.sequences.get_mut(&id).expect("a sequence that moves is known");
        self.queues.take(sequence);
        sequence.status = status;
        self.queues.put(sequence);
    }

    /// Takes in a new sequence, into the queue that its status names.
    fn know(&mut self, sequence: Sequence) {
        let new = Tenant { sequences: 0, turn: (2 * self.admissions).saturating_sub(1) };
        self.tenants.entry(sequence.tenant).or_insert(new).sequences += 1;
        self.queues.put(&sequence);
        self.reconsider();
        let before = self.sequences.insert(sequence.id, sequence);
        debug_assert!(before.is_none(), "{before:?} was added twice");
    }

    /// Something has changed that may help sequences that were refused blocks.
    fn reconsider(&mut self) {
        (self.refused, self.kept_out) = (false, false);
    }

    /// Most tokens of `sequence` in a pass, apart from the pass's own limit.
    fn most_tokens(&self, sequence: &Sequence) -> usize {
        let is_alone = self.queues.running().len() <= 1 && self.num_waiting() == 0;
        let is_ranked = sequence.ranks_prompt && sequence.computed < sequence.prompt_len;
        if is_ranked && !is_alone { RANKED_BESIDE_OTHERS } else { usize::MAX }
    }

    /// Adds the next chunk of `id`, as far as the pass has room.
    fn plan_entry(&self, id: SequenceId, plan: &mut StepPlan) {
        let sequence = &self.sequences[&id];
        // One that is longer than memory got slots for some of its tokens only.
        let slots = self.blocks.num_tokens(id).map_or(0, |tokens| tokens.saturating_sub(sequence.computed));
        let count = sequence.computable().min(self.room_of(id, plan)).min(slots).min(self.most_tokens(sequence));
        if count == 0 {
            return;
        }
        let entry =
            PlannedTokens { id, start: sequence.computed, count, rows: usize::from(count == sequence.pending()) };
        plan.budget -= count;
        plan.spend_time(&entry);
        plan.entries.push(entry);
    }
}

#[cfg(test)]
mod tests;

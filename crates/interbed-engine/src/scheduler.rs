//! Decides which sequences take part in the next pass, and with how many tokens. This is a planner: it has no I/O and
//! no clock.

mod admission;
mod demand;
mod fetching;
mod flights;
mod forks;
mod invariants;
mod live;
mod long;
mod pacing;
mod plan;
mod preempting;
mod queues;
mod room;
mod shares;
mod swapping;
mod tenants;
mod wait;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::time::Duration;

use interbed_kv::{BlockCopy, BlockManager, ChainRoot, Foreseen, IdHasher, SequenceId};

use crate::continuation::Continuation;
use crate::drafter::Drafter;
use crate::forecast::Forecast;
use crate::pace::Pace;
use crate::preemption::PreemptionPlanner;
use crate::sequence::{Requested, Role, Sequence, SequenceStatus};
use crate::{PreemptionMode, TokenId};
use fetching::Computed;
use flights::Flights;
use long::LongLimits;
pub(crate) use long::Parting;
pub use long::blocks_beside_disk;
use plan::Left;
pub(crate) use plan::{Admitted, PlannedTokens, Rejected, StepPlan};
use queues::Queues;
use tenants::Tenants;

/// Limits on the running sequences and on each forward pass, and the rule for preemption when KV blocks run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Largest number of sequences that may run at the same time.
    pub max_num_seqs: usize,
    /// Largest number of tokens in a forward pass. Tokens of prefill chunks and decode tokens count together.
    pub max_num_batched_tokens: usize,
    /// Whether the KV of preempted sequences is swapped out or computed again.
    pub preemption: PreemptionMode,
    /// Target for the longest time between two consecutive tokens that a sequence generates. While any sequence
    /// generates tokens, a forward pass computes only as much prefill as is expected to keep the pass within this time.
    /// Prefill never stops completely, so the time can still be exceeded. With `None`, prefill takes all the room that
    /// a forward pass has.
    pub max_token_gap: Option<Duration>,
}

/// The most prompt tokens with log-probabilities that a pass computes for a sequence beside other sequences. For each
/// such token, the engine thread goes through the whole vocabulary, which takes milliseconds in which no other sequence
/// gets a token.
const RANKED_BESIDE_OTHERS: usize = 64;

/// The number of blocks that are moved together before the engine looks for new requests again.
const COMPACTION_STEPS: usize = 16;

/// A sequence on its way into the waiting queue.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) id: SequenceId,
    pub(crate) request: Requested,
    /// The continuation that is reported to a client; `None` for a beam of a search.
    pub(crate) continuation: Option<Continuation>,
    pub(crate) prompt: Vec<TokenId>,
    /// The most tokens that the sequence may generate.
    pub(crate) max_tokens: usize,
    pub(crate) root: ChainRoot,
    /// The width of the beam search that is to begin with this sequence, if it begins one.
    pub(crate) beams: Option<usize>,
}

/// The number of times that sequences have lost their blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PreemptionCounts {
    /// The preemptions in which KV was dropped.
    pub(crate) recompute: u64,
    /// The preemptions in which KV was swapped out.
    pub(crate) swap: u64,
}

/// Plans passes. The scheduler owns the queues and the block manager.
#[derive(Debug)]
pub(crate) struct Scheduler {
    config: SchedulerConfig,
    blocks: BlockManager,
    /// All live sequences. They are looked up in every step, hence the plain hash; nothing depends on the map's order.
    sequences: HashMap<SequenceId, Sequence, BuildHasherDefault<IdHasher>>,
    queues: Queues,
    flights: Flights,
    tenants: Tenants,
    forecast: Forecast,
    planner: PreemptionPlanner,
    /// The estimate of what passes take, if prefill beside sequences that generate depends on it.
    pace: Option<Pace>,
    /// The number of bytes in one block, if blocks can be swapped.
    block_bytes: u64,
    /// The limits of sequences that are longer than memory, if there may be any.
    long: Option<LongLimits>,
    /// The number of tokens that a sequence may have as soon as a tier below memory is attached; 0 if none is awaited.
    long_awaited: usize,
    ids: u64,
    preemptions: PreemptionCounts,
    computed: Computed,
    /// What sequences that are longer than memory have left behind, until it is stored.
    partings: Vec<Parting>,
    /// Whether no sequence could be admitted for lack of blocks, and nothing has changed since that could help.
    refused: bool,
    /// Whether the first swapped-out sequence could not return for lack of blocks, and nothing has changed since that
    /// could help.
    kept_out: bool,
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
            tenants: Tenants::default(),
            forecast: Forecast::default(),
            planner: PreemptionPlanner::new(config.preemption),
            pace: config.max_token_gap.map(Pace::new),
            block_bytes: 0,
            long: None,
            long_awaited: 0,
            ids: 0,
            preemptions: PreemptionCounts::default(),
            computed: Computed::default(),
            partings: Vec::new(),
            refused: false,
            kept_out: false,
        }
    }

    /// Returns an id that is higher than all before.
    pub(crate) fn new_id(&mut self) -> SequenceId {
        self.ids += 1;
        SequenceId(self.ids)
    }

    /// Puts a new sequence into the waiting queue.
    pub(crate) fn add(&mut self, arrival: Arrival) {
        let Arrival { id, request, continuation, prompt, max_tokens, root, beams } = arrival;
        let hashes = self.blocks.hash_prefix(&root, &prompt);
        let mut sequence = Sequence::new(id, request, prompt, hashes);
        sequence.continuation = continuation;
        sequence.tokens_max = sequence.tokens_max.saturating_add(max_tokens);
        sequence.role = beams.map_or(Role::Answer, |seats| Role::Beam { seats });
        self.know(sequence);
    }

    /// Removes a sequence, whatever its state, and gives its blocks back. Blocks of a swap in flight become free when
    /// the swap has ended. An unknown id changes nothing, so a late cancellation is harmless.
    pub(crate) fn remove(&mut self, id: SequenceId) -> Option<Sequence> {
        self.part(id);
        let sequence = self.sequences.remove(&id)?;
        self.queues.take(&sequence);
        if sequence.status != SequenceStatus::Waiting {
            self.blocks.free(id);
        }
        self.tenants.leave(sequence.request.tenant);
        self.reconsider();
        Some(sequence)
    }

    /// Plans the next pass into `plan`.
    ///
    /// Decodes come first, because they are one token each and clients read them. Then come the next chunks of prompts.
    /// If no sequence had to be preempted, swapped-out sequences follow, and new sequences come last. As long as others
    /// could use it, a chunk leaves half of the room that it finds; what the others do not take, it gets in the end.
    /// Beside sequences that generate, all chunks together have no more than [`Pace`] allows.
    pub(crate) fn schedule(&mut self, plan: &mut StepPlan) {
        plan.begin(self.config.max_num_batched_tokens);
        self.flights.tick();
        let (mut decodes, mut chunks) = (std::mem::take(&mut plan.decodes), std::mem::take(&mut plan.chunks));
        for id in self.queues.running() {
            let sequence = &self.sequences[&id];
            match sequence.fresh() {
                // The sequence is a beam that waits for other beams of its search, or a sequence that waits for a
                // fetch or a mask.
                _ if sequence.computable() == 0 => {}
                1 => decodes.push(id),
                _ => chunks.push(id),
            }
        }
        plan.paced = self.paced(&decodes);
        // The blocks that swaps in flight will give back and that no sequence waits for yet.
        let mut leaving = self.flights.blocks_leaving();
        for (index, &id) in decodes.iter().chain(&chunks).enumerate() {
            // A sequence earlier in this loop may have preempted this one.
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
        (plan.decodes, plan.chunks) = (decodes, chunks);
        if plan.preempted.is_empty() && !self.bring_back(plan) {
            self.admit(plan);
        }
        self.top_up(plan);
    }

    /// Gives chunks the room that the pass still has, in the order of the chunks.
    fn top_up(&self, plan: &mut StepPlan) {
        let StepPlan { entries, budget, paced, .. } = plan;
        for entry in entries {
            let sequence = &self.sequences[&entry.id];
            let slots = self.blocks.num_placed_tokens(entry.id).saturating_sub(entry.start);
            let more = paced.as_ref().map_or(usize::MAX, |paced| paced.room(entry.start)).min(*budget);
            let most = self.most_tokens(sequence).min(entry.count + more);
            let count = self.blocks.count_to_stop(entry.id, sequence.computable().min(slots).min(most));
            if count > entry.count {
                let more = count - entry.count;
                *budget -= more;
                paced.iter_mut().for_each(|paced| paced.take(entry.start, more));
                *entry = self.entry_of(sequence, count);
            }
        }
    }

    /// Gives a sequence a new block before it needs one, if the sequence generates and its next token begins a block.
    /// This is done as long as there are enough blocks for all running sequences.
    pub(crate) fn look_ahead(&mut self, plan: &StepPlan) {
        let block_size = self.blocks.block_size();
        for entry in &plan.entries {
            let end = entry.start + entry.count;
            let is_ample = self.blocks.available() > self.queues.running().len() + self.blocks.reserve();
            let sequence = &self.sequences[&entry.id];
            let goes_on = entry.samples() && end < sequence.tokens_max;
            if end.is_multiple_of(block_size) && goes_on && is_ample && !sequence.is_long() {
                // If this fails, the sequence gets the block together with the token.
                let _ = self.blocks.ensure_num_empty_slots(entry.id, 1);
            }
        }
    }

    /// Returns the blocks that the first sequence in the queue will get, if one waits. The blocks are kept for that
    /// sequence as long as others have enough.
    pub(crate) fn foresee_first(&mut self) -> Option<Foreseen> {
        let Some(id) = self.queues.waiting().next() else {
            self.blocks.foresee_nothing();
            return None;
        };
        let sequence = &self.sequences[&id];
        Some(self.blocks.foresee(sequence.tokens(), &sequence.hashes))
    }

    /// Lets `drafter` guess the next tokens of the sequences in `plan` that generate. Guesses are taken as far as the
    /// pass has room, and as far as blocks are left once each running sequence has taken one. Only guesses below
    /// `vocab_size` are computed.
    pub(crate) fn draft(&mut self, plan: &mut StepPlan, drafter: &mut dyn Drafter, vocab_size: usize) {
        let StepPlan { entries, budget, drafts, .. } = plan;
        for entry in entries {
            let sequence = self.sequences.get_mut(&entry.id).expect("a planned sequence is known");
            // The last token of a sequence is never computed.
            let most = sequence.tokens_max.saturating_sub(sequence.len() + 1).min(*budget);
            let is_answer = sequence.role == Role::Answer;
            if entry.is_prefill() || !entry.samples() || sequence.generated() == 0 || !is_answer || most == 0 {
                continue;
            }
            drafts.clear();
            drafter.draft(sequence.tokens(), most, drafts);
            // Behind a guess that the model does not have, no other guess can be right.
            let known = drafts.iter().take_while(|&&draft| (draft as usize) < vocab_size).count();
            drafts.truncate(known.min(most));
            let fresh = self.blocks.num_blocks_touched_by_append(entry.id, drafts.len(), 0);
            if fresh + self.queues.running().len() > self.blocks.available()
                || self.blocks.ensure_num_empty_slots(entry.id, drafts.len()).is_err()
            {
                continue;
            }
            sequence.set_drafts(drafts);
            // A state cannot be taken back, so no draft enters the one that is stored.
            entry.stored_after = self.blocks.count_to_state(entry.id, entry.count);
            entry.count += drafts.len();
            entry.rows += drafts.len();
            *budget -= drafts.len();
        }
    }

    /// Notes that the pass of `entry` has ended: what it computed may now be found in the prefix cache. Of the sampled
    /// tokens, `accepted` are kept, of which all but the last equal drafts. What was computed for rejected drafts is
    /// dropped. Where layers keep states, right drafts are tokens that the next pass computes again.
    pub(crate) fn complete(&mut self, entry: &PlannedTokens, accepted: usize) {
        let Some(sequence) = self.sequences.get_mut(&entry.id) else { return };
        let right = accepted.saturating_sub(1).min(entry.drafts());
        sequence.accept_drafts(right);
        let end = (entry.start + entry.count - (entry.drafts() - right)).max(sequence.computed + sequence.again);
        sequence.computed = if self.blocks.keeps_states() { entry.start + entry.stored_after } else { end };
        sequence.again = end - sequence.computed;
        if right > 0 {
            let seen = self.blocks.append(entry.id, self.blocks.unseen_token_ids(entry.id, sequence.tokens()));
            seen.expect("slots were reserved for all drafts");
        }
        self.blocks.commit(entry.id, sequence.computed);
        let published = self.blocks.take_published();
        let is_stored = sequence.is_stored;
        self.computed.add(published, entry.is_prefill() || is_stored);
        if !is_stored && self.may_outgrow_memory(&self.sequences[&entry.id]) {
            self.computed.add(self.blocks.computed_blocks(entry.id).iter().copied(), true);
            self.get_mut(entry.id).into_iter().for_each(|sequence| sequence.is_stored = true);
        }
        self.take_what_came(entry.id);
        // A waiting sequence that was refused blocks may need fewer, now that this prompt is published.
        if entry.is_prefill() {
            self.reconsider();
        }
    }

    /// Appends a sampled token, whose KV the next pass computes.
    pub(crate) fn push_token(&mut self, id: SequenceId, token: TokenId) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            debug_assert_eq!(sequence.fresh(), 0, "a token is sampled once all before it are computed");
            sequence.extend([token]);
        }
    }

    /// Notes that a sequence ended well after `generated` tokens, from which the forecast learns.
    pub(crate) fn ended(&mut self, generated: usize) {
        self.forecast.ended(generated);
    }

    /// Records that `tokens` of prompts were computed in `seconds`.
    pub(crate) fn prefilled(&mut self, tokens: usize, seconds: f64) {
        self.planner.prefilled(tokens, seconds);
    }

    /// Returns sequence `id`, which must be known.
    pub(crate) fn sequence(&self, id: SequenceId) -> &Sequence {
        &self.sequences[&id]
    }

    /// Returns sequence `id`, unless it has ended.
    pub(crate) fn get_mut(&mut self, id: SequenceId) -> Option<&mut Sequence> {
        self.sequences.get_mut(&id)
    }

    pub(crate) fn blocks(&self) -> &BlockManager {
        &self.blocks
    }

    /// Returns the block manager, to take from it what it has noted for others.
    pub(crate) fn blocks_mut(&mut self) -> &mut BlockManager {
        &mut self.blocks
    }

    /// Changes the number of blocks that may be used.
    pub(crate) fn set_usable_blocks(&mut self, blocks: usize) {
        if blocks > self.blocks.usable() {
            self.reconsider();
        }
        self.blocks.set_usable(blocks);
    }

    /// Moves a few blocks together. Returns `false` if no block is left to move, or none can be moved.
    pub(crate) fn compact(&mut self) -> bool {
        self.blocks.compact(COMPACTION_STEPS) > 0
    }

    /// Takes the copies to be made before anything reads or writes KV, and before the memory of blocks that have left
    /// is given back.
    pub(crate) fn take_copies(&mut self, copies: &mut Vec<BlockCopy>) {
        self.blocks.take_copies(copies);
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

    /// Returns whether any sequence is alive.
    pub(crate) fn has_sequences(&self) -> bool {
        !self.sequences.is_empty()
    }

    /// Returns whether there is nothing to do, and nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.flights.is_empty()
    }

    /// Checks, while no sequence is alive, that every block is free or cached and every swap slot is free. Returns how
    /// many were not. If any were not, all are freed, and the prefix cache is emptied.
    pub(crate) fn recover_leaks(&mut self) -> usize {
        debug_assert!(self.is_idle());
        let stats = self.blocks.stats();
        let leaked = stats.blocks_used + stats.swap_slots_used + self.blocks.tail_stats().blocks_held();
        if leaked > 0 {
            self.blocks = self.blocks.emptied();
        }
        leaked
    }

    /// Gives the waiting sequence `id`, which may be admitted, its blocks.
    fn start(&mut self, id: SequenceId, plan: &mut StepPlan) {
        let sequence = &self.sequences[&id];
        let wanted = sequence.request.explain || plan.explain_all;
        let miss = wanted.then(|| self.blocks.explain(sequence.tokens(), &sequence.hashes));
        let cached = if self.long_limits(sequence).is_some() {
            self.start_long(id);
            0
        } else {
            let allocation = self.blocks.allocate(id, sequence.tokens(), &sequence.hashes);
            allocation.expect("can_allocate said so, and nothing happened since").num_cached_tokens
        };
        let sequence = self.sequences.get_mut(&id).expect("a waiting sequence is known");
        // The hashes are not looked up again before the sequence has lost its blocks.
        sequence.hashes.truncate(0);
        sequence.computed = cached;
        let admission = self.tenants.admit(sequence.request.tenant);
        // The sequence's rank in the waiting queue does not depend on this.
        sequence.past.admission.get_or_insert(admission);
        self.move_to(id, SequenceStatus::Running(None));
        plan.admitted.push(Admitted { id, cached, below: Vec::new(), miss });
    }

    /// Moves a sequence from its queue to the queue of `status`.
    fn move_to(&mut self, id: SequenceId, status: SequenceStatus) {
        let sequence = self.sequences.get_mut(&id).expect("a sequence that moves is known");
        self.queues.take(sequence);
        sequence.status = status;
        self.queues.put(sequence);
    }

    /// Takes in a new sequence, and puts it into the queue of its status.
    fn know(&mut self, sequence: Sequence) {
        self.tenants.join(sequence.request.tenant);
        self.queues.put(&sequence);
        self.reconsider();
        let before = self.sequences.insert(sequence.id, sequence);
        debug_assert!(before.is_none(), "{before:?} was added twice");
    }

    /// Notes a change that may help sequences that were refused blocks.
    fn reconsider(&mut self) {
        (self.refused, self.kept_out) = (false, false);
    }

    /// Returns the most tokens of `sequence` that a pass may compute, apart from the pass's own limit.
    fn most_tokens(&self, sequence: &Sequence) -> usize {
        let is_alone = self.queues.running().len() <= 1 && self.num_waiting() == 0;
        let is_ranked = sequence.request.ranks_prompt && sequence.computed < sequence.prompt_len;
        if is_ranked && !is_alone { RANKED_BESIDE_OTHERS } else { usize::MAX }
    }

    /// Adds the next chunk of `id` to the pass, as far as the pass has room.
    fn plan_entry(&self, id: SequenceId, plan: &mut StepPlan) {
        let sequence = &self.sequences[&id];
        // A sequence that is longer than memory, or than a window, may have slots for only some of its tokens.
        let slots = self.blocks.num_placed_tokens(id).saturating_sub(sequence.computed);
        let count = sequence.computable().min(self.room_of(id, plan)).min(slots).min(self.most_tokens(sequence));
        let count = self.blocks.count_to_stop(id, count);
        if count == 0 {
            return;
        }
        let entry = self.entry_of(sequence, count);
        plan.budget -= count;
        plan.spend_time(&entry);
        plan.entries.push(entry);
    }

    /// Returns the entry of a pass that computes the next `count` tokens of `sequence`, without drafts.
    fn entry_of(&self, sequence: &Sequence, count: usize) -> PlannedTokens {
        let (id, again) = (sequence.id, sequence.again.min(count));
        let stored_after = if again > 0 { self.blocks.count_to_state(id, count) } else { count };
        let rows = usize::from(count == sequence.pending());
        PlannedTokens { id, start: sequence.computed, count, rows, again, stored_after }
    }
}

#[cfg(test)]
mod tests;

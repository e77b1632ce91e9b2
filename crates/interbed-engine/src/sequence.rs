//! A sequence of tokens, from arrival to end, with its client, its sampling, and its rank among others.

use std::cmp::Reverse;

use interbed_grammar::{Constraint, Standing};
use interbed_kv::{FetchId, PrefixHashes, SequenceId};
use interbed_model::Logits;

use crate::handle::Client;
use crate::masks::{Bound, MaskWorkers, Masked};
use crate::sampler::{Sampled, Sampler, SamplerState};
use crate::{Event, FinishReason, RequestError, SamplingParams, TenantId, TokenId};

/// The id of a [`SequenceGroup`](crate::group::SequenceGroup).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupId(pub(crate) u64);

/// A sequence from arrival to end.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// The sequence's id, under which the block manager knows the KV that the sequence holds.
    pub(crate) id: SequenceId,
    /// The request that the sequence is part of.
    pub(crate) group: GroupId,
    /// Whether all sequences of the group make room and come back together, as the beams of a search do.
    pub(crate) lockstep: bool,
    /// The continuation that is reported to a client. Nothing is reported of a beam before its search is over.
    pub(crate) continuation: Option<Continuation>,
    /// Prompt and generated tokens, then [`drafts`](Self::drafts). The last generated token has no KV yet.
    tokens: Vec<TokenId>,
    /// The number of `tokens` that are prompt or generated.
    length: usize,
    /// The number of tokens of the prompt.
    pub(crate) prompt_len: usize,
    /// The most tokens, prompt and generated together, that the sequence may come to.
    pub(crate) tokens_max: usize,
    /// The number of leading tokens whose KV is in the sequence's blocks, or in swap space; 0 while the sequence waits.
    pub(crate) computed: usize,
    /// The names of the sequence's prefixes: the root of its chain and, while it waits, the hashes of its blocks.
    pub(crate) hashes: PrefixHashes,
    /// The priority. A sequence with a lower number runs first.
    pub(crate) priority: i32,
    /// The tenant whose share of the blocks the sequence takes.
    pub(crate) tenant: Option<TenantId>,
    /// Whether the sequence may become longer than memory, which requires that it shares its KV with no other sequence
    /// of its request.
    pub(crate) may_be_long: bool,
    /// Whether the sequence has become longer than memory.
    pub(crate) is_long: bool,
    /// Whether log-probabilities of all tokens of the prompt are wanted.
    pub(crate) ranks_prompt: bool,
    /// The number of stretches of a long sequence that are on disk and stay there.
    pub(crate) kept: usize,
    /// Whether all of the sequence is to be on disk, because memory may not be enough for it.
    pub(crate) is_stored: bool,
    /// The part of the prompt that is fetched while the sequence computes the tokens in front of it, if there is one.
    pub(crate) ahead: Option<Ahead>,
    /// Whether the client wants to know why the prefix was not cached.
    pub(crate) explain: bool,
    /// The sequence's number in the order of submission.
    pub(crate) arrival: u64,
    /// The sequence's number among sequences that branched off the same one, and so have the same arrival; 0 for a
    /// sequence that did not branch off.
    pub(crate) branch: u64,
    /// The number of times the sequence lost its blocks to others.
    pub(crate) preemptions: u32,
    /// The number of preemptions in which KV was swapped out rather than dropped.
    pub(crate) swaps: u32,
    /// The number of sequences that were admitted while this one waited, although they came later or had to wait for
    /// blocks behind it. While this sequence is the first to be swapped in, all sequences admitted count.
    pub(crate) overtaken: u32,
    /// The number of the sequence's first admission. It stays the same, so that a preempted sequence does not count as
    /// the latest.
    pub(crate) admission: Option<u64>,
    /// The number of sequences that this one counts for while it runs; at least 1. The beams of a search together count
    /// for its width.
    pub(crate) seats: usize,
    /// Whether the sequence is the trunk of a search. A trunk stands for all beams, which have lost their blocks, and
    /// computes the tokens that they have in common.
    pub(crate) trunk: bool,
    pub(crate) status: SequenceStatus,
}

/// The number of times that a sequence had to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Preempted {
    pub(crate) times: u32,
    /// The number of preemptions in which the KV was swapped out.
    pub(crate) swaps: u32,
}

/// The number of sequences that may be admitted past one that waits or is swapped out. After this many, the passed
/// sequence becomes urgent, whatever its priority and size, so that neither small nor important requests can starve it.
pub(crate) const MAX_OVERTAKEN: u32 = 64;

/// The number of preemptions after which a sequence is admitted only if it will find blocks up to its very end, and is
/// not preempted again if any other can be.
pub(crate) const MAX_PREEMPTIONS: u32 = 4;

impl Sequence {
    /// Creates a sequence that has just arrived with `prompt`, and waits.
    pub(crate) fn new(id: SequenceId, group: GroupId, prompt: Vec<TokenId>, hashes: PrefixHashes) -> Self {
        Self {
            id,
            group,
            lockstep: false,
            continuation: None,
            length: prompt.len(),
            prompt_len: prompt.len(),
            tokens_max: prompt.len(),
            tokens: prompt,
            computed: 0,
            hashes,
            priority: 0,
            tenant: None,
            may_be_long: false,
            ranks_prompt: false,
            is_long: false,
            kept: 0,
            ahead: None,
            is_stored: false,
            explain: false,
            arrival: 0,
            branch: 0,
            preemptions: 0,
            swaps: 0,
            overtaken: 0,
            admission: None,
            seats: 1,
            trunk: false,
            status: SequenceStatus::Waiting,
        }
    }

    /// Returns a sequence with the same history and status, which ranks right after this one and has no client yet. The
    /// new list of tokens has capacity for twice its length, but no more than the sequence can ever need.
    pub(crate) fn branch(&self, id: SequenceId, branch: u64) -> Self {
        let mut tokens = self.tokens().to_vec();
        tokens.reserve_exact(self.tokens_max.saturating_sub(self.length).min(self.length));
        Self { id, branch, continuation: None, tokens, hashes: self.hashes.clone(), seats: 1, trunk: false, ..*self }
    }

    /// Returns the prompt and the generated tokens.
    pub(crate) fn tokens(&self) -> &[TokenId] {
        &self.tokens[..self.length]
    }

    /// Returns the guesses at the next tokens, which the next pass tries.
    pub(crate) fn drafts(&self) -> &[TokenId] {
        &self.tokens[self.length..]
    }

    /// Returns the tokens from position `start` on, drafts included.
    pub(crate) fn tokens_from(&self, start: usize) -> &[TokenId] {
        &self.tokens[start..]
    }

    /// Returns the number of prompt and generated tokens.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.tokens.capacity()
    }

    /// Appends tokens that were generated. Drafts are dropped.
    pub(crate) fn extend(&mut self, tokens: impl IntoIterator<Item = TokenId>) {
        self.tokens.truncate(self.length);
        self.tokens.extend(tokens);
        self.length = self.tokens.len();
    }

    /// Sets the `drafts` that the next pass is to try.
    pub(crate) fn set_drafts(&mut self, drafts: &[TokenId]) {
        self.tokens.truncate(self.length);
        self.tokens.extend_from_slice(drafts);
    }

    /// Keeps the first `count` drafts, which turned out to be right, and drops the others.
    pub(crate) fn accept_drafts(&mut self, count: usize) {
        self.length += count;
        self.tokens.truncate(self.length);
    }

    /// Notes that the sequence has lost its KV, and keeps its first `length` tokens.
    pub(crate) fn lose_kv(&mut self, length: usize) {
        self.tokens.truncate(length);
        (self.length, self.computed) = (self.tokens.len(), 0);
        // The sequence comes back with the tokens that it has generated, so their hashes are needed too.
        self.hashes.truncate(self.length);
        self.hashes.extend(&self.tokens);
    }

    /// Returns the number of tokens whose KV the next passes have to compute. It is at least one, except for a beam
    /// that waits for others of its search.
    pub(crate) fn pending(&self) -> usize {
        self.length - self.computed
    }

    /// Returns the number of tokens that can be computed before the part that is [fetched](Self::ahead) has come.
    pub(crate) fn computable(&self) -> usize {
        self.ahead.as_ref().map_or(self.length, |ahead| ahead.first) - self.computed
    }

    /// Returns the number of tokens generated so far.
    pub(crate) fn generated(&self) -> usize {
        self.length - self.prompt_len
    }

    pub(crate) fn preempted(&self) -> Preempted {
        Preempted { times: self.preemptions, swaps: self.swaps }
    }

    /// Returns the search of which the sequence is a beam, if it is one.
    pub(crate) fn search(&self) -> Option<GroupId> {
        self.lockstep.then_some(self.group)
    }

    /// Returns whether the sequence was preempted or overtaken often enough to come before all others.
    pub(crate) fn is_urgent(&self) -> bool {
        self.overtaken >= MAX_OVERTAKEN || self.is_spared()
    }

    /// Returns whether the sequence must not be preempted again.
    pub(crate) fn is_spared(&self) -> bool {
        self.preemptions >= MAX_PREEMPTIONS
    }

    /// Returns the sequence's rank in the queue of its [`status`](Self::status).
    pub(crate) fn rank(&self) -> Rank {
        let turn = match self.status {
            SequenceStatus::Waiting => u64::from(self.preemptions == 0),
            _ => self.admission.unwrap_or(u64::MAX),
        };
        let (urgent, order) = (Reverse(self.is_urgent()), (self.arrival, self.branch));
        Rank { urgent, priority: self.priority, turn, order }
    }
}

/// The place of a sequence in the order of every queue. In the waiting queue, each tenant has a queue of its own. The
/// last running sequence is the first to be preempted. Urgency does not change while a sequence runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// Urgent sequences come first.
    urgent: Reverse<bool>,
    /// The priority comes second; lower numbers are more important.
    priority: i32,
    /// The turn comes third. Among waiting sequences, preempted ones have the lower turn; among others, the turn is the
    /// number of the first admission.
    turn: u64,
    /// The arrival and the branch are compared last, so that the sequence that arrived first comes first.
    order: (u64, u64),
}

impl Rank {
    /// The rank before all others.
    pub(crate) const FIRST: Self = Self { urgent: Reverse(true), priority: i32::MIN, turn: 0, order: (0, 0) };

    /// Returns whether this rank is more urgent than `other`, or as urgent and more important.
    pub(crate) fn outranks(&self, other: &Self) -> bool {
        (self.urgent, self.priority) < (other.urgent, other.priority)
    }
}

/// The queue or place that a sequence is in.
///
/// | place | leaves it by |
/// |---|---|
/// | waiting | admission → running |
/// | running | preemption → waiting, or leaving; a prefix on disk → fetching |
/// | leaving | the end of its swap: done → swapped, failed → waiting |
/// | swapped | room → arriving; blocks that it will not get back → waiting |
/// | arriving | the end of its swap: done → running, failed → waiting |
/// | fetching | the end of its fetch → running |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SequenceStatus {
    /// The sequence holds no blocks.
    Waiting,
    /// The sequence holds blocks for all its tokens but at most the last.
    Running,
    /// The sequence's blocks are being swapped out.
    Leaving,
    /// The sequence's KV is in swap space.
    Swapped,
    /// The sequence's KV is being swapped in.
    Arriving,
    /// The beginning of the sequence's KV is being fetched from a tier below memory.
    Fetching,
}

/// A part of a prompt that is fetched while the tokens in front of it are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ahead {
    pub(crate) fetch: FetchId,
    /// The position of the part's first token.
    pub(crate) first: usize,
    /// The number of the part's tokens whose KV has come, once the fetch has ended.
    pub(crate) came: Option<usize>,
}

/// One answer to a prompt, with its client and its sampling.
#[derive(Debug)]
pub(crate) struct Continuation {
    pub(crate) client: Client,
    sampler: SamplerState,
    /// The number of tokens that the client was told of.
    generated: usize,
    /// The tokens sampled in the current pass: one, and one more for each draft that turned out to be right.
    run: Vec<Sampled>,
    /// The reason why the last token of `run` ends the continuation, if it does.
    end: Option<FinishReason>,
    /// The constraint that the continuation has to follow, if it has one.
    bound: Option<Bound>,
    /// The logits of the next token, if it is not known yet which tokens may come.
    late: Option<Vec<f32>>,
    /// The reason why the continuation cannot go on, if it cannot: its logits were NaN, or the constraint could not say
    /// what may follow.
    pub(crate) fault: Option<RequestError>,
}

/// The most sequences for which nothing was sampled because their masks were late. Each of them keeps its logits.
pub const LATE_MAX: usize = 32;

/// The conditions that end a continuation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends<'a> {
    /// The model's end-of-sequence tokens.
    pub(crate) eos: &'a [TokenId],
    /// The most tokens of prompt and answer together.
    pub(crate) length_max: usize,
}

impl Continuation {
    pub(crate) fn new(client: Client, sampler: SamplerState, constraint: Option<Constraint>) -> Self {
        let bound = constraint.map(Bound::new);
        Self { client, sampler, generated: 0, run: Vec::new(), end: None, bound, late: None, fault: None }
    }

    /// Begins to compute the masks for the next token, and for the token behind each of `drafts`.
    pub(crate) fn begin_masks(&mut self, workers: &mut MaskWorkers, drafts: &[TokenId]) {
        self.bound.iter_mut().for_each(|bound| bound.begin(workers, drafts));
    }

    /// Returns whether a constraint restricts the next token.
    pub(crate) fn is_bound(&self) -> bool {
        self.bound.is_some()
    }

    /// Takes over the masks of `other`. Both continuations must have no tokens yet.
    pub(crate) fn share_masks(&mut self, other: &mut Self) {
        if let (Some(bound), Some(other)) = (&mut self.bound, &mut other.bound) {
            bound.share_masks(other);
        }
    }

    /// Returns whether the row after the first `count` of `drafts` is valid, because all of these drafts equal the
    /// tokens that were sampled in their places.
    pub(crate) fn follows(&self, drafts: &[TokenId], count: usize) -> bool {
        // Earlier drafts were compared when the tokens after them were sampled.
        self.run.len() == count && self.run.last().is_none_or(|last| last.token == drafts[count - 1])
    }

    /// Chooses the next token from `logits`. If the mask is not known in time and fewer than [`LATE_MAX`] sequences are
    /// `late` already, the token is chosen later.
    pub(crate) fn sample(
        &mut self,
        sampler: &mut Sampler,
        params: &SamplingParams,
        logits: &mut Logits<'_>,
        eos: &[TokenId],
        late: Option<&mut usize>,
    ) {
        self.late = None;
        let late = late.filter(|late| **late < LATE_MAX);
        if params.max_tokens == 0 || self.fault.is_some() {
            return;
        }
        let (drafts, generated) = (self.run.len(), self.generated + self.run.len());
        let sampled = match logits {
            Logits::All(row) => {
                let bound = self.bound.as_mut();
                match bound.map_or(Ok(Masked::Yes), |bound| bound.apply(drafts, row, late.is_some())) {
                    Err(error) => {
                        self.fault = Some(RequestError::Constraint(error));
                        return;
                    }
                    Ok(Masked::Unknown) => return,
                    Ok(Masked::Late) => {
                        self.late = Some(row.to_vec());
                        late.into_iter().for_each(|late| *late += 1);
                        return;
                    }
                    Ok(Masked::Yes) => sampler.sample(row, params, &self.sampler, generated, eos),
                }
            }
            Logits::Best(best) => {
                let best = best.iter().map(|&[token, logit]| (token as TokenId, logit));
                sampler.sample_best(best, params, &self.sampler, generated)
            }
        };
        self.sampler.record(sampled.token);
        self.run.push(sampled);
    }

    /// Returns whether the next token is to be chosen later.
    pub(crate) fn is_late(&self) -> bool {
        self.late.is_some()
    }

    /// Returns whether the token that was to be chosen later can be chosen now.
    pub(crate) fn can_resume(&mut self) -> bool {
        self.late.is_some() && self.bound.as_mut().is_none_or(Bound::is_settled)
    }

    /// Chooses the token that was to be chosen later.
    pub(crate) fn resume(&mut self, sampler: &mut Sampler, params: &SamplingParams, eos: &[TokenId]) {
        if let Some(mut row) = self.late.take() {
            self.sample(sampler, params, &mut Logits::All(&mut row), eos, None);
        }
    }

    /// Goes through the tokens that the pass gave, after a prompt of `prompt_len` tokens, up to the first that ends the
    /// continuation, and drops those behind it. Returns how many are left. Returns 0 if no token was wanted, or if
    /// there is a [fault](Self::fault).
    pub(crate) fn accept(&mut self, params: &SamplingParams, prompt_len: usize, ends: Ends<'_>) -> usize {
        if self.fault.is_some() {
            return 0;
        }
        for index in 0..self.run.len() {
            let (token, generated) = (self.run[index].token, self.generated + index + 1);
            let may_stop = generated > params.min_tokens;
            let progress = self.bound.as_mut().map_or(Ok(Standing::Open), |bound| bound.advance(token));
            let is_complete = match progress {
                Ok(progress) => progress == Standing::Complete,
                Err(error) => {
                    self.fault = Some(RequestError::Constraint(error));
                    return 0;
                }
            };
            self.end = if may_stop && !params.ignore_eos && ends.eos.contains(&token) {
                Some(FinishReason::EndOfSequence)
            } else if may_stop && params.stop_token_ids.contains(&token) {
                Some(FinishReason::StopToken(token))
            } else if is_complete {
                Some(FinishReason::Complete)
            } else if generated >= params.max_tokens || prompt_len + generated >= ends.length_max {
                Some(FinishReason::Length)
            } else {
                None
            };
            if self.end.is_some() {
                self.run.truncate(index + 1);
                break;
            }
        }
        self.run.len()
    }

    /// Tells the client of the tokens that were accepted. Returns how many there were, and the last one or the reason
    /// why nothing follows it.
    pub(crate) fn deliver(&mut self) -> (usize, Result<TokenId, FinishReason>) {
        let (count, last) = (self.run.len(), self.run.last().map(|sampled| sampled.token));
        for Sampled { token, logprobs } in self.run.drain(..) {
            self.client.send(Event::Token { id: token, logprobs });
        }
        self.generated += count;
        let outcome = match (self.end, last) {
            (Some(reason), _) => Err(reason),
            (None, Some(last)) => Ok(last),
            // The request asked for no token.
            (None, None) => Err(FinishReason::Length),
        };
        (count, outcome)
    }

    /// Returns the number of tokens that the client was told of.
    pub(crate) fn generated(&self) -> usize {
        self.generated
    }
}

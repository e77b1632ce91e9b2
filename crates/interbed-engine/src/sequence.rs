//! One sequence of tokens from arrival to end: its client, its sampling, and its rank among others.

use std::cmp::Reverse;

use interbed_grammar::{Constraint, Standing};
use interbed_kv::{FetchId, PrefixHashes, SequenceId};
use interbed_model::Logits;

use crate::handle::Client;
use crate::masks::{Bound, MaskWorkers, Masked};
use crate::sampler::{Sampled, Sampler, SamplerState};
use crate::{Event, FinishReason, RequestError, SamplingParams, TenantId, TokenId};

/// Names a [`SequenceGroup`](crate::group::SequenceGroup).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupId(pub(crate) u64);

/// A sequence from arrival to end.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// Its name, under which the block manager knows the KV that it holds.
    pub(crate) id: SequenceId,
    /// The request that it is part of.
    pub(crate) group: GroupId,
    /// Whether all sequences of its group make room and come back together: the beams of a search.
    pub(crate) lockstep: bool,
    /// What is reported to a client. Nothing is reported of a beam before its search is over.
    pub(crate) continuation: Option<Continuation>,
    /// Prompt and generated tokens, then [`drafts`](Self::drafts). The last one generated has no KV yet.
    tokens: Vec<TokenId>,
    /// How many of them are prompt or generated.
    length: usize,
    /// Tokens of the prompt.
    pub(crate) prompt_len: usize,
    /// Tokens, prompt and generated together, that it may come to.
    pub(crate) tokens_max: usize,
    /// Leading tokens whose KV is in the sequence's blocks, or in swap space. 0 while waiting.
    pub(crate) computed: usize,
    /// Names its prefixes: the root of its chain and, while it waits, the hashes of its blocks.
    pub(crate) hashes: PrefixHashes,
    /// Lower runs first.
    pub(crate) priority: i32,
    /// Whose share of the blocks it takes.
    pub(crate) tenant: Option<TenantId>,
    /// Whether it may become longer than memory: it has no others with which it shares its KV.
    pub(crate) may_be_long: bool,
    /// Whether it has become so.
    pub(crate) is_long: bool,
    /// Whether log-probabilities of all tokens of its prompt are wanted.
    pub(crate) ranks_prompt: bool,
    /// Stretches of such a sequence that are on disk and stay there.
    pub(crate) kept: usize,
    /// Whether all of it is to be on disk, because memory may not be enough.
    pub(crate) is_stored: bool,
    /// What is fetched of it while it computes what comes before that.
    pub(crate) ahead: Option<Ahead>,
    /// Whether its client wants to know why its prefix was not cached.
    pub(crate) explain: bool,
    /// Order of submission.
    pub(crate) arrival: u64,
    /// Order among sequences that branched off the same one, and so have the same arrival; 0 for a sequence that did
    /// not branch off.
    pub(crate) branch: u64,
    /// Times it lost its blocks to others.
    pub(crate) preemptions: u32,
    /// Those of them in which its KV was swapped out rather than dropped.
    pub(crate) swaps: u32,
    /// Sequences that were admitted while it waited, although they came later or had to wait for blocks behind it; or
    /// while it was the first to be swapped in.
    pub(crate) overtaken: u32,
    /// Number of its first admission. It keeps that, so that a preempted sequence does not count as the latest.
    pub(crate) admission: Option<u64>,
    /// Sequences that it counts for while it runs; at least 1. Beams of a search count for its width together.
    pub(crate) seats: usize,
    /// Whether it is the trunk of a search: it stands for all beams, which have lost their blocks, and computes the
    /// tokens that they have in common.
    pub(crate) trunk: bool,
    pub(crate) status: SequenceStatus,
}

/// How often a sequence had to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Preempted {
    pub(crate) times: u32,
    /// Preemptions in which its KV was swapped out.
    pub(crate) swaps: u32,
}

/// Sequences that may be admitted past one that waits or is swapped out. After this many its priority has aged to the
/// highest, whatever its priority and size, so that neither small nor important requests can starve it.
pub(crate) const MAX_OVERTAKEN: u32 = 64;

/// Preemptions after which a sequence is admitted only where it will find blocks up to its very end, and is not chosen
/// again.
pub(crate) const MAX_PREEMPTIONS: u32 = 4;

impl Sequence {
    /// One that has just arrived with `prompt`, and waits.
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

    /// A sequence with the same history and status, which ranks right after this one and has no client yet. Its list of
    /// tokens has capacity for twice its length, but no more than the sequence can ever need.
    pub(crate) fn branch(&self, id: SequenceId, branch: u64) -> Self {
        let mut tokens = self.tokens().to_vec();
        tokens.reserve_exact(self.tokens_max.saturating_sub(self.length).min(self.length));
        Self { id, branch, continuation: None, tokens, hashes: self.hashes.clone(), seats: 1, trunk: false, ..*self }
    }

    /// Prompt and generated tokens.
    pub(crate) fn tokens(&self) -> &[TokenId] {
        &self.tokens[..self.length]
    }

    /// Guesses at what comes next, which the next pass tries.
    pub(crate) fn drafts(&self) -> &[TokenId] {
        &self.tokens[self.length..]
    }

    /// The tokens of a pass that begins at position `start`, drafts included.
    pub(crate) fn tokens_from(&self, start: usize) -> &[TokenId] {
        &self.tokens[start..]
    }

    /// Number of prompt and generated tokens.
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

    /// The next pass is to try `drafts`.
    pub(crate) fn set_drafts(&mut self, drafts: &[TokenId]) {
        self.tokens.truncate(self.length);
        self.tokens.extend_from_slice(drafts);
    }

    /// The first `count` drafts turned out to be right, and the others wrong.
    pub(crate) fn accept_drafts(&mut self, count: usize) {
        self.length += count;
        self.tokens.truncate(self.length);
    }

    /// It has lost its KV, and keeps the first `length` tokens.
    pub(crate) fn lose_kv(&mut self, length: usize) {
        self.tokens.truncate(length);
        (self.length, self.computed) = (self.tokens.len(), 0);
        // It comes back with what it has generated.
        self.hashes.truncate(self.length);
        self.hashes.extend(&self.tokens);
    }

    /// Tokens whose KV the next passes have to compute: at least one, but for a beam that waits for others of its
    /// search.
    pub(crate) fn pending(&self) -> usize {
        self.length - self.computed
    }

    /// Those of them that can be computed before what is [fetched](Self::ahead) has come.
    pub(crate) fn computable(&self) -> usize {
        self.ahead.as_ref().map_or(self.length, |ahead| ahead.first) - self.computed
    }

    /// Tokens generated so far.
    pub(crate) fn generated(&self) -> usize {
        self.length - self.prompt_len
    }

    pub(crate) fn preempted(&self) -> Preempted {
        Preempted { times: self.preemptions, swaps: self.swaps }
    }

    /// The group that it shares its fate with, if there is one.
    pub(crate) fn search(&self) -> Option<GroupId> {
        self.lockstep.then_some(self.group)
    }

    /// Whether it was preempted or overtaken often enough to come before all others.
    pub(crate) fn is_urgent(&self) -> bool {
        self.overtaken >= MAX_OVERTAKEN || self.is_spared()
    }

    /// Whether it must not be preempted again.
    pub(crate) fn is_spared(&self) -> bool {
        self.preemptions >= MAX_PREEMPTIONS
    }

    /// Where it stands in the queue of its [`place`](Self::place).
    pub(crate) fn rank(&self) -> Rank {
        let turn = match self.status {
            SequenceStatus::Waiting => u64::from(self.preemptions == 0),
            _ => self.admission.unwrap_or(u64::MAX),
        };
        let (urgent, order) = (Reverse(self.is_urgent()), (self.arrival, self.branch));
        Rank { urgent, priority: self.priority, turn, order }
    }
}

/// The order of every queue. In the waiting one, each tenant has a queue of its own. The last that runs is the first to
/// be preempted. Urgency does not change while a sequence runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// Urgent sequences first.
    urgent: Reverse<bool>,
    /// Then the most important.
    priority: i32,
    /// Then, among waiting sequences, preempted ones; among others, in order of admission.
    turn: u64,
    /// Then who came first.
    order: (u64, u64),
}

impl Rank {
    /// Before all others.
    pub(crate) const FIRST: Self = Self { urgent: Reverse(true), priority: i32::MIN, turn: 0, order: (0, 0) };

    /// Whether this one is more urgent than `other`, or as urgent and more important.
    pub(crate) fn outranks(&self, other: &Self) -> bool {
        (self.urgent, self.priority) < (other.urgent, other.priority)
    }
}

/// Which queue a sequence is in.
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
    /// Holds no blocks.
    Waiting,
    /// Holds blocks for all its tokens but at most the last.
    Running,
    /// Its blocks are being swapped out.
    Leaving,
    /// Its KV is in swap space.
    Swapped,
    /// Its KV is being swapped in.
    Arriving,
    /// The beginning of its KV is being fetched from disk.
    Fetching,
}

/// A part of a prompt that is fetched while what comes before it is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ahead {
    pub(crate) fetch: FetchId,
    /// Its first token.
    pub(crate) first: usize,
    /// How many tokens of it are there, once it has ended.
    pub(crate) came: Option<usize>,
}

/// One answer to a prompt: its client, and its sampling.
#[derive(Debug)]
pub(crate) struct Continuation {
    pub(crate) client: Client,
    sampler: SamplerState,
    /// Tokens that the client was told of.
    generated: usize,
    /// Tokens sampled in the current pass: one, and one more for each draft that turned out to be right.
    run: Vec<Sampled>,
    /// The end that the last of `run` is.
    end: Option<FinishReason>,
    /// What it may be.
    bound: Option<Bound>,
    /// The logits of the next token, where what may come is not known yet.
    late: Option<Vec<f32>>,
    /// Why it cannot go on, if it cannot: its logits were not numbers, or it is not known what may follow.
    pub(crate) fault: Option<RequestError>,
}

/// Most sequences for which nothing was sampled because it was not known what may come. Each keeps its logits.
pub const LATE_MAX: usize = 32;

/// What ends a continuation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends<'a> {
    /// The model's end-of-sequence tokens.
    pub(crate) eos: &'a [TokenId],
    /// Tokens of prompt and answer together.
    pub(crate) length_max: usize,
}

impl Continuation {
    pub(crate) fn new(client: Client, sampler: SamplerState, constraint: Option<Constraint>) -> Self {
        let bound = constraint.map(Bound::new);
        Self { client, sampler, generated: 0, run: Vec::new(), end: None, bound, late: None, fault: None }
    }

    /// Has computed what may come next, and behind each of `drafts`.
    pub(crate) fn begin_masks(&mut self, workers: &mut MaskWorkers, drafts: &[TokenId]) {
        self.bound.iter_mut().for_each(|bound| bound.begin(workers, drafts));
    }

    /// Whether what may come next is bound.
    pub(crate) fn is_bound(&self) -> bool {
        self.bound.is_some()
    }

    /// Takes over what may come next from `other`, which has as many tokens: none.
    pub(crate) fn share_masks(&mut self, other: &mut Self) {
        if let (Some(bound), Some(other)) = (&mut self.bound, &mut other.bound) {
            bound.share_masks(other);
        }
    }

    /// Whether the row after the first `count` of `drafts` is valid: all of these equal the tokens that were sampled in
    /// their places.
    pub(crate) fn follows(&self, drafts: &[TokenId], count: usize) -> bool {
        // Earlier drafts were compared when the tokens after them were sampled.
        self.run.len() == count && self.run.last().is_none_or(|last| last.token == drafts[count - 1])
    }

    /// Chooses the next token from `logits`; later, where what may come is not known in time and not too many are
    /// `late` already.
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

    /// Whether the next token is to be chosen later.
    pub(crate) fn is_late(&self) -> bool {
        self.late.is_some()
    }

    /// Whether it can be chosen now.
    pub(crate) fn can_resume(&mut self) -> bool {
        self.late.is_some() && self.bound.as_mut().is_none_or(Bound::is_settled)
    }

    /// Chooses the token that was to be chosen later.
    pub(crate) fn resume(&mut self, sampler: &mut Sampler, params: &SamplingParams, eos: &[TokenId]) {
        if let Some(mut row) = self.late.take() {
            self.sample(sampler, params, &mut Logits::All(&mut row), eos, None);
        }
    }

    /// Goes through the tokens that the pass gave, after a prompt of `prompt_len`, up to the first that ends the
    /// continuation, and drops those behind it. Returns how many are left: none if none was wanted, or if there is a
    /// [fault](Self::fault).
    pub(crate) fn accept(&mut self, params: &SamplingParams, prompt_len: usize, ends: Ends<'_>) -> usize {
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

    /// Tells the client of the tokens that were accepted. Returns how many, and the last one, or why nothing follows
    /// it.
    pub(crate) fn deliver(&mut self) -> (usize, Result<TokenId, FinishReason>) {
        let (count, last) = (self.run.len(), self.run.last().map(|sampled| sampled.token));
        for Sampled { token, logprobs } in self.run.drain(..) {
            self.client.send(Event::Token { id: token, logprobs });
        }
        self.generated += count;
        let outcome = match (self.end, last) {
            (Some(reason), _) => Err(reason),
            (None, Some(last)) => Ok(last),
            // No token was asked for.
            (None, None) => Err(FinishReason::Length),
        };
        (count, outcome)
    }

    /// Tokens that the client was told of.
    pub(crate) fn generated(&self) -> usize {
        self.generated
    }
}

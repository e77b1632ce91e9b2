//! A sequence of tokens, from arrival to end, and its rank among others.

use std::cmp::Reverse;

use interbed_kv::{FetchId, PrefixHashes, SequenceId};

use crate::continuation::Continuation;
use crate::{TenantId, TokenId};

/// The id of a [`SequenceGroup`](crate::group::SequenceGroup).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct GroupId(pub(crate) u64);

/// A sequence from arrival to end.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// The sequence's id, under which the block manager knows the KV that the sequence holds. Later sequences have
    /// higher ids.
    pub(crate) id: SequenceId,
    pub(crate) request: Requested,
    pub(crate) role: Role,
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
    /// The number of tokens behind the first `computed` ones that a pass has computed as drafts, or behind the state
    /// that it stored. Where layers keep states, the next pass computes these tokens again. Elsewhere it is 0.
    pub(crate) again: usize,
    /// The names of the sequence's prefixes: the root of its chain and, while it waits, the hashes of its blocks.
    pub(crate) hashes: PrefixHashes,
    /// The number of stretches of the sequence that are on disk and stay there, once the sequence has become longer
    /// than memory.
    pub(crate) kept: Option<usize>,
    /// Whether the sequence, which is longer than memory, is not admitted because what it goes on from is still being
    /// written to disk.
    pub(crate) awaits_tails: bool,
    /// Whether all of the sequence is to be on disk, because memory may not be enough for it.
    pub(crate) is_stored: bool,
    pub(crate) past: Past,
    pub(crate) status: SequenceStatus,
}

/// What a request says of all its sequences.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Requested {
    /// The request that the sequences are part of. It has the id of the request's first sequence, so that requests are
    /// in the order of arrival.
    pub(crate) group: GroupId,
    /// The priority. A sequence with a lower number runs first.
    pub(crate) priority: i32,
    /// The tenant whose share of the blocks the sequences take.
    pub(crate) tenant: Option<TenantId>,
    /// Whether a sequence may become longer than memory, which requires that it shares its KV with no other sequence
    /// of the request.
    pub(crate) may_be_long: bool,
    /// Whether log-probabilities of all tokens of the prompt are wanted.
    pub(crate) ranks_prompt: bool,
    /// Whether the client wants to know why the prefix was not cached.
    pub(crate) explain: bool,
}

/// What a sequence stands for in its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// An answer that is generated independently of other sequences.
    Answer,
    /// A beam of a beam search. All beams of a search are preempted together and return together. A running beam counts
    /// as `seats` sequences towards `max_num_seqs`, and `seats` is at least 1. The `seats` of all beams of a search add
    /// up to the width of the search.
    Beam { seats: usize },
    /// A sequence that replaces all beams of a search after they have lost their KV blocks. It consists of the leading
    /// tokens that the beams have in common, and computes the KV of these tokens again. It has the `seats` of all these
    /// beams together.
    Trunk { seats: usize },
}

/// What has happened to a sequence, as far as its rank depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Past {
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
}

/// The number of sequences that may be admitted past one that waits or is swapped out. After this many, the passed
/// sequence becomes urgent, whatever its priority and size, so that neither small nor important requests can starve it.
pub(crate) const MAX_OVERTAKEN: u32 = 64;

/// The number of preemptions after which a sequence is admitted only if it will find blocks up to its very end, and is
/// not preempted again if any other can be.
pub(crate) const MAX_PREEMPTIONS: u32 = 4;

impl Sequence {
    /// Creates a sequence that has just arrived with `prompt`, and waits.
    pub(crate) fn new(id: SequenceId, request: Requested, prompt: Vec<TokenId>, hashes: PrefixHashes) -> Self {
        Self {
            id,
            request,
            role: Role::Answer,
            continuation: None,
            length: prompt.len(),
            prompt_len: prompt.len(),
            tokens_max: prompt.len(),
            tokens: prompt,
            computed: 0,
            again: 0,
            hashes,
            kept: None,
            awaits_tails: false,
            is_stored: false,
            past: Past::default(),
            status: SequenceStatus::Waiting,
        }
    }

    /// Returns a sequence with the same history and status, which ranks right after this one and has no client yet. The
    /// new list of tokens has capacity for twice its length, but no more than the sequence can ever need.
    pub(crate) fn branch(&self, id: SequenceId) -> Self {
        let mut tokens = self.tokens().to_vec();
        tokens.reserve_exact(self.tokens_max.saturating_sub(self.length).min(self.length));
        let role = if self.search().is_some() { Role::Beam { seats: 1 } } else { Role::Answer };
        Self { id, role, continuation: None, tokens, hashes: self.hashes.clone(), ..*self }
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
        (self.length, self.computed, self.again) = (self.tokens.len(), 0, 0);
        // The sequence comes back with the tokens that it has generated, so their hashes are needed too.
        self.hashes.truncate(self.length);
        self.hashes.extend(&self.tokens);
    }

    /// Returns the number of tokens whose KV the next passes have to compute, those included that are computed
    /// [again](Self::again). It is at least one, except for a beam that waits for others of its search, and for a
    /// sequence whose next token is not chosen yet.
    pub(crate) fn pending(&self) -> usize {
        if self.fresh() == 0 { 0 } else { self.length - self.computed }
    }

    /// Returns the number of tokens that no pass has computed yet.
    pub(crate) fn fresh(&self) -> usize {
        self.length - self.computed - self.again
    }

    /// Returns the number of tokens that can be computed before the part that is fetched [ahead](Ahead) has come.
    pub(crate) fn computable(&self) -> usize {
        match self.status {
            SequenceStatus::Running(Some(Ahead { first, .. })) => first - self.computed,
            _ => self.pending(),
        }
    }

    /// Returns the number of tokens generated so far.
    pub(crate) fn generated(&self) -> usize {
        self.length - self.prompt_len
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.status, SequenceStatus::Running(_))
    }

    /// Returns whether the sequence has become longer than memory.
    pub(crate) fn is_long(&self) -> bool {
        self.kept.is_some()
    }

    /// Returns the number of sequences that this one counts for while it runs.
    pub(crate) fn seats(&self) -> usize {
        match self.role {
            Role::Answer => 1,
            Role::Beam { seats } | Role::Trunk { seats } => seats,
        }
    }

    pub(crate) fn is_trunk(&self) -> bool {
        matches!(self.role, Role::Trunk { .. })
    }

    /// Returns the search that the sequence is part of, if it is part of one.
    pub(crate) fn search(&self) -> Option<GroupId> {
        (self.role != Role::Answer).then_some(self.request.group)
    }

    /// Returns whether the sequence was preempted or overtaken often enough to come before all others.
    pub(crate) fn is_urgent(&self) -> bool {
        self.past.overtaken >= MAX_OVERTAKEN || self.is_spared()
    }

    /// Returns whether the sequence must not be preempted again.
    pub(crate) fn is_spared(&self) -> bool {
        self.past.preemptions >= MAX_PREEMPTIONS
    }

    /// Returns the sequence's rank in the queue of its [`status`](Self::status).
    pub(crate) fn rank(&self) -> Rank {
        let turn = match self.status {
            SequenceStatus::Waiting => u64::from(self.past.preemptions == 0),
            _ => self.past.admission.unwrap_or(u64::MAX),
        };
        let (urgent, order) = (Reverse(self.is_urgent()), (self.request.group, self.id));
        Rank { urgent, priority: self.request.priority, turn, order }
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
    /// The ids of request and sequence are compared last, so that the request that arrived first comes first, and its
    /// sequences in the order in which they began.
    order: (GroupId, SequenceId),
}

impl Rank {
    /// The rank before all others.
    pub(crate) const FIRST: Self =
        Self { urgent: Reverse(true), priority: i32::MIN, turn: 0, order: (GroupId(0), SequenceId(0)) };

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
    /// The sequence waits in the queue and holds no KV blocks.
    Waiting,
    /// The sequence runs. If its KV fits in memory, it holds KV blocks for all its tokens, or for all but the last. If
    /// there is an [`Ahead`], part of the prompt's KV is fetched from disk or from a shared store while the sequence
    /// computes the tokens before that part.
    Running(Option<Ahead>),
    /// The sequence's blocks are being swapped out.
    Leaving,
    /// The sequence's KV is in swap space, and the sequence waits to be swapped in.
    Swapped,
    /// The sequence's KV is being swapped in.
    Arriving,
    /// Part of the KV of the sequence's prompt is being read from disk or from a shared store, and the sequence waits
    /// for it.
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

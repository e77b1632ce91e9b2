//! What the scheduler knows of one sequence.

use std::cmp::Reverse;

use strata_kv::{PrefixHashes, SequenceId};

use crate::{TenantId, TokenId};

/// A sequence from arrival to end.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    /// Prompt and generated tokens. The last one generated has no KV yet.
    pub(crate) tokens: Vec<TokenId>,
    /// Tokens of the prompt.
    pub(crate) prompt_len: usize,
    /// Tokens, prompt and generated together, that it may come to.
    pub(crate) tokens_max: usize,
    /// Leading tokens whose KV is in the sequence's blocks, or in swap space. 0 while waiting.
    pub(crate) computed: usize,
    /// Names its prefixes: the root of its chain and the hashes of its blocks.
    pub(crate) hashes: PrefixHashes,
    /// Lower runs first.
    pub(crate) priority: i32,
    /// Whose share of the blocks it takes.
    pub(crate) tenant: Option<TenantId>,
    /// Whether its client wants to know why its prefix was not cached.
    pub(crate) explain: bool,
    /// Order of submission.
    pub(crate) arrival: u64,
    /// Order among all that have branched off others, which have the arrival of those; 0 for who has not.
    pub(crate) branch: u64,
    /// Times it lost its blocks to others.
    pub(crate) preemptions: u32,
    /// Those of them in which its KV was swapped out rather than dropped.
    pub(crate) swaps: u32,
    /// Sequences that were admitted while it waited, although they came later or had to wait for blocks behind it; or while
    /// it was the first to be swapped in.
    pub(crate) overtaken: u32,
    /// Number of its first admission, which it keeps: who has been preempted is not the last-come again.
    pub(crate) admission: Option<u64>,
    /// Sequences that it counts for while it runs; at least 1. Beams of a search count for its width together.
    pub(crate) seats: usize,
    /// The search whose beam it is, or what its beams begin with, named by its first sequence. They make room and come back
    /// together.
    pub(crate) search: Option<SequenceId>,
    pub(crate) place: Place,
}

/// How often a sequence had to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Preempted {
    pub(crate) times: u32,
    /// Those in which its KV was swapped out.
    pub(crate) swaps: u32,
}

/// Sequences that may be admitted past one that waits, or is swapped out. After so many its priority has aged to the highest, whatever it was
/// and however large it is, so that neither small nor important requests can starve it (S5).
pub(crate) const MAX_OVERTAKEN: u32 = 64;

/// Preemptions after which a sequence is admitted only where it will find blocks up to its very end, and is not chosen
/// again (`lessons.md`, "Scheduling").
pub(crate) const MAX_PREEMPTIONS: u32 = 4;

impl Sequence {
    /// Tokens whose KV the next passes have to compute: at least one, but for a beam that waits for others of its search.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Tokens generated so far.
    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    pub(crate) fn preempted(&self) -> Preempted {
        Preempted { times: self.preemptions, swaps: self.swaps }
    }

    /// Whether it has suffered enough to come before everybody else.
    pub(crate) fn is_urgent(&self) -> bool {
        self.overtaken >= MAX_OVERTAKEN || self.is_spared()
    }

    /// Whether it has been preempted as often as may be.
    pub(crate) fn is_spared(&self) -> bool {
        self.preemptions >= MAX_PREEMPTIONS
    }

    /// Place in the waiting queue: by tenant, and among a tenant's the urgent first, then by priority, then those that were
    /// preempted (S2: to the front), then by arrival.
    pub(crate) fn waiting_key(&self) -> WaitingKey {
        let order = (self.arrival, self.branch);
        let rank = (Reverse(self.is_urgent()), self.priority, Reverse(self.preemptions > 0), order);
        WaitingKey { tenant: self.tenant, rank }
    }

    /// Place in the running set, and in the swapped queue: the urgent first, then by priority, then by first admission. The
    /// last is the first to be preempted. Urgency does not change while it runs.
    pub(crate) fn running_key(&self) -> RunningKey {
        (Reverse(self.is_urgent()), self.priority, self.admission.unwrap_or(u64::MAX), (self.arrival, self.branch))
    }
}

/// See [`Sequence::waiting_key`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaitingKey {
    pub(crate) tenant: Option<TenantId>,
    rank: (Reverse<bool>, i32, Reverse<bool>, (u64, u64)),
}

impl WaitingKey {
    /// Before all of a tenant's.
    pub(crate) fn first_of(tenant: Option<TenantId>) -> Self {
        Self { tenant, rank: (Reverse(true), i32::MIN, Reverse(true), (0, 0)) }
    }
}

pub(crate) type RunningKey = (Reverse<bool>, i32, u64, (u64, u64));

/// Which queue a sequence is in (S1).
///
/// | place | leaves it by |
/// |---|---|
/// | waiting | admission → running |
/// | running | preemption → waiting, or leaving |
/// | leaving | the end of its swap: done → swapped, failed → waiting |
/// | swapped | room → arriving; blocks that it will not get back → waiting |
/// | arriving | the end of its swap: done → running, failed → waiting |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
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
}

//! What the scheduler knows of one sequence.

use std::cmp::Reverse;

use strata_kv::ChainRoot;

use crate::TokenId;

/// A sequence from arrival to end.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    /// Prompt and generated tokens. The last one generated has no KV yet.
    pub(crate) tokens: Vec<TokenId>,
    /// Leading tokens whose KV is in the sequence's blocks. 0 while waiting.
    pub(crate) computed: usize,
    /// Where its chain of blocks starts.
    pub(crate) root: ChainRoot,
    /// Lower runs first.
    pub(crate) priority: i32,
    /// Order of submission.
    pub(crate) arrival: u64,
    /// Times it lost its blocks to others.
    pub(crate) preemptions: u32,
    /// Sequences that came later and were admitted while it waited.
    pub(crate) overtaken: u32,
    /// Number of its first admission, which it keeps: who has been preempted is not the last-come again.
    pub(crate) admission: Option<u64>,
    /// Sequences that it counts for while it runs: 1, or for one beam of a search the width and for its others 0.
    pub(crate) seats: usize,
    pub(crate) place: Place,
}

/// Later sequences that may be admitted past a waiting one. After so many it is served first, whatever its priority and
/// size, so that neither small nor important requests can starve it (S5).
pub(crate) const MAX_OVERTAKEN: u32 = 64;

/// Preemptions after which a sequence is no longer chosen while any other can be (`lessons.md`, "Scheduling").
pub(crate) const MAX_PREEMPTIONS: u32 = 4;

impl Sequence {
    /// Tokens whose KV the next passes have to compute: at least one, but for a beam that waits for others of its search.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Whether it has suffered enough to come before everybody else.
    pub(crate) fn is_urgent(&self) -> bool {
        self.overtaken >= MAX_OVERTAKEN || self.preemptions >= MAX_PREEMPTIONS
    }

    /// Place in the waiting queue: the urgent first, then by priority, then those that were preempted (S2: to the
    /// front), then by arrival.
    pub(crate) fn waiting_key(&self) -> WaitingKey {
        (Reverse(self.is_urgent()), self.priority, Reverse(self.preemptions > 0), self.arrival)
    }

    /// Place in the running set: the urgent first, then by priority, then by first admission, which those that forked have
    /// in common. The last is the first to be preempted. Urgency does not change while it runs.
    pub(crate) fn running_key(&self) -> RunningKey {
        (Reverse(self.is_urgent()), self.priority, self.admission.unwrap_or(u64::MAX), self.arrival)
    }
}

pub(crate) type WaitingKey = (Reverse<bool>, i32, Reverse<bool>, u64);

pub(crate) type RunningKey = (Reverse<bool>, i32, u64, u64);

/// Which queue a sequence is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Holds no blocks. Becomes `Running` when admitted.
    Waiting,
    /// Holds blocks for all its tokens but at most the last. Becomes `Waiting` again when preempted.
    Running,
}

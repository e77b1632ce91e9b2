//! The plan of a pass, into which the scheduler writes what it decides.

use interbed_kv::{Miss, SequenceId, Swap};

use crate::TokenId;
use crate::event::FoundBelow;
use crate::pace::{Allowance, PREFILL_LEAST, Work};
use crate::sequence::Sequence;

/// One sequence's part of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlannedTokens {
    pub(crate) id: SequenceId,
    /// The position of the first token to compute.
    pub(crate) start: usize,
    /// The number of tokens to compute, drafts included.
    pub(crate) count: usize,
    /// The number of tokens that may be sampled. It is 0 in the middle of a prompt. Otherwise one token may be sampled
    /// after the last known token, and one after each draft.
    pub(crate) rows: usize,
    /// The number of leading tokens that were computed before, and are computed again for layers that keep states.
    pub(crate) again: usize,
    /// The number of leading tokens behind which states are stored: those that are certain, or fewer.
    pub(crate) stored_after: usize,
}

impl PlannedTokens {
    /// Returns whether these are the last tokens of the sequence, so that the next token can be sampled.
    pub(crate) fn samples(&self) -> bool {
        self.rows > 0
    }

    /// Returns the number of tokens to compute that are drafts.
    pub(crate) fn drafts(&self) -> usize {
        self.rows.saturating_sub(1)
    }

    /// Returns whether this computes part of a prompt, or KV that a sequence has lost, rather than a single token with
    /// or without drafts.
    pub(super) fn is_prefill(&self) -> bool {
        self.count - self.drafts() - self.again > 1
    }
}

/// A sequence that has left the waiting queue because it was admitted.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) id: SequenceId,
    /// The number of tokens whose KV the sequence need not compute, because it was kept.
    pub(crate) cached: usize,
    /// The tokens of the prompt that came from below memory.
    pub(crate) below: Vec<FoundBelow>,
    /// Where the prefix stopped matching and why, if the client asked.
    pub(crate) miss: Option<Miss>,
}

/// A sequence that was rejected, because it can never fit.
#[derive(Debug)]
pub(crate) struct Rejected {
    pub(crate) sequence: Sequence,
    /// The number of blocks that the sequence needs.
    pub(crate) need: usize,
    /// The number of blocks in all.
    pub(crate) limit: usize,
}

/// The plan of the next pass: what the pass computes, and the admissions, preemptions, swaps and rejections that
/// planning took.
#[derive(Debug, Default)]
pub(crate) struct StepPlan {
    pub(crate) entries: Vec<PlannedTokens>,
    pub(crate) admitted: Vec<Admitted>,
    /// The sequences that lost their blocks, or are about to lose them.
    pub(crate) preempted: Vec<SequenceId>,
    /// The sequences that can never fit.
    pub(crate) rejected: Vec<Rejected>,
    /// The sequences that were taken out of the pass, and wait to come back as sequences that are longer than memory.
    pub(crate) left: Vec<SequenceId>,
    /// The sequences that are longer than memory and cannot go on before more of their KV is on disk.
    pub(crate) waits_for_disk: Vec<SequenceId>,
    /// The swaps that are begun once the copies of [`Scheduler::take_copies`](super::Scheduler::take_copies) are made.
    pub(crate) swaps: Vec<Swap>,
    /// The number of tokens that the pass still has room for.
    pub(super) budget: usize,
    /// The time that prefill may still take, if sequences that generate wait for the pass.
    pub(super) paced: Option<Paced>,
    /// Whether every admission is to say why its prefix was not cached.
    pub(crate) explain_all: bool,
    /// Scratch memory for one sequence's drafts.
    pub(super) drafts: Vec<TokenId>,
    /// Scratch memory for the running sequences with one pending token.
    pub(super) decodes: Vec<SequenceId>,
    /// Scratch memory for the running sequences with more pending tokens.
    pub(super) chunks: Vec<SequenceId>,
}

impl StepPlan {
    /// Empties the plan, and sets the number of tokens that the pass has room for.
    pub(super) fn begin(&mut self, budget: usize) {
        self.entries.clear();
        self.admitted.clear();
        self.preempted.clear();
        self.rejected.clear();
        self.left.clear();
        self.waits_for_disk.clear();
        self.swaps.clear();
        self.decodes.clear();
        self.chunks.clear();
        self.budget = budget;
    }

    /// Returns the number of tokens of the pass, if most of them are prefill. The duration of such a pass tells how
    /// long a prompt token takes.
    pub(crate) fn prefill_tokens(&self) -> Option<usize> {
        let tokens = |entry: &PlannedTokens| entry.count;
        let all: usize = self.entries.iter().map(tokens).sum();
        let prefill: usize = self.entries.iter().filter(|entry| entry.is_prefill()).map(tokens).sum();
        (2 * prefill > all).then_some(all)
    }

    /// Sets half of the room aside.
    pub(super) fn leave_half(&mut self) -> Left {
        let left = Left { tokens: self.budget / 2, share: self.paced.map_or(0.0, |paced| paced.share / 2.0) };
        self.budget -= left.tokens;
        self.paced.iter_mut().for_each(|paced| paced.share -= left.share);
        left
    }

    /// Makes the room that was set aside usable again.
    pub(super) fn give_back(&mut self, left: Left) {
        self.budget += left.tokens;
        self.paced.iter_mut().for_each(|paced| paced.share += left.share);
    }

    /// Takes the time for `entry`, which becomes part of the pass.
    pub(super) fn spend_time(&mut self, entry: &PlannedTokens) {
        if entry.is_prefill() {
            self.paced.iter_mut().for_each(|paced| paced.take(entry.start, entry.count));
        }
    }

    /// Gives back the time for `entry`, which is no longer part of the pass.
    pub(super) fn regain_time(&mut self, entry: &PlannedTokens) {
        if entry.is_prefill() {
            self.paced.iter_mut().for_each(|paced| paced.put_back(entry.start, entry.count));
        }
    }

    /// Returns whether the pass has room for a chunk that is worth admitting a sequence for.
    pub(super) fn has_room(&self) -> bool {
        self.budget > 0 && self.paced.is_none_or(|paced| paced.room(0) >= PREFILL_LEAST / 4)
    }

    /// Returns the amount of work in the pass.
    pub(crate) fn work(&self) -> Work {
        let mut work = Work::default();
        self.entries.iter().for_each(|entry| work.add(entry.start, entry.count, entry.is_prefill()));
        work
    }
}

/// The time that prefill may still take of a pass for which sequences that generate wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paced {
    pub(super) allowance: Allowance,
    /// The share of the allowance that is left, from 0 to 1.
    pub(super) share: f64,
}

impl Paced {
    /// Returns how many tokens from position `start` on fit into what is left.
    pub(super) fn room(&self, start: usize) -> usize {
        // Shares are sums of fractions, so the small addend corrects rounding.
        (self.share * self.allowance.tokens(start) as f64 + 1e-9) as usize
    }

    /// Takes the time for `tokens` more tokens of a chunk that begins at position `start`.
    pub(super) fn take(&mut self, start: usize, tokens: usize) {
        self.share = (self.share - tokens as f64 / self.allowance.tokens(start) as f64).max(0.0);
    }

    /// Gives back the time for `tokens` tokens of a chunk that begins at position `start`.
    fn put_back(&mut self, start: usize, tokens: usize) {
        self.share = (self.share + tokens as f64 / self.allowance.tokens(start) as f64).min(1.0);
    }
}

/// The room in a pass that a chunk leaves to others.
#[derive(Debug, Default)]
pub(super) struct Left {
    tokens: usize,
    share: f64,
}

//! Paces prefill beside sequences that generate: all chunks of a pass share the time that [`Pace`](crate::pace::Pace)
//! allows.

use interbed_kv::SequenceId;

use super::{PlannedTokens, Scheduler, StepPlan};
use crate::pace::{Allowance, PREFILL_LEAST, Work};

/// The time that prefill may still take of a pass for which sequences that generate wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paced {
    allowance: Allowance,
    /// The share of the allowance that is left, from 0 to 1.
    share: f64,
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

impl StepPlan {
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

impl Scheduler {
    /// Returns what prefill may take beside `decodes`, the sequences for which the pass computes one token each.
    /// Returns `None` if no sequence that generates waits for the pass.
    pub(super) fn paced(&self, decodes: &[SequenceId]) -> Option<Paced> {
        let pace = self.pace.as_ref()?;
        // A sequence that is not part of the pass, since it waits for a mask or for other beams, waits for the pass's
        // end too.
        let generates = |id| {
            let sequence = &self.sequences[&id];
            sequence.generated() > 0 && sequence.pending() <= 1
        };
        if !self.queues.running().any(generates) {
            return None;
        }
        let mut work = Work::default();
        decodes.iter().for_each(|id| work.add(self.sequences[id].computed, 1, false));
        Some(Paced { allowance: pace.allowance(&work), share: 1.0 })
    }

    /// Returns how many tokens of `id` the pass has room for.
    pub(super) fn room_of(&self, id: SequenceId, plan: &StepPlan) -> usize {
        let sequence = &self.sequences[&id];
        match &plan.paced {
            // A single token is not prefill.
            Some(paced) if sequence.pending() > 1 => plan.budget.min(paced.room(sequence.computed)),
            _ => plan.budget,
        }
    }

    /// Records that a pass of this `work` took so many `seconds`, with all that was done before and after it in its
    /// step.
    pub(crate) fn measured(&mut self, work: &Work, seconds: f64) {
        self.pace.iter_mut().for_each(|pace| pace.measured(work, seconds));
    }
}

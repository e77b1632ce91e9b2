//! Paces prefill beside sequences that generate: all chunks of a pass share the time that [`Pace`](crate::pace::Pace)
//! allows.

use interbed_kv::SequenceId;

use super::Scheduler;
use super::plan::{Paced, StepPlan};
use crate::pace::Work;

impl Scheduler {
    /// Returns what prefill may take beside `decodes`, the sequences for which the pass computes one token each.
    /// Returns `None` if no sequence that generates waits for the pass.
    pub(super) fn paced(&self, decodes: &[SequenceId]) -> Option<Paced> {
        let pace = self.pace.as_ref()?;
        // A sequence that is not part of the pass, since it waits for a mask or for other beams, waits for the pass's
        // end too.
        let generates = |id| {
            let sequence = &self.sequences[&id];
            sequence.generated() > 0 && sequence.fresh() <= 1
        };
        if !self.queues.running().any(generates) {
            return None;
        }
        let mut work = Work::default();
        for sequence in decodes.iter().map(|id| &self.sequences[id]) {
            work.add(sequence.computed, sequence.pending(), false);
        }
        Some(Paced { allowance: pace.allowance(&work), share: 1.0 })
    }

    /// Returns how many tokens of `id` the pass has room for.
    pub(super) fn room_of(&self, id: SequenceId, plan: &StepPlan) -> usize {
        let sequence = &self.sequences[&id];
        match &plan.paced {
            // A single token is not prefill.
            Some(paced) if sequence.fresh() > 1 => plan.budget.min(paced.room(sequence.computed)),
            _ => plan.budget,
        }
    }

    /// Records that a pass of this `work` took so many `seconds`, with all that was done before and after it in its
    /// step.
    pub(crate) fn measured(&mut self, work: &Work, seconds: f64) {
        self.pace.iter_mut().for_each(|pace| pace.measured(work, seconds));
    }
}

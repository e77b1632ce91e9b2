//! Schedules sequences of one prompt. Continuations fork off and go on independently. The beams of a search go on in
//! lockstep, hold their seats together, and make room together.

use interbed_kv::SequenceId;

use super::Scheduler;
use crate::TokenId;
use crate::continuation::Continuation;
use crate::sequence::{Past, Role, Sequence, SequenceStatus};

impl Scheduler {
    /// Makes `child` a copy of `parent`, all of whose tokens are computed, followed by `token`. If there is a seat and
    /// blocks suffice, the child runs and shares the parent's blocks; otherwise it waits. Returns whether the child
    /// runs.
    pub(crate) fn fork(
        &mut self,
        parent: SequenceId,
        child: SequenceId,
        token: TokenId,
        continuation: Option<Continuation>,
    ) -> bool {
        let mut sequence = self.branched(parent, child);
        sequence.continuation = continuation;
        sequence.extend([token]);
        // The child does not inherit how often its parent was preempted or overtaken. If all children were urgent from
        // the start, together they would keep out others that have waited as long.
        sequence.past = Past { admission: sequence.past.admission, ..Past::default() };
        let mut runs = self.queues.seats() < self.config.max_num_seqs
            && self.short_of(&[&sequence], 1).is_none()
            && self.blocks.fork(parent, child).is_ok();
        if runs && self.blocks.append(child, &[token]).is_err() {
            self.blocks.free(child);
            runs = false;
        }
        if !runs {
            sequence.status = SequenceStatus::Waiting;
            sequence.lose_kv(sequence.len());
        }
        self.know(sequence);
        runs
    }

    /// Makes `child` another beam like `parent`, all of whose tokens are computed. The child takes no block yet.
    /// [`Scheduler::share_seats`] must follow.
    pub(crate) fn branch(&mut self, parent: SequenceId, child: SequenceId) {
        let sequence = self.branched(parent, child);
        self.blocks.fork(parent, child).expect("a running parent holds blocks, and a new child none");
        self.know(sequence);
    }

    /// Divides the seats of a search of this width among `beams`, which are all its beams.
    pub(crate) fn share_seats(&mut self, beams: &[SequenceId], width: usize) {
        for (index, id) in beams.iter().enumerate() {
            let sequence = self.sequences.get_mut(id).expect("a live beam is known");
            self.queues.make_beam(sequence, if index == 0 { width - (beams.len() - 1) } else { 1 });
        }
    }

    /// Appends tokens that are known and have no KV.
    pub(crate) fn extend(&mut self, id: SequenceId, tokens: impl IntoIterator<Item = TokenId>) {
        self.sequences.get_mut(&id).expect("a live beam is known").extend(tokens);
    }

    /// Makes the first of `beams`, which have lost their KV and are in no queue, the trunk of all of them. Returns how
    /// many leading tokens the beams have in common; the trunk is to keep only these.
    pub(super) fn gather(&mut self, beams: &[SequenceId]) -> usize {
        let Some((&first, others)) = beams.split_first() else { return 0 };
        let mut trunk = self.sequences.remove(&first).expect("a live beam is known");
        let mut num_common = trunk.len();
        for id in others {
            let beam = self.sequences.remove(id).expect("a live beam is known");
            let pairs = trunk.tokens().iter().zip(beam.tokens());
            num_common = pairs.take(num_common).take_while(|(one, other)| one == other).count();
            trunk.role = Role::Trunk { seats: trunk.seats() + beam.seats() };
            trunk.past.preemptions = trunk.past.preemptions.max(beam.past.preemptions);
            trunk.past.swaps = trunk.past.swaps.max(beam.past.swaps);
            trunk.past.overtaken = trunk.past.overtaken.max(beam.past.overtaken);
            self.tenants.leave(beam.request.tenant);
        }
        self.sequences.insert(first, trunk);
        num_common
    }

    /// Returns a running sequence like `id` that ranks after `id`, and before all sequences that arrived later.
    fn branched(&self, id: SequenceId, child: SequenceId) -> Sequence {
        let sequence = &self.sequences[&id];
        debug_assert!(sequence.is_running() && sequence.pending() == 0, "{id} is to be computed first");
        sequence.branch(child)
    }
}

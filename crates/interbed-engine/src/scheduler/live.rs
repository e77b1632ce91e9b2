//! Lists the sequences for those who watch.

use interbed_kv::SequenceId;

use super::Scheduler;
use crate::live::{GroupSight, LivePlace, LiveSequence};
use crate::sequence::{GroupId, Sequence, SequenceStatus};

impl Scheduler {
    /// Writes up to `most` sequences into `shown` and replaces what was there. Running sequences come first. `of_group`
    /// returns the facts about a sequence's request.
    pub(crate) fn live_sequences(
        &self,
        most: usize,
        of_group: impl Fn(GroupId) -> GroupSight,
        shown: &mut Vec<LiveSequence>,
    ) {
        shown.clear();
        let queues = &self.queues;
        let moving = queues.arriving().chain(queues.leaving());
        let ids = queues.running().chain(queues.fetching()).chain(moving).chain(queues.swapped());
        shown.extend(ids.chain(queues.waiting()).take(most).map(|id| self.live_sequence(id, &of_group)));
    }

    fn live_sequence(&self, id: SequenceId, of_group: impl Fn(GroupId) -> GroupSight) -> LiveSequence {
        let sequence = self.sequence(id);
        let GroupSight { cached, came } = of_group(sequence.request.group);
        LiveSequence {
            id: id.0,
            number: 0,
            place: place_of(sequence),
            prompt: sequence.prompt_len,
            computed: sequence.computed,
            generated: sequence.generated(),
            blocks: self.blocks.blocks_held(id),
            below: self.blocks.blocks_below(id),
            cached,
            tenant: sequence.request.tenant,
            came,
        }
    }
}

fn place_of(sequence: &Sequence) -> LivePlace {
    match sequence.status {
        SequenceStatus::Waiting => LivePlace::Waiting,
        SequenceStatus::Running(_) if sequence.is_long() => LivePlace::Long,
        SequenceStatus::Running(_) => LivePlace::Running,
        SequenceStatus::Leaving => LivePlace::Leaving,
        SequenceStatus::Swapped => LivePlace::Swapped,
        SequenceStatus::Arriving => LivePlace::Arriving,
        SequenceStatus::Fetching => LivePlace::Fetching,
    }
}

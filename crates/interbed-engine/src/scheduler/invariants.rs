//! Checks what must hold after every step. The check starts from scratch, so it is slow and independent of the
//! incremental bookkeeping.

use std::collections::HashSet;

use interbed_kv::SequenceId;

use super::Scheduler;
use crate::sequence::{Ahead, Sequence, SequenceStatus};

impl Scheduler {
    /// Checks queues, seats and blocks against each other.
    ///
    /// # Panics
    /// Panics if they do not agree, which is a bug.
    pub(crate) fn assert_sound(&self) {
        let Self { blocks, sequences, queues, .. } = self;
        if let Err(violation) = blocks.check() {
            panic!("{violation}");
        }
        let at = |status: fn(SequenceStatus) -> bool| {
            let there = sequences.values().filter(|sequence| status(sequence.status));
            there.map(|sequence| sequence.id).collect::<HashSet<_>>()
        };
        assert_eq!(at(|status| status == SequenceStatus::Waiting), queues.waiting().collect());
        assert_eq!(at(|status| matches!(status, SequenceStatus::Running(_))), queues.running().collect());
        assert_eq!(at(|status| status == SequenceStatus::Leaving), queues.leaving().collect());
        assert_eq!(at(|status| status == SequenceStatus::Swapped), queues.swapped().collect());
        assert_eq!(at(|status| status == SequenceStatus::Arriving), queues.arriving().collect());
        assert_eq!(at(|status| status == SequenceStatus::Fetching), queues.fetching().collect());
        let in_order = |queue: &mut dyn Iterator<Item = SequenceId>| queue.map(|id| sequences[&id].rank()).is_sorted();
        assert!(in_order(&mut queues.running()) && in_order(&mut queues.swapped()));
        assert!(self.tenants.of.keys().all(|&tenant| in_order(&mut queues.waiting_of(tenant))));
        let is_within = |sequence: &Sequence| sequence.computed + sequence.again <= sequence.len();
        assert!(sequences.iter().all(|(&id, sequence)| id == sequence.id && is_within(sequence)));
        assert!(blocks.keeps_states() || sequences.values().all(|sequence| sequence.again == 0));
        for sequence in sequences.values() {
            if let SequenceStatus::Running(Some(Ahead { first, .. })) = sequence.status {
                assert!(sequence.computed <= first && first < sequence.len(), "what is fetched ahead is not computed");
            }
            let blocks_most =
                if sequence.status == SequenceStatus::Waiting { sequence.len() / blocks.block_size() } else { 0 };
            assert!(
                sequence.hashes.num_blocks() <= blocks_most,
                "hashes are kept by those that wait, of what they have"
            );
        }
        let held: HashSet<_> = blocks.sequences().collect();
        assert_eq!(
            held,
            at(|status| status != SequenceStatus::Waiting),
            "all but those that wait hold blocks or slots"
        );
        assert_eq!(self.tenants.of.values().map(|tenant| tenant.sequences).sum::<usize>(), sequences.len());
        assert_eq!(queues.seats(), self.holders().map(|sequence| sequence.seats()).sum::<usize>());
        assert!(queues.seats() <= self.config.max_num_seqs);
    }
}

//! What must hold after every step (K14, S1), checked from scratch: slow, and independent of how it came about.

use std::collections::{BTreeMap, HashSet};

use strata_kv::SequenceId;

use super::Scheduler;
use crate::sequence::{Place, RunningKey};

impl Scheduler {
    /// Checks queues, seats and blocks against each other.
    ///
    /// # Panics
    /// When they do not agree: a bug.
    pub(crate) fn assert_sound(&self) {
        let Self { blocks, sequences, waiting, running, swapped, .. } = self;
        if let Err(violation) = blocks.check() {
            panic!("{violation}");
        }
        let at = |place: fn(Place) -> bool| {
            let there = sequences.iter().filter(|(_, sequence)| place(sequence.place));
            there.map(|(&id, _)| id).collect::<HashSet<_>>()
        };
        let queue = |queue: &BTreeMap<RunningKey, SequenceId>| queue.values().copied().collect::<HashSet<_>>();
        assert_eq!(at(|place| place == Place::Waiting), waiting.values().copied().collect());
        assert_eq!(at(|place| place == Place::Running), queue(running));
        assert_eq!(at(|place| place == Place::Swapped), queue(swapped));
        assert!(running.iter().all(|(key, id)| *key == sequences[id].running_key()));
        assert!(swapped.iter().all(|(key, id)| *key == sequences[id].running_key()));
        assert!(waiting.iter().all(|(key, id)| *key == sequences[id].waiting_key()));
        let held: HashSet<_> = blocks.sequences().collect();
        assert_eq!(held, at(|place| place != Place::Waiting), "all but those that wait hold blocks or slots");
        assert_eq!(self.tenants.values().map(|tenant| tenant.sequences).sum::<usize>(), sequences.len());
        let reserved: usize = self.holders().map(|sequence| sequence.seats - 1).sum();
        assert_eq!(self.seats_reserved, reserved);
        assert!(self.seats_taken() <= self.config.max_num_seqs);
    }
}

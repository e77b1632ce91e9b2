//! Keeps the queues of sequences, and counts the seats of those that run.

use std::collections::{BTreeMap, BTreeSet};

use interbed_kv::SequenceId;

use crate::TenantId;
use crate::sequence::{Rank, Sequence, SequenceStatus};

/// The waiting, running and swapped-out sequences, each in the order of [`Sequence::rank`].
#[derive(Debug, Default)]
pub(super) struct Queues {
    waiting: BTreeMap<(Option<TenantId>, Rank), SequenceId>,
    running: BTreeMap<Rank, SequenceId>,
    swapped: BTreeMap<Rank, SequenceId>,
    /// The sequences whose prefix is being fetched, in no order that matters.
    fetching: BTreeSet<SequenceId>,
    /// The number of seats of sequences that run, and of those that are being swapped in or fetched.
    seats: usize,
}

impl Queues {
    /// Puts `sequence`, which is in no queue, into the queue of its status.
    pub(super) fn put(&mut self, sequence: &Sequence) {
        let (id, rank) = (sequence.id, sequence.rank());
        let before = match sequence.status {
            SequenceStatus::Waiting => self.waiting.insert((sequence.tenant, rank), id),
            SequenceStatus::Running => self.running.insert(rank, id),
            SequenceStatus::Swapped => self.swapped.insert(rank, id),
            SequenceStatus::Fetching => {
                self.fetching.insert(id);
                None
            }
            SequenceStatus::Leaving | SequenceStatus::Arriving => None,
        };
        debug_assert!(before.is_none(), "{id} has the rank of {before:?}");
        self.seats += seats(sequence);
    }

    /// Takes `sequence` out of the queue of its status. Nothing that its rank depends on may have changed since it was
    /// put there.
    pub(super) fn take(&mut self, sequence: &Sequence) {
        let rank = sequence.rank();
        match sequence.status {
            SequenceStatus::Waiting => drop(self.waiting.remove(&(sequence.tenant, rank))),
            SequenceStatus::Running => drop(self.running.remove(&rank)),
            SequenceStatus::Swapped => drop(self.swapped.remove(&rank)),
            SequenceStatus::Fetching => drop(self.fetching.take(&sequence.id)),
            SequenceStatus::Leaving | SequenceStatus::Arriving => {}
        }
        self.seats -= seats(sequence);
    }

    /// Gives `sequence`, which is in a queue, another number of seats.
    pub(super) fn change_seats(&mut self, sequence: &mut Sequence, number: usize) {
        self.seats -= seats(sequence);
        sequence.seats = number;
        self.seats += seats(sequence);
    }

    /// Returns the number of seats that are taken.
    pub(super) fn seats(&self) -> usize {
        self.seats
    }

    /// Returns all waiting sequences, ordered by tenant.
    pub(super) fn waiting(&self) -> impl ExactSizeIterator<Item = SequenceId> {
        self.waiting.values().copied()
    }

    /// Returns the waiting sequences of a tenant, in order; urgent sequences come first.
    pub(super) fn waiting_of(&self, tenant: Option<TenantId>) -> impl Iterator<Item = SequenceId> {
        let from_first = self.waiting.range((tenant, Rank::FIRST)..);
        from_first.take_while(move |((other, _), _)| *other == tenant).map(|(_, &id)| id)
    }

    /// Returns all running sequences. The last is the first to be preempted.
    pub(super) fn running(&self) -> impl ExactSizeIterator<Item = SequenceId> + DoubleEndedIterator + Clone {
        self.running.values().copied()
    }

    /// Returns all sequences whose prefix is being fetched.
    pub(super) fn fetching(&self) -> impl ExactSizeIterator<Item = SequenceId> {
        self.fetching.iter().copied()
    }

    /// Returns the first of the swapped-out sequences, which is the first to come back.
    pub(super) fn first_swapped(&self) -> Option<SequenceId> {
        self.swapped.first_key_value().map(|(_, &id)| id)
    }

    /// Returns all swapped-out sequences. The first is the first to come back.
    pub(super) fn swapped(&self) -> impl ExactSizeIterator<Item = SequenceId> {
        self.swapped.values().copied()
    }
}

/// Returns the number of seats that `sequence` takes in its present status.
fn seats(sequence: &Sequence) -> usize {
    match sequence.status {
        SequenceStatus::Running | SequenceStatus::Arriving | SequenceStatus::Fetching => sequence.seats,
        SequenceStatus::Waiting | SequenceStatus::Leaving | SequenceStatus::Swapped => 0,
    }
}

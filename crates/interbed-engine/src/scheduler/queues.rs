//! Keeps the queues of sequences, and counts the seats of those that run.

use std::collections::BTreeMap;

use interbed_kv::SequenceId;

use crate::TenantId;
use crate::sequence::{Rank, Role, Sequence, SequenceStatus};

/// The sequences of one status. Those that wait are ordered by tenant first; for all others, the tenant is `None`.
type Queue = BTreeMap<(Option<TenantId>, Rank), SequenceId>;

/// A queue for each status, in the order of [`Sequence::rank`].
#[derive(Debug, Default)]
pub(super) struct Queues {
    waiting: Queue,
    running: Queue,
    leaving: Queue,
    swapped: Queue,
    arriving: Queue,
    fetching: Queue,
    /// The number of seats of sequences that run, and of those that are being swapped in or fetched.
    seats: usize,
}

impl Queues {
    /// Puts `sequence`, which is in no queue, into the queue of its status.
    pub(super) fn put(&mut self, sequence: &Sequence) {
        let before = self.queue_of(sequence).insert(key(sequence), sequence.id);
        debug_assert!(before.is_none(), "{} has the rank of {before:?}", sequence.id);
        self.seats += seats(sequence);
    }

    /// Takes `sequence` out of the queue of its status. Nothing that its rank depends on may have changed since it was
    /// put there.
    pub(super) fn take(&mut self, sequence: &Sequence) {
        self.queue_of(sequence).remove(&key(sequence));
        self.seats -= seats(sequence);
    }

    fn queue_of(&mut self, sequence: &Sequence) -> &mut Queue {
        match sequence.status {
            SequenceStatus::Waiting => &mut self.waiting,
            SequenceStatus::Running(_) => &mut self.running,
            SequenceStatus::Leaving => &mut self.leaving,
            SequenceStatus::Swapped => &mut self.swapped,
            SequenceStatus::Arriving => &mut self.arriving,
            SequenceStatus::Fetching => &mut self.fetching,
        }
    }

    /// Makes `sequence`, which is in a queue, a beam with this number of seats.
    pub(super) fn make_beam(&mut self, sequence: &mut Sequence, number: usize) {
        self.seats -= seats(sequence);
        sequence.role = Role::Beam { seats: number };
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

    /// Returns all sequences that are being swapped out.
    pub(super) fn leaving(&self) -> impl ExactSizeIterator<Item = SequenceId> {
        self.leaving.values().copied()
    }

    /// Returns all swapped-out sequences. The first is the first to come back.
    pub(super) fn swapped(&self) -> impl ExactSizeIterator<Item = SequenceId> {
        self.swapped.values().copied()
    }

    /// Returns all sequences that are being swapped in.
    pub(super) fn arriving(&self) -> impl ExactSizeIterator<Item = SequenceId> {
        self.arriving.values().copied()
    }

    /// Returns all sequences whose prefix is being fetched.
    pub(super) fn fetching(&self) -> impl ExactSizeIterator<Item = SequenceId> {
        self.fetching.values().copied()
    }
}

/// Returns the place of `sequence` in the queue of its status.
fn key(sequence: &Sequence) -> (Option<TenantId>, Rank) {
    let tenant = if sequence.status == SequenceStatus::Waiting { sequence.request.tenant } else { None };
    (tenant, sequence.rank())
}

/// Returns the number of seats that `sequence` takes in its present status.
fn seats(sequence: &Sequence) -> usize {
    match sequence.status {
        SequenceStatus::Running(_) | SequenceStatus::Arriving | SequenceStatus::Fetching => sequence.seats(),
        SequenceStatus::Waiting | SequenceStatus::Leaving | SequenceStatus::Swapped => 0,
    }
}

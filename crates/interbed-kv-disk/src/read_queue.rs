//! Orders the reads that wait by their users: passes first, then sequences that wait.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use interbed_io::{DiskTurns, Urgency};

use crate::jobs::{PieceJob, ReadJob};

/// A read of any kind.
pub(crate) enum Read {
    /// A read of a part of a frame, which holds one layer's KV of several blocks. A forward pass waits for this read.
    Piece(PieceJob),
    /// A read of a whole record. A sequence may be waiting for this read.
    Record(ReadJob),
}

#[derive(Default)]
struct Queues {
    pieces: VecDeque<PieceJob>,
    /// Reads of records, in the order in which they came.
    records: VecDeque<ReadJob>,
    closed: bool,
}

/// Queue of reads. Reads for a pass come first, then those for sequences that wait.
#[derive(Default)]
pub(crate) struct ReadQueue {
    queues: Mutex<Queues>,
    /// Signal that a read was added, or that the queue was closed.
    added: Condvar,
    /// Turns at the disk, which tell what other users of the disk wait for.
    pub(crate) turns: Arc<DiskTurns>,
}

impl ReadQueue {
    /// Creates a queue whose reads wait for their turn at the disk, which `turns` grants.
    pub(crate) fn taking(turns: Arc<DiskTurns>) -> Self {
        Self { turns, ..Self::default() }
    }

    pub(crate) fn add_pieces(&self, jobs: Vec<PieceJob>) {
        self.turns.begin(Urgency::Pass, jobs.len());
        self.lock().pieces.extend(jobs);
        self.added.notify_all();
    }

    pub(crate) fn add_record(&self, job: ReadJob) {
        self.turns.begin(Urgency::Sequence, 1);
        self.lock().records.push_back(job);
        self.added.notify_one();
    }

    /// Closes the queue: no read is added any more.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.added.notify_all();
    }

    /// Waits for the next read and returns it; `None` when the queue is closed and empty.
    pub(crate) fn next(&self) -> Option<Read> {
        let mut queues = self.lock();
        loop {
            if let Some(job) = queues.pieces.pop_front() {
                return Some(Read::Piece(job));
            }
            if let Some(job) = queues.records.pop_front() {
                return Some(Read::Record(job));
            }
            if queues.closed {
                return None;
            }
            queues = self.added.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

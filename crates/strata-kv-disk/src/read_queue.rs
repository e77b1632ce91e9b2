//! What waits to be read, in the order of who waits for it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::jobs::{PieceJob, ReadJob};
use crate::slots::SlotJob;

/// The longest that a write lets reads for a pass go first.
const WRITE_PATIENCE: Duration = Duration::from_millis(100);

/// A read, of whatever kind.
pub(crate) enum Read {
    /// A pass waits for it.
    Piece(PieceJob),
    /// A sequence waits for it, or nobody.
    Record(ReadJob),
    /// A sequence waits to be back.
    Slots(SlotJob),
}

#[derive(Default)]
struct Queues {
    pieces: VecDeque<PieceJob>,
    /// In the order in which they came.
    others: VecDeque<Read>,
    /// Pieces that are being read.
    pieces_begun: usize,
    closed: bool,
}

/// Reads for a pass come first, then those for sequences that wait; writes come last, but not never.
#[derive(Default)]
pub(crate) struct ReadQueue {
    queues: Mutex<Queues>,
    /// Something was added, or the queue was closed.
    added: Condvar,
    /// No pass waits any more.
    quiet: Condvar,
}

impl ReadQueue {
    pub(crate) fn add_pieces(&self, jobs: Vec<PieceJob>) {
        self.lock().pieces.extend(jobs);
        self.added.notify_all();
    }

    pub(crate) fn add_record(&self, job: ReadJob) {
        self.lock().others.push_back(Read::Record(job));
        self.added.notify_one();
    }

    pub(crate) fn add_slots(&self, job: SlotJob) {
        self.lock().others.push_back(Read::Slots(job));
        self.added.notify_one();
    }

    /// Nothing is added any more.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.added.notify_all();
    }

    /// The next read, once there is one; `None` when the queue is closed and empty.
    pub(crate) fn next(&self) -> Option<Read> {
        let mut queues = self.lock();
        loop {
            if let Some(job) = queues.pieces.pop_front() {
                queues.pieces_begun += 1;
                return Some(Read::Piece(job));
            }
            if let Some(read) = queues.others.pop_front() {
                return Some(read);
            }
            if queues.closed {
                return None;
            }
            queues = self.added.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A piece was read, or could not be.
    pub(crate) fn piece_ended(&self) {
        let mut queues = self.lock();
        queues.pieces_begun -= 1;
        if queues.pieces.is_empty() && queues.pieces_begun == 0 {
            self.quiet.notify_all();
        }
    }

    /// Waits a little while a pass reads.
    pub(crate) fn let_passes_read(&self) {
        let queues = self.lock();
        let reads = |queues: &mut Queues| !queues.closed && (queues.pieces_begun > 0 || !queues.pieces.is_empty());
        drop(self.quiet.wait_timeout_while(queues, WRITE_PATIENCE, reads));
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

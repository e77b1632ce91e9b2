//! Orders the writes that wait, by who waits for them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::jobs::{Blocks, WriteJob};

#[derive(Default)]
struct Queues {
    /// Records of blocks that are swapped out; sequences wait for the memory that they free.
    swapped: VecDeque<WriteJob>,
    /// Records that nobody waits for.
    staged: VecDeque<WriteJob>,
    closed: bool,
}

/// Queue of writes. Records of blocks that are swapped out come first, then the others.
#[derive(Default)]
pub(crate) struct WriteQueue {
    queues: Mutex<Queues>,
    /// Signal that a write was added, or that the queue was closed.
    added: Condvar,
}

impl WriteQueue {
    pub(crate) fn add(&self, job: WriteJob) {
        let mut queues = self.lock();
        match job.blocks {
            Blocks::Swapped { .. } => queues.swapped.push_back(job),
            Blocks::Staged(_) => queues.staged.push_back(job),
        }
        self.added.notify_one();
    }

    /// Closes the queue: no write is added any more, and nobody needs what is swapped out.
    pub(crate) fn close(&self) {
        let mut queues = self.lock();
        queues.closed = true;
        queues.swapped.clear();
        drop(queues);
        self.added.notify_all();
    }

    /// Returns the next write; `None` if there is none now.
    pub(crate) fn try_next(&self) -> Option<WriteJob> {
        self.lock().next()
    }

    /// Waits for the next write and returns it; `None` when the queue is closed and empty.
    pub(crate) fn next(&self) -> Option<WriteJob> {
        let mut queues = self.lock();
        loop {
            if let Some(job) = queues.next() {
                return Some(job);
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

impl Queues {
    fn next(&mut self) -> Option<WriteJob> {
        self.swapped.pop_front().or_else(|| self.staged.pop_front())
    }
}

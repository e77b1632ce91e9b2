//! Orders the writes that wait, by who waits for them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use interbed_kv::SlotJob;

use crate::jobs::WriteJob;

/// A write of any kind.
pub(crate) enum Write {
    /// A write of blocks to slots; sequences wait for the memory that it frees.
    Slots(SlotJob),
    /// A write of a record; nobody waits for it.
    Record(WriteJob),
}

#[derive(Default)]
struct Queues {
    slots: VecDeque<SlotJob>,
    records: VecDeque<WriteJob>,
    closed: bool,
}

/// Queue of writes. Blocks that are swapped out come first, then records.
#[derive(Default)]
pub(crate) struct WriteQueue {
    queues: Mutex<Queues>,
    /// Signal that a write was added, or that the queue was closed.
    added: Condvar,
}

impl WriteQueue {
    pub(crate) fn add_slots(&self, job: SlotJob) {
        self.lock().slots.push_back(job);
        self.added.notify_one();
    }

    pub(crate) fn add_record(&self, job: WriteJob) {
        self.lock().records.push_back(job);
        self.added.notify_one();
    }

    /// Closes the queue: no write is added any more.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.added.notify_all();
    }

    /// Returns the next write; `None` if there is none now.
    pub(crate) fn try_next(&self) -> Option<Write> {
        self.lock().next()
    }

    /// Waits for the next write and returns it; `None` when the queue is closed and empty.
    pub(crate) fn next(&self) -> Option<Write> {
        let mut queues = self.lock();
        loop {
            if let Some(write) = queues.next() {
                return Some(write);
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
    fn next(&mut self) -> Option<Write> {
        let slots = self.slots.pop_front().map(Write::Slots);
        slots.or_else(|| self.records.pop_front().map(Write::Record))
    }
}

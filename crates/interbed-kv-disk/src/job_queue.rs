//! Orders jobs that wait by who waits for them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Queue of jobs, from which several threads may take. Urgent jobs come first, then the others.
pub(crate) struct JobQueue<T> {
    waiting: Mutex<Waiting<T>>,
    /// Signal that a job was added, or that the queue was closed.
    added: Condvar,
}

struct Waiting<T> {
    urgent: VecDeque<T>,
    others: VecDeque<T>,
    closed: bool,
}

impl<T> JobQueue<T> {
    pub(crate) fn new() -> Self {
        let waiting = Waiting { urgent: VecDeque::new(), others: VecDeque::new(), closed: false };
        Self { waiting: Mutex::new(waiting), added: Condvar::new() }
    }

    pub(crate) fn add(&self, jobs: impl IntoIterator<Item = T>, are_urgent: bool) {
        let mut waiting = self.lock();
        let Waiting { urgent, others, .. } = &mut *waiting;
        let queue = if are_urgent { urgent } else { others };
        for job in jobs {
            queue.push_back(job);
            self.added.notify_one();
        }
    }

    /// Closes the queue: no job is added any more. Urgent jobs are dropped if `drops_urgent`.
    pub(crate) fn close(&self, drops_urgent: bool) {
        let mut waiting = self.lock();
        waiting.closed = true;
        waiting.urgent.retain(|_| !drops_urgent);
        drop(waiting);
        self.added.notify_all();
    }

    /// Returns the next job; `None` if there is none now.
    pub(crate) fn try_next(&self) -> Option<T> {
        self.lock().next()
    }

    /// Waits for the next job and returns it; `None` when the queue is closed and empty.
    pub(crate) fn next(&self) -> Option<T> {
        let none = |waiting: &mut Waiting<T>| !waiting.closed && waiting.urgent.is_empty() && waiting.others.is_empty();
        self.added.wait_while(self.lock(), none).unwrap_or_else(PoisonError::into_inner).next()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Waiting<T> {
    fn next(&mut self) -> Option<T> {
        self.urgent.pop_front().or_else(|| self.others.pop_front())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgent_jobs_come_first_and_a_closed_queue_ends() {
        let queue = JobQueue::new();
        assert_eq!(queue.try_next(), None);
        queue.add([1, 2], false);
        queue.add([3, 4], true);
        assert_eq!([queue.next(), queue.try_next(), queue.next()], [Some(3), Some(4), Some(1)]);
        queue.add([5], true);
        queue.close(true);
        assert_eq!([queue.next(), queue.next()], [Some(2), None], "nobody needs what was urgent");
        let queue = JobQueue::new();
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..2).map(|_| scope.spawn(|| queue.next())).collect();
            queue.add([1, 2], true);
            let mut taken: Vec<_> = waiting.into_iter().map(|thread| thread.join().expect("no panic")).collect();
            taken.sort_unstable();
            assert_eq!(taken, [Some(1), Some(2)]);
            let waiting = scope.spawn(|| queue.next());
            queue.close(false);
            assert_eq!(waiting.join().expect("no panic"), None);
        });
    }
}

//! Reads in the background by threads that block in the kernel. This works on every machine.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::short_slice::ask_for_short_slice;
use crate::{IoError, ReadDone, ReadEngine, ReadRequest};

/// Display name of the engine.
pub(crate) const NAME: &str = "pread workers";

/// A read engine whose threads make blocking reads, one at a time each. A waiting thread sleeps in the kernel, so that
/// it takes no processor time from threads that compute.
pub struct ReaderPool<B> {
    queue: Arc<Queue<B>>,
    done: Receiver<ReadDone<B>>,
    in_flight: usize,
    workers: Vec<JoinHandle<()>>,
}

/// The queue of requests, shared with the workers.
struct Queue<B> {
    state: Mutex<QueueState<B>>,
    changed: Condvar,
}

struct QueueState<B> {
    requests: VecDeque<ReadRequest<B>>,
    closed: bool,
}

impl<B: AsMut<[u8]> + Send + 'static> ReaderPool<B> {
    /// Starts `depth` threads. A `depth` of 0 counts as 1.
    ///
    /// # Errors
    /// Fails with [`IoError::Engine`] if the system does not allow that many threads.
    pub fn new(depth: usize) -> Result<Self, IoError> {
        let state = Mutex::new(QueueState { requests: VecDeque::new(), closed: false });
        let queue = Arc::new(Queue { state, changed: Condvar::new() });
        let (sender, done) = channel();
        // Created first, so that workers already started are joined if a later one cannot be started.
        let mut pool = Self { queue, done, in_flight: 0, workers: Vec::new() };
        for index in 0..depth.max(1) {
            let (queue, sender) = (Arc::clone(&pool.queue), sender.clone());
            let worker = std::thread::Builder::new()
                .name(format!("interbed-read-{index}"))
                .spawn(move || work(&queue, &sender))
                .map_err(|source| IoError::Engine { engine: NAME, source })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }
}

impl<B: AsMut<[u8]> + Send + 'static> ReadEngine<B> for ReaderPool<B> {
    fn submit(&mut self, request: ReadRequest<B>) {
        self.in_flight += 1;
        self.queue.lock().requests.push_back(request);
        self.queue.changed.notify_one();
    }

    fn poll(&mut self) -> Option<ReadDone<B>> {
        let done = self.done.try_recv().ok()?;
        self.in_flight -= 1;
        Some(done)
    }

    fn wait(&mut self) -> Option<ReadDone<B>> {
        if self.in_flight == 0 {
            return None;
        }
        // Workers run until the pool is dropped, and send back each request that they take.
        let done = self.done.recv().ok()?;
        self.in_flight -= 1;
        Some(done)
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn name(&self) -> &'static str {
        NAME
    }
}

impl<B> Drop for ReaderPool<B> {
    fn drop(&mut self) {
        let unread = {
            let mut state = self.queue.lock();
            state.closed = true;
            std::mem::take(&mut state.requests)
        };
        drop(unread);
        self.queue.changed.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of reads; one that panicked all the same holds nothing.
            let _ = worker.join();
        }
    }
}

impl<B> Queue<B> {
    /// Locks the queue. No code that can panic runs under the lock, so the data is valid even if the lock is poisoned.
    fn lock(&self) -> MutexGuard<'_, QueueState<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next request, and sleeps until there is one. Returns `None` once the pool is closed.
    fn next(&self) -> Option<ReadRequest<B>> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(request) = state.requests.pop_front() {
                return Some(request);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn work<B: AsMut<[u8]>>(queue: &Queue<B>, done: &Sender<ReadDone<B>>) {
    ask_for_short_slice();
    while let Some(request) = queue.next() {
        if done.send(request.read_here()).is_err() {
            return;
        }
    }
}

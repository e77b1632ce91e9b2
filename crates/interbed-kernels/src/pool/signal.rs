//! The way in which a caller hands a job to workers, and learns that all workers are done with the job. This file does
//! not use threads, so that a model checker can explore the orders in which threads may run (`tests/it/pool.rs`).

use std::sync::PoisonError;

use super::sync::{
    AtomicBool, AtomicU64, AtomicUsize, CALLER_SPINS, Condvar, Mutex, MutexGuard, Ordering, WORKER_SPINS, spin_loop,
    yield_now,
};

/// The state that a caller and its workers share. One job runs at a time: the caller ends it before it begins the next.
pub(super) struct Signal<J> {
    /// The number of the current job. A change of the number tells the workers to begin.
    epoch: AtomicU64,
    /// The current job, which is read only between a change of `epoch` and the decrement of `running`.
    job: Mutex<Option<J>>,
    /// The number of workers that have not finished the current job.
    running: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    /// The number of workers that are parked, or about to be.
    parked: Mutex<usize>,
    wake: Condvar,
}

impl<J: Copy> Signal<J> {
    pub(super) fn new() -> Self {
        Self {
            epoch: AtomicU64::new(0),
            job: Mutex::new(None),
            running: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            parked: Mutex::new(0),
            wake: Condvar::new(),
        }
    }

    /// Hands a job to all `workers`. The job must live until [`Signal::end`] has returned.
    pub(super) fn begin(&self, job: J, workers: usize) {
        *lock(&self.job) = Some(job);
        self.running.store(workers, Ordering::Relaxed);
        self.epoch.fetch_add(1, Ordering::Release);
        if *lock(&self.parked) > 0 {
            self.wake.notify_all();
        }
    }

    /// Waits until all workers have finished the job. Returns whether one of them panicked.
    pub(super) fn end(&self) -> bool {
        let mut spins = 0;
        while self.running.load(Ordering::Acquire) > 0 {
            spins += 1;
            if spins < CALLER_SPINS { spin_loop() } else { yield_now() }
        }
        *lock(&self.job) = None;
        self.panicked.swap(false, Ordering::Relaxed)
    }

    /// Tells all workers that there are no more jobs.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.epoch.fetch_add(1, Ordering::Release);
        drop(lock(&self.parked));
        self.wake.notify_all();
    }

    /// Waits for the job after the job that a worker has `seen`; returns `None` if there are no more jobs. The worker
    /// calls [`done`](Signal::done) when it has finished the job.
    pub(super) fn next(&self, seen: &mut u64) -> Option<J> {
        loop {
            *seen = self.next_epoch(*seen);
            if self.stop.load(Ordering::Acquire) {
                return None;
            }
            if let Some(job) = *lock(&self.job) {
                return Some(job);
            }
        }
    }

    /// Reports that a worker has finished the job and no longer uses it.
    pub(super) fn done(&self, panicked: bool) {
        if panicked {
            self.panicked.store(true, Ordering::Relaxed);
        }
        self.running.fetch_sub(1, Ordering::Release);
    }

    /// Waits until the epoch differs from `seen`.
    fn next_epoch(&self, seen: u64) -> u64 {
        for _ in 0..WORKER_SPINS {
            let epoch = self.epoch.load(Ordering::Acquire);
            if epoch != seen {
                return epoch;
            }
            spin_loop();
        }
        // The caller changes the epoch before it looks at `parked`; this thread counts itself in before it looks at the
        // epoch. So one of the two sees the other, and no wake-up is lost.
        let mut parked = lock(&self.parked);
        *parked += 1;
        loop {
            let epoch = self.epoch.load(Ordering::Acquire);
            if epoch != seen {
                *parked -= 1;
                return epoch;
            }
            parked = self.wake.wait(parked).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Locks a mutex. No code that can panic runs under these locks, so a poisoned mutex holds sound data.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

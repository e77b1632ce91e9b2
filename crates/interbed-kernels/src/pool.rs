//! A small pool of threads: every thread runs the same job on its own share, and the caller waits for all threads.
//!
//! A decode pass consists of hundreds of products of some tens of microseconds each, so waking a thread through the
//! operating system for each product would cost more than the product. Workers spin briefly for the next job, then
//! park.

mod signal;

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use signal::{Signal, lock};

/// The primitives of the signal between threads. A test that includes the signal's file replaces these primitives with
/// a model checker's.
mod sync {
    pub(super) use std::hint::spin_loop;
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
    pub(super) use std::thread::yield_now;

    /// The number of spins before a worker parks. The spins take some tens to hundreds of microseconds, depending on
    /// the processor, and longer than the gap between two operations of a pass.
    pub(super) const WORKER_SPINS: u32 = 4_000;

    /// The number of spins before a caller that waits for its workers yields to other threads.
    pub(super) const CALLER_SPINS: u32 = 20_000;
}

/// The minimum number of multiply-adds that are worth a barrier: a vector unit computes this many in a few
/// microseconds.
const LEAST_SHARED_COST: usize = 1 << 17;

/// The maximum number of runs that items are dealt from.
const RUNS_MAX: usize = 64;

type Job<'a> = dyn Fn(usize) + Sync + 'a;

/// A pool of threads that compute together. One job runs at a time, and the calling thread takes part as thread 0.
pub struct Pool {
    signal: Arc<Signal<SharedJob>>,
    workers: Vec<JoinHandle<()>>,
    /// A lock that is held while a job runs, so that callers on different threads take turns.
    turn: Mutex<()>,
}

#[derive(Clone, Copy)]
struct SharedJob(*const Job<'static>);

// SAFETY: the job behind the pointer is `Sync`, and `Pool::run` keeps it alive until every worker is done with it.
unsafe impl Send for SharedJob {}

impl Pool {
    /// Creates a pool of `threads` threads, including the caller's.
    pub fn new(threads: NonZeroUsize) -> Self {
        let signal = Arc::new(Signal::new());
        let workers = (1..threads.get())
            .map(|index| {
                let signal = Arc::clone(&signal);
                std::thread::Builder::new()
                    .name(format!("compute-{index}"))
                    .spawn(move || work(&signal, index))
                    .expect("a thread can be started")
            })
            .collect();
        Self { signal, workers, turn: Mutex::new(()) }
    }

    /// Returns the number of threads in the pool.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `job(thread)` once for each thread of the pool, and returns when all calls have returned.
    ///
    /// # Panics
    /// Panics if the job panics on any thread.
    pub fn run(&self, job: impl Fn(usize) + Sync) {
        if self.workers.is_empty() {
            return job(0);
        }
        let _turn = lock(&self.turn);
        let erased: *const Job<'_> = &job;
        // SAFETY: only the lifetime changes; the wait below keeps `job` alive until no worker can reach it.
        let erased = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(erased) };
        self.signal.begin(SharedJob(erased), self.workers.len());
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        let others_panicked = self.signal.end();
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        assert!(!others_panicked, "a compute thread panicked");
    }

    /// Splits `0 .. items` into one contiguous share per thread, and calls `job(share)` for each share that is not
    /// empty. The length of every share except the last is a multiple of `granule`.
    ///
    /// `item_cost` is the approximate number of multiply-adds per item. If all items together cost less than the
    /// synchronization of the threads, the job runs on the calling thread alone.
    pub fn split(&self, items: usize, granule: usize, item_cost: usize, job: impl Fn(std::ops::Range<usize>) + Sync) {
        let granules = items.div_ceil(granule.max(1));
        let threads = self.threads();
        if granules <= 1 || items.saturating_mul(item_cost) < LEAST_SHARED_COST {
            if items > 0 {
                job(0..items);
            }
            return;
        }
        self.run(|thread| {
            let bound = |thread: usize| (granules * thread / threads * granule).min(items);
            let share = bound(thread)..if thread + 1 == threads { items } else { bound(thread + 1) };
            if !share.is_empty() {
                job(share);
            }
        });
    }

    /// Calls `job(thread, item)` for each of `0 .. items`. Each thread goes through its own run of items in ascending
    /// order, so that it may prefetch the next item's data. A thread that has finished its run takes items from others,
    /// so that a slow thread delays no other. The number `cost` is the approximate number of multiply-adds of all items
    /// together. Work that is cheaper than a barrier stays on the calling thread.
    pub(crate) fn deal(&self, items: usize, cost: usize, job: impl Fn(usize, usize) + Sync) {
        let threads = self.threads();
        if items <= 1 || threads == 1 || cost < LEAST_SHARED_COST {
            return (0..items).for_each(|item| job(0, item));
        }
        // The next item of each run. If there are more threads than runs, threads share runs.
        let next: [AtomicUsize; RUNS_MAX] = std::array::from_fn(|_| AtomicUsize::new(0));
        let runs = threads.min(RUNS_MAX).min(items);
        self.run(|thread| {
            for run in 0..runs {
                let run = (thread + run) % runs;
                let (first, end) = (items * run / runs, items * (run + 1) / runs);
                loop {
                    let item = first + next[run].fetch_add(1, Ordering::Relaxed);
                    if item >= end {
                        break;
                    }
                    job(thread, item);
                }
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.signal.stop();
        for worker in self.workers.drain(..) {
            // A worker catches its job's panics, so its thread ends normally.
            let _ = worker.join();
        }
    }
}

fn work(signal: &Signal<SharedJob>, index: usize) {
    let mut seen = 0;
    while let Some(SharedJob(job)) = signal.next(&mut seen) {
        // SAFETY: `Pool::run` does not return, and so keeps the job alive, until this thread has reported that it is
        // done.
        let job = unsafe { &*job };
        signal.done(catch_unwind(AssertUnwindSafe(|| job(index))).is_err());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(threads: usize) -> Pool {
        Pool::new(NonZeroUsize::new(threads).unwrap())
    }

    #[test]
    fn every_thread_runs_every_job_once() {
        for threads in [1, 2, 5] {
            let pool = pool(threads);
            let calls: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for round in 0..2_000 {
                if round % 500 == 499 {
                    // The pause is long enough for the workers to park.
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                pool.run(|thread| {
                    calls[thread].fetch_add(1, Ordering::Relaxed);
                });
            }
            assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == 2_000));
        }
    }

    #[test]
    fn shares_cover_all_items_once() {
        for (threads, items, granule) in
            [(1, 10, 4), (2, 0, 4), (2, 3, 4), (2, 9, 4), (3, 100, 16), (5, 5, 1), (4, 6, 8)]
        {
            let hits: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
            pool(threads).split(items, granule, usize::MAX, |share| {
                assert_eq!(share.start % granule, 0);
                for item in share {
                    hits[item].fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(hits.iter().all(|hits| hits.load(Ordering::Relaxed) == 1), "{threads} {items} {granule}");
        }
    }

    #[test]
    fn every_item_is_dealt_once() {
        for (threads, items) in [(1, 3), (2, 0), (2, 1), (3, 100), (5, 4), (70, 200)] {
            let hits: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
            pool(threads).deal(items, usize::MAX, |thread, item| {
                assert!(thread < threads);
                hits[item].fetch_add(1, Ordering::Relaxed);
            });
            assert!(hits.iter().all(|hits| hits.load(Ordering::Relaxed) == 1), "{threads} {items}");
        }
    }

    #[test]
    fn little_work_stays_on_the_calling_thread() {
        let caller = std::thread::current().id();
        pool(3).split(100, 1, 10, |share| {
            assert_eq!((share, std::thread::current().id()), (0..100, caller));
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = pool(2);
        for innocent in 0..3 {
            let outcome =
                catch_unwind(AssertUnwindSafe(|| pool.run(|thread| assert_eq!(thread, innocent, "on purpose"))));
            assert!(outcome.is_err());
        }
        let calls = AtomicUsize::new(0);
        pool.run(|_| {
            calls.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn callers_on_different_threads_take_turns() {
        let pool = pool(3);
        let calls = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.run(|_| {
                            calls.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(calls.load(Ordering::Relaxed), 4 * 200 * 3);
    }
}

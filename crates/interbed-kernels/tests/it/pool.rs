//! Tests the signal between a caller and its workers, under every possible order of threads and memory operations:
//! includes the pool's own file, with a model checker's atomics and locks.

#[path = "../../src/pool/signal.rs"]
mod signal;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use signal::Signal;

/// The primitives that the included file uses here.
mod sync {
    pub(super) use loom::hint::spin_loop;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(super) use loom::thread::yield_now;

    /// Few spins, so that both ways of waiting are explored without many equivalent steps.
    pub(super) const WORKER_SPINS: u32 = 1;
    pub(super) const CALLER_SPINS: u32 = 1;
}

/// A caller's memory that lives as long as a job: reading it while the caller writes it is detected.
struct Memory(UnsafeCell<usize>);

// SAFETY: the model checker panics at each access that could conflict with another one.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

/// Runs jobs on `workers`, each of which reads the job's memory and reports whether it panicked.
fn check(workers: usize, jobs: usize, preemptions: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let signal = Arc::new(Signal::<usize>::new());
        let memory = Arc::new(Memory(UnsafeCell::new(0)));
        let threads: Vec<_> = (0..workers)
            .map(|worker| {
                let (signal, memory) = (Arc::clone(&signal), Arc::clone(&memory));
                thread::spawn(move || {
                    let (mut seen, mut done) = (0, 0);
                    while let Some(job) = signal.next(&mut seen) {
                        done += 1;
                        assert_eq!(job, done, "jobs come in their order, each once");
                        // SAFETY: see `Memory`.
                        memory.0.with(|value| assert_eq!(unsafe { *value }, job, "the job's own memory"));
                        signal.done(worker == 0 && job == 1);
                    }
                    assert_eq!(done, jobs, "no job is lost");
                })
            })
            .collect();
        for job in 1..=jobs {
            // SAFETY: see `Memory`.
            memory.0.with_mut(|value| unsafe { *value = job });
            signal.begin(job, workers);
            let panicked = signal.end();
            assert_eq!(panicked, job == 1, "the panic of a worker is told, once");
        }
        // SAFETY: see `Memory`.
        memory.0.with_mut(|value| unsafe { *value = usize::MAX });
        signal.stop();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn one_worker_does_each_job_once_and_lets_go_of_it() {
    check(1, 2, None);
}

#[test]
fn workers_do_each_job_once_and_let_go_of_it() {
    check(2, 1, Some(2));
}

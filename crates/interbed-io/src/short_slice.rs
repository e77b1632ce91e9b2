//! Asks for short time slices, for threads that wake, do little, and sleep again.

use std::mem::size_of;

/// The shortest slice that Linux grants, in nanoseconds.
const SHORTEST_SLICE: u64 = 100_000;

/// Requests a short scheduler time slice for the calling thread, so that the thread soon runs after it wakes.
///
/// The request helps a thread that does nothing but start reads. When such a thread wakes, other threads use all
/// processors. With the usual slice of some milliseconds, the thread waits about a tenth of a slice each time, and the
/// disk is idle meanwhile. Since version 6.12, Linux runs a thread with a shorter slice first; earlier kernels ignore
/// the request. Each thread still gets the same share of processor time. If the system refuses the request, nothing
/// changes.
pub fn ask_for_short_slice() {
    let size = size_of::<libc::sched_attr>() as u32;
    let mut attributes = libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes at most `size` bytes to the struct, which has that size, about the calling thread (0).
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) } == 0;
    if !known || attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attributes.sched_runtime = SHORTEST_SLICE;
    // SAFETY: the kernel reads the struct, whose first field is its size, and changes the scheduling of the calling
    // thread.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_asks_goes_on_as_it_was() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        std::thread::spawn(move || {
            let before = nice();
            ask_for_short_slice();
            ask_for_short_slice();
            assert_eq!(nice(), before);
        })
        .join()
        .unwrap();
    }
}

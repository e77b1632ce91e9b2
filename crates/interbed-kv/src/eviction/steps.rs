//! Counts loop iterations in tests, so that costs are checked without a clock.

#[cfg(any(test, feature = "testing"))]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts one iteration of a policy's loop over blocks. Each iteration must call it once.
#[inline]
pub fn step() {
    #[cfg(any(test, feature = "testing"))]
    STEPS.set(STEPS.get() + 1);
}

/// Returns the number of steps that `run` takes.
#[cfg(any(test, feature = "testing"))]
pub fn counted(run: impl FnOnce()) -> u64 {
    let before = STEPS.get();
    run();
    STEPS.get() - before
}

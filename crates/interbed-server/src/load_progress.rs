//! Records how much of a model is loaded.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The time, in seconds, after which clients are told to retry while the duration of loading is unknown.
const RETRY_UNKNOWN_S: u64 = 2;
/// The longest time, in seconds, after which clients are told to retry.
const RETRY_MAX_S: u64 = 60;

/// Records how much of a model is loaded. The server reports this progress at `/health`.
#[derive(Debug)]
pub struct LoadProgress {
    began: Instant,
    done: AtomicU64,
    total: AtomicU64,
}

impl Default for LoadProgress {
    fn default() -> Self {
        Self { began: Instant::now(), done: AtomicU64::new(0), total: AtomicU64::new(0) }
    }
}

impl LoadProgress {
    /// Sets the number of bytes of weights that are loaded, and the total number of bytes to load.
    pub fn set(&self, done: u64, total: u64) {
        self.done.store(done.min(total), Relaxed);
        self.total.store(total, Relaxed);
    }

    /// Returns the number of loaded bytes and the number of all bytes, which is 0 until it is known.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.done.load(Relaxed), self.total.load(Relaxed))
    }

    /// Estimates the number of seconds until the model is loaded, from the progress so far.
    pub(crate) fn retry_after_s(&self) -> u64 {
        let (done, total) = self.bytes();
        remaining_s(self.began.elapsed(), done, total)
    }
}

fn remaining_s(elapsed: Duration, done: u64, total: u64) -> u64 {
    if done == 0 || total == 0 {
        return RETRY_UNKNOWN_S;
    }
    let left = total.saturating_sub(done) as f64 / done as f64 * elapsed.as_secs_f64();
    (left.ceil() as u64).clamp(1, RETRY_MAX_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_is_left_is_estimated_within_bounds() {
        let second = Duration::from_secs(1);
        for (elapsed, done, total, expect) in [
            (second, 0, 100, RETRY_UNKNOWN_S),
            (second, 5, 0, RETRY_UNKNOWN_S),
            (10 * second, 50, 100, 10),
            (10 * second, 99, 100, 1),
            (10 * second, 100, 100, 1),
            (1000 * second, 1, u64::MAX, RETRY_MAX_S),
        ] {
            assert_eq!(remaining_s(elapsed, done, total), expect, "{elapsed:?} {done} {total}");
        }
    }
}

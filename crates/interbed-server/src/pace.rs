//! Estimates how fast the queue moves, and so when a client that found the queue full should retry.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The weight of the newest wait in the moving average.
const NEWEST: f64 = 0.1;
/// The shortest and the longest time, in seconds, after which a client is told to retry.
const RETRY_S: (u64, u64) = (1, 60);

/// The moving average of the recent waits in the queue.
#[derive(Default)]
pub(crate) struct QueuePace {
    /// The average in seconds, or `None` before the first wait.
    mean_s: Mutex<Option<f64>>,
}

impl QueuePace {
    /// Records how long a request has waited in the queue.
    pub(crate) fn waited(&self, wait: Duration) {
        let mut mean = self.mean_s.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = wait.as_secs_f64();
        *mean = Some(mean.map_or(wait, |mean| mean + (wait - mean) * NEWEST));
    }

    /// Returns the number of seconds after which a client that found the queue full should retry. After one average
    /// wait the whole queue has moved on, and after half of this time there is room for many requests.
    pub(crate) fn retry_after_s(&self) -> u64 {
        let mean = self.mean_s.lock().unwrap_or_else(PoisonError::into_inner);
        let (least, most) = RETRY_S;
        mean.map_or(least, |mean| ((mean / 2.0).ceil() as u64).clamp(least, most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_follows_the_waits_within_bounds() {
        let pace = QueuePace::default();
        assert_eq!(pace.retry_after_s(), 1);
        pace.waited(Duration::from_secs(20));
        assert_eq!(pace.retry_after_s(), 10);
        for _ in 0..100 {
            pace.waited(Duration::from_secs(6));
        }
        // The average approaches 3 s from above.
        assert_eq!(pace.retry_after_s(), 4);
        pace.waited(Duration::from_secs(100_000));
        assert_eq!(pace.retry_after_s(), 60);
    }
}

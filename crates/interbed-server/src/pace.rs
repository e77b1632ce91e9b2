//! How fast the queue moves, and so when a client that found it full may come back.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How much the newest wait counts in the mean.
const NEWEST: f64 = 0.1;
/// The least and the most that a client is told, in seconds.
const RETRY_S: (u64, u64) = (1, 60);

/// How long requests waited lately.
#[derive(Default)]
pub(crate) struct QueuePace {
    /// The mean, in seconds; none before the first.
    mean_s: Mutex<Option<f64>>,
}

impl QueuePace {
    /// A request has left the queue after this time.
    pub(crate) fn waited(&self, wait: Duration) {
        let mut mean = self.mean_s.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = wait.as_secs_f64();
        *mean = Some(mean.map_or(wait, |mean| mean + (wait - mean) * NEWEST));
    }

    /// Seconds after which one that the queue had no room for may come back. Who waits as long as others do now finds
    /// the whole queue gone on; after half of that there is room for many.
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
        // A little over the 3 s that it comes close to.
        assert_eq!(pace.retry_after_s(), 4);
        pace.waited(Duration::from_secs(100_000));
        assert_eq!(pace.retry_after_s(), 60);
    }
}

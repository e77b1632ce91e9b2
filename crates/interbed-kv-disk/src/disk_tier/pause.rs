//! Times for which something is left alone after it has failed.

use std::time::{Duration, Instant};

/// Shortest and longest time.
const TIMES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));

/// Minimum time between two warnings.
const WARN_AGAIN: Duration = Duration::from_secs(600);

/// A pause after a failure. Each one is twice as long as the one before, until something succeeds.
#[derive(Debug)]
pub(super) struct Pause {
    /// Time when the last pause ends, or ended; `None` before the first.
    pub(super) until: Option<Instant>,
    /// Length of the next pause.
    next: Duration,
    /// Time when the last warning was given.
    warned_at: Option<Instant>,
}

impl Default for Pause {
    fn default() -> Self {
        Self { until: None, next: TIMES.0, warned_at: None }
    }
}

impl Pause {
    pub(super) fn is_on(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }

    /// Begins a pause, unless one is on. Warns once in [`WARN_AGAIN`] that `reason` has happened, and that `what` is so
    /// for a while.
    pub(super) fn begin(&mut self, reason: &str, what: &str) {
        if self.is_on() {
            return;
        }
        let (now, time) = (Instant::now(), self.next);
        // A disk that is full stays so for a while: once is enough.
        if self.warned_at.is_none_or(|warned| now.duration_since(warned) > WARN_AGAIN) {
            tracing::warn!("{reason}; {what} for {time:?}, or longer if that goes on");
            self.warned_at = Some(now);
        } else {
            tracing::debug!("{reason}; {what} for {time:?}");
        }
        self.until = Some(now + time);
        self.next = (2 * time).min(TIMES.1);
    }

    /// Notes a success: the next pause is a short one.
    pub(super) fn succeeded(&mut self) {
        self.next = TIMES.0;
    }
}

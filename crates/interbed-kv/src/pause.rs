//! Pauses for which the engine leaves something alone after it has failed.

use std::time::{Duration, Instant};

/// Length of the first pause.
const FIRST: Duration = Duration::from_secs(1);

/// Minimum time between two warnings.
const WARN_AGAIN: Duration = Duration::from_secs(600);

/// A pause after a failure, such as that of a disk. Each pause is twice as long as the one before, up to a limit, until
/// something succeeds.
#[derive(Debug)]
pub struct Pause {
    /// Time when the last pause ends, or ended; `None` before the first.
    pub until: Option<Instant>,
    /// Length of the next pause.
    next: Duration,
    longest: Duration,
    /// Time when the last warning was given.
    warned_at: Option<Instant>,
}

impl Pause {
    /// Makes a value without a pause. No later pause is longer than `longest`, except that the first one takes a
    /// second.
    pub fn new(longest: Duration) -> Self {
        Self { until: None, next: FIRST, longest, warned_at: None }
    }

    /// Returns whether a pause is on now.
    pub fn is_on(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Begins a pause at `now`. Returns its length, and whether the caller should give a warning: what has failed
    /// mostly goes on to fail for a while, so one warning in ten minutes is enough. Returns `None` if a pause is on
    /// already.
    pub fn begin(&mut self, now: Instant) -> Option<(Duration, bool)> {
        if self.is_on(now) {
            return None;
        }
        let time = self.next;
        self.until = Some(now + time);
        self.next = (2 * time).min(self.longest);
        let warns = self.warned_at.is_none_or(|warned| now.duration_since(warned) > WARN_AGAIN);
        if warns {
            self.warned_at = Some(now);
        }
        Some((time, warns))
    }

    /// Notes a success, so that the next pause takes a second again. A pause that is on goes on.
    pub fn succeeded(&mut self) {
        self.next = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_again_is_left_alone_for_longer() {
        let (mut pause, mut now) = (Pause::new(Duration::from_secs(60)), Instant::now());
        let mut pauses = Vec::new();
        for attempt in 0..9 {
            let (time, warns) = pause.begin(now).expect("it is not on");
            assert_eq!(warns, attempt == 0);
            assert_eq!(pause.begin(now), None, "what was under way fails as well");
            pauses.push(time.as_secs());
            assert!(pause.is_on(now + time - Duration::from_millis(1)));
            now += time;
            assert!(!pause.is_on(now));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        pause.succeeded();
        assert_eq!(pause.begin(now).map(|(time, _)| time), Some(FIRST));
        now += WARN_AGAIN;
        assert!(pause.begin(now).expect("it is not on").1);
    }
}

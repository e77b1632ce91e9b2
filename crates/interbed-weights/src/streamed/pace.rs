//! Limits how often watchers are shown what goes on.

use std::time::{Duration, Instant};

/// Limits how often watchers are shown the current state. A turn is the time in which the state is shown once. The
/// pause after a turn lasts at least [`PERIOD`](Self::PERIOD), and at least 100 times as long as the turn.
#[derive(Debug, Default)]
pub struct WatchPace {
    next_at: Option<Instant>,
}

impl WatchPace {
    /// Minimum time from the end of a turn to the start of the next turn.
    pub const PERIOD: Duration = Duration::from_millis(100);
    /// Factor by which the time after a turn is longer than the turn itself, at least.
    const SHARE: u32 = 100;

    /// Returns whether the next turn may begin at `now`.
    pub fn is_due(&self, now: Instant) -> bool {
        self.next_at.is_none_or(|next_at| now >= next_at)
    }

    /// Returns the time from `now` until the next turn may begin.
    pub fn remaining(&self, now: Instant) -> Duration {
        self.next_at.map_or(Duration::ZERO, |next_at| next_at.saturating_duration_since(now))
    }

    /// Records a turn that lasted from `begin` to `end`.
    pub fn note(&mut self, begin: Instant, end: Instant) {
        let took = end.saturating_duration_since(begin);
        self.next_at = end.checked_add(took.saturating_mul(Self::SHARE).max(Self::PERIOD));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_take_a_hundredth_of_the_time() {
        let (mut pace, start) = (WatchPace::default(), Instant::now());
        assert!(pace.is_due(start));
        let millis = Duration::from_millis;
        // A short one: ten times a second.
        pace.note(start, start + Duration::from_micros(100));
        let end = start + Duration::from_micros(100);
        assert!(!pace.is_due(end + millis(99)) && pace.is_due(end + millis(100)));
        assert_eq!(pace.remaining(end + millis(60)), millis(40));
        // A long one: less often.
        pace.note(start, start + millis(20));
        assert!(!pace.is_due(start + millis(2019)) && pace.is_due(start + millis(2020)));
        assert_eq!(pace.remaining(start + millis(5000)), Duration::ZERO);
    }
}

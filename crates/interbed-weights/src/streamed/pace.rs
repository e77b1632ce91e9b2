//! How often what goes on is shown to those who watch.

use std::time::{Duration, Instant};

/// Limits how often something is done for watchers: at most ten times a second, and for at most a hundredth of the
/// time.
#[derive(Debug, Default)]
pub struct WatchPace {
    next_at: Option<Instant>,
}

impl WatchPace {
    /// The least time between two turns.
    pub const PERIOD: Duration = Duration::from_millis(100);
    /// Time that must pass for each unit of time that a turn took.
    const SHARE: u32 = 100;

    /// Whether it is time for the next turn.
    pub fn is_due(&self, now: Instant) -> bool {
        self.next_at.is_none_or(|next_at| now >= next_at)
    }

    /// How long it is until then.
    pub fn remaining(&self, now: Instant) -> Duration {
        self.next_at.map_or(Duration::ZERO, |next_at| next_at.saturating_duration_since(now))
    }

    /// Notes a turn that went on from `begin` to `end`.
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

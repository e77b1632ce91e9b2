//! Decides whether a store is worth asking.

use std::time::{Duration, Instant};

use interbed_kv::Pause;

/// The longest pause after a store has failed.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The time without an answer after which a store has failed.
const FAILED: Duration = Duration::from_millis(500);

/// The weight of a new answer in the time that answers are expected to take.
const ANSWER_SHARE: f64 = 0.2;

/// The health of a store. A store that fails, or does not answer in time, is not used for a while, and for longer if it
/// fails again.
#[derive(Debug)]
pub(crate) struct Health {
    pub(crate) pause: Pause,
    /// The seconds until the first block of a fetch comes or is known to be missing, and the time at which they were
    /// last measured.
    answer: Option<(f64, Instant)>,
}

impl Default for Health {
    fn default() -> Self {
        Self { pause: Pause::new(PAUSE_MAX), answer: None }
    }
}

impl Health {
    /// Records that the first block of a fetch has come after `after`, or was found missing.
    pub(crate) fn answered(&mut self, after: Duration, now: Instant) {
        let (new, before) = (after.as_secs_f64(), self.answer);
        self.answer = Some((before.map_or(new, |(before, _)| before + ANSWER_SHARE * (new - before)), now));
    }

    /// Records that no block of a fetch has come within `within`. Sequences that would not wait much longer then need
    /// not ask. Returns whether the time is so long that the store has failed.
    pub(crate) fn did_not_answer(&mut self, within: Duration, now: Instant) -> bool {
        // The expected answer is at least twice as long, so that a store that never answers costs each time as much as
        // all times before.
        let (least, before) = (2.0 * within.as_secs_f64(), self.answer(now).as_secs_f64());
        self.answer = Some((least.max(before), now));
        within >= FAILED
    }

    /// Returns how long an answer is expected to take. Returns zero if that is not known or was not measured lately, so
    /// that the store is tried again.
    pub(crate) fn answer(&self, now: Instant) -> Duration {
        let lately = self.answer.filter(|&(_, at)| now.saturating_duration_since(at) < PAUSE_MAX);
        Duration::from_secs_f64(lately.map_or(0.0, |(seconds, _)| seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_expected_to_take_as_long_as_lately() {
        let (mut health, now) = (Health::default(), Instant::now());
        assert_eq!(health.answer(now), Duration::ZERO);
        health.answered(Duration::from_millis(500), now);
        (0..50).for_each(|_| health.answered(Duration::from_millis(30), now));
        assert_eq!(health.answer(now + Duration::from_secs(59)).as_millis(), 30);
        assert_eq!(health.answer(now + Duration::from_secs(60)), Duration::ZERO);
        assert!(!health.did_not_answer(Duration::from_millis(10), now));
        assert_eq!(health.answer(now).as_millis(), 30);
        assert!(!health.did_not_answer(Duration::from_millis(100), now));
        assert_eq!(health.answer(now).as_millis(), 200);
        assert!(health.did_not_answer(FAILED, now));
    }
}

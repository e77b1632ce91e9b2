//! Whether a store is worth being asked.

use std::time::{Duration, Instant};

/// How long a store that has failed is left alone: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A store that takes so long to answer has failed, whoever asks.
const FAILED: Duration = Duration::from_millis(500);

/// How long after a warning the next one is given.
const WARN_AGAIN: Duration = Duration::from_secs(600);

/// The share of a new answer in the time that answers are expected to take.
const ANSWER_SHARE: f64 = 0.2;

/// A store that fails, or does not answer in time, is left alone for a while, and longer if it fails again.
#[derive(Debug, Default)]
pub(crate) struct Health {
    paused_until: Option<Instant>,
    /// How many pauses there were in a row.
    pauses: u32,
    warned_at: Option<Instant>,
    /// Seconds until the first block of a fetch comes, or is known to be missing, and when that was last measured.
    answer: Option<(f64, Instant)>,
}

impl Health {
    /// Returns whether it is left alone now.
    pub(crate) fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }

    /// Until when it is left alone, if it is or was.
    pub(crate) fn paused_until(&self) -> Option<Instant> {
        self.paused_until
    }

    /// It has failed. Returns how long it is left alone, unless it is already, and whether somebody should hear of it.
    pub(crate) fn failed(&mut self, now: Instant) -> Option<(Duration, bool)> {
        if self.is_paused(now) {
            return None;
        }
        let pause = PAUSES.0.saturating_mul(1 << self.pauses.min(16)).min(PAUSES.1);
        self.pauses += 1;
        self.paused_until = Some(now + pause);
        // A store that is gone stays so for a while: once is enough.
        let warns = self.warned_at.is_none_or(|warned| now.duration_since(warned) > WARN_AGAIN);
        if warns {
            self.warned_at = Some(now);
        }
        Some((pause, warns))
    }

    /// It has done what it was asked for.
    pub(crate) fn did_well(&mut self) {
        self.pauses = 0;
    }

    /// The first block of a fetch has come after this, or is missing.
    pub(crate) fn answered(&mut self, after: Duration, now: Instant) {
        let (new, before) = (after.as_secs_f64(), self.answer);
        self.answer = Some((before.map_or(new, |(before, _)| before + ANSWER_SHARE * (new - before)), now));
    }

    /// No block of a fetch has come after this, so that those who would not wait much longer need not ask. Returns
    /// whether that is so long that the store has failed.
    pub(crate) fn did_not_answer(&mut self, within: Duration, now: Instant) -> bool {
        // Twice as long, so that a store that never answers costs each time as much as all before.
        let (least, before) = (2.0 * within.as_secs_f64(), self.answer(now).as_secs_f64());
        self.answer = Some((least.max(before), now));
        within >= FAILED
    }

    /// Returns how long an answer is expected to take; zero if that is not known, or was not measured for long: then it
    /// is tried.
    pub(crate) fn answer(&self, now: Instant) -> Duration {
        let lately = self.answer.filter(|&(_, at)| now.saturating_duration_since(at) < PAUSES.1);
        Duration::from_secs_f64(lately.map_or(0.0, |(seconds, _)| seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_fails_again_is_left_alone_for_longer() {
        let (mut health, mut now) = (Health::default(), Instant::now());
        let mut pauses = Vec::new();
        for attempt in 0..9 {
            let (pause, warns) = health.failed(now).expect("it is not paused");
            assert_eq!(warns, attempt == 0);
            assert_eq!(health.failed(now), None, "what was under way fails as well");
            pauses.push(pause.as_secs());
            assert!(health.is_paused(now + pause - Duration::from_millis(1)));
            now += pause;
            assert!(!health.is_paused(now));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        health.did_well();
        assert_eq!(health.failed(now).map(|(pause, _)| pause), Some(PAUSES.0));
        now += WARN_AGAIN;
        assert!(health.failed(now).expect("it is not paused").1);
    }

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

//! Decides whether a store is worth asking.

use std::time::{Duration, Instant};

/// The pauses after a store has failed: the first pause, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The time without an answer after which a store has failed.
const FAILED: Duration = Duration::from_millis(500);

/// The time after a warning until the next warning is given.
const WARN_AGAIN: Duration = Duration::from_secs(600);

/// The weight of a new answer in the time that answers are expected to take.
const ANSWER_SHARE: f64 = 0.2;

/// The health of a store. A store that fails, or does not answer in time, is not used for a while, and for longer if it
/// fails again.
#[derive(Debug, Default)]
pub(crate) struct Health {
    paused_until: Option<Instant>,
    /// The number of pauses in a row.
    pauses: u32,
    warned_at: Option<Instant>,
    /// The seconds until the first block of a fetch comes or is known to be missing, and the time at which they were
    /// last measured.
    answer: Option<(f64, Instant)>,
}

impl Health {
    /// Returns whether the store is in a pause now.
    pub(crate) fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }

    /// Returns the time at which the latest pause ends or ended, if there was one.
    pub(crate) fn paused_until(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Records that the store has failed. Returns how long it pauses, and whether a warning should be given. Returns
    /// `None` if it pauses already.
    pub(crate) fn failed(&mut self, now: Instant) -> Option<(Duration, bool)> {
        if self.is_paused(now) {
            return None;
        }
        let pause = PAUSES.0.saturating_mul(1 << self.pauses.min(16)).min(PAUSES.1);
        self.pauses += 1;
        self.paused_until = Some(now + pause);
        // A store that is gone stays gone for a while, so one warning is enough.
        let warns = self.warned_at.is_none_or(|warned| now.duration_since(warned) > WARN_AGAIN);
        if warns {
            self.warned_at = Some(now);
        }
        Some((pause, warns))
    }

    /// Records that the store has done what it was asked for.
    pub(crate) fn did_well(&mut self) {
        self.pauses = 0;
    }

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

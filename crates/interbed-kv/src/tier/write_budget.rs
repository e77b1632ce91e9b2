//! Limits how much may be written, so that a disk is not worn out, or a network not filled.

use std::time::{Duration, Instant};

/// The longest time whose share of bytes can be saved up and written at once.
const BURST: Duration = Duration::from_secs(3600);

/// Limits how many bytes are written. The allowance grows with time and is used up by writes.
#[derive(Debug, Clone)]
pub struct WriteBudget {
    /// The number of bytes that may be written in a second; `None` for no limit.
    rate: Option<f64>,
    left: f64,
    at: Instant,
}

impl WriteBudget {
    /// Allows `per_day` bytes in 24 hours, or any number of bytes if `None`. At `now`, the share of one hour is there
    /// to be used at once.
    pub fn new(per_day: Option<u64>, now: Instant) -> Self {
        let rate = per_day.map(|bytes| bytes as f64 / 86_400.0);
        Self { rate, left: rate.unwrap_or_default() * BURST.as_secs_f64(), at: now }
    }

    /// Counts `bytes` as written, whether the budget allows them or not. Later writes make up for them.
    pub fn spend(&mut self, bytes: u64) {
        self.left -= if self.rate.is_some() { bytes as f64 } else { 0.0 };
    }

    /// Returns whether `bytes` may be written at `now`; if so, they count as written.
    pub fn take(&mut self, bytes: u64, now: Instant) -> bool {
        let Some(rate) = self.rate else { return true };
        // If time seems to run backwards, nothing is added to the allowance.
        let passed = now.saturating_duration_since(self.at);
        self.at = self.at.max(now);
        self.left = (self.left + rate * passed.as_secs_f64()).min(rate * BURST.as_secs_f64());
        let fits = self.left >= bytes as f64;
        self.left -= if fits { bytes as f64 } else { 0.0 };
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_of_writes_is_what_was_allowed() {
        let begin = Instant::now();
        let mut budget = WriteBudget::new(Some(86_400_000), begin);
        let mut written = 0;
        for second in 0..86_400 {
            while budget.take(500, begin + Duration::from_secs(second)) {
                written += 500;
            }
        }
        // The first hour's share is there from the beginning.
        assert!((90_000_000 - 10_000..=90_000_000).contains(&written), "{written}");
        assert!(!budget.take(500, begin));
        // What had to be written is made up for later.
        budget.spend(10_000);
        let later = begin + Duration::from_secs(86_400 + 5);
        assert!(!budget.take(500, later) && budget.take(500, later + Duration::from_secs(10)));
        assert!(WriteBudget::new(None, begin).take(u64::MAX, begin));
    }
}

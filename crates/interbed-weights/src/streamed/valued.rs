//! Computes the marginal value of memory for streamed weights: how many seconds of waiting one more byte would save.

use super::telemetry::StreamStats;
use crate::experts::ShadowHits;

/// Figures from which the benefit of more memory for experts is estimated.
#[derive(Debug, Clone, Copy)]
pub struct ExpertFigures {
    /// Expert misses that a slightly larger arena would have avoided.
    pub missed: ShadowHits,
    /// Total number of bytes of all experts.
    pub bank_bytes: u64,
}

/// Estimates how much waiting time more memory would save. Each call of [`worth`](Self::worth) evaluates only what has
/// happened since the last call.
#[derive(Debug, Default)]
pub struct Valued {
    stats: StreamStats,
    missed: u64,
    /// Number of seconds that copying a byte to the device takes; 0 if that is not known.
    copy_seconds: f64,
}

impl Valued {
    /// Creates the estimate for a device to which `link_bytes_per_s` bytes can be copied in a second; 0 if that is not
    /// known.
    pub fn new(link_bytes_per_s: f64) -> Self {
        let copy_seconds = if link_bytes_per_s > 0.0 { link_bytes_per_s.recip() } else { 0.0 };
        Self { copy_seconds, ..Self::default() }
    }

    /// Returns an estimate of the waiting time, in seconds, that one more byte of memory would have saved since the
    /// last call. The byte would have held experts if `all_bands_stay` is true and `experts` is `Some`, and bands
    /// otherwise. The estimate is the product of two numbers. One is the number of bytes that passes would not have had
    /// to bring. The other is the average waiting time per byte: for a read, less than the time to read a byte, because
    /// passes compute during reads; and for a copy to a device, the time to copy a byte, because a device computes with
    /// a byte much faster than the byte can be copied.
    pub fn worth(&mut self, stats: StreamStats, all_bands_stay: bool, experts: Option<ExpertFigures>) -> f64 {
        let passed = stats.since(&self.stats);
        let not_brought = match experts.filter(|_| all_bands_stay) {
            // A byte of bands that stays is a byte less to bring in each pass.
            None => passed.passes as f64,
            // A small arena, and any arena under chunks of prompts, evicts slabs too soon for the shadow to count hits.
            // Then routing is taken to be uniform: each byte kept saves its share of the bytes brought.
            Some(ExpertFigures { missed, bank_bytes }) => {
                let by_shadow = (missed.bytes - self.missed) as f64 / missed.more.max(1) as f64;
                let brought = passed.expert_bytes_read.max(passed.bytes_copied);
                by_shadow.max(brought as f64 / bank_bytes.max(1) as f64)
            }
        };
        (self.stats, self.missed) = (stats, experts.map_or(0, |experts| experts.missed.bytes));
        let read = if passed.bytes_read == 0 { 0.0 } else { passed.stall.as_secs_f64() / passed.bytes_read as f64 };
        let copied = if passed.bytes_copied == 0 { 0.0 } else { self.copy_seconds };
        (read + copied) * not_brought
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn after(passes: u64, bytes_read: u64, waited: u64) -> StreamStats {
        StreamStats { passes, bytes_read, stall: Duration::from_secs(waited), ..StreamStats::default() }
    }

    #[test]
    fn memory_is_worth_what_passes_have_waited_for() {
        let mut valued = Valued::default();
        let mut worth = |stats| valued.worth(stats, false, None);
        assert_eq!(worth(after(0, 0, 0)), 0.0);
        // Four passes have read 1000 bytes and waited 2 ms for each: a byte that stays saves four of them.
        assert_eq!(worth(after(4, 1000, 2)), 4.0 * 2.0 / 1000.0);
        assert_eq!(worth(after(4, 1000, 2)), 0.0, "no pass since");
        assert_eq!(worth(after(9, 1000, 3)), 0.0, "nothing was read");
        assert_eq!(worth(after(10, 2000, 3)), 0.0, "nobody waited");
    }

    #[test]
    fn of_experts_it_is_worth_what_more_of_them_would_have_saved() {
        let mut valued = Valued::default();
        let mut worth = |passes, missed, read, all_bands_stay| {
            let missed = ShadowHits { bytes: missed, more: 50 };
            let stats = StreamStats { expert_bytes_read: read, ..after(passes, 1000 * passes, passes) };
            valued.worth(stats, all_bands_stay, Some(ExpertFigures { missed, bank_bytes: 500 }))
        };
        // 50 bytes more would have held 100, and then 300, of the bytes that were read.
        assert_eq!(worth(1, 100, 500, true), 1.0 / 1000.0 * 2.0);
        assert_eq!(worth(2, 400, 1000, true), 1.0 / 1000.0 * 6.0);
        // Nothing lay there for long enough; a twentieth of the experts more would not have been read.
        assert_eq!(worth(3, 400, 2000, true), 1.0 / 1000.0 * 2.0);
        // A byte more goes to bands.
        assert_eq!(worth(4, 700, 3000, false), 1.0 / 1000.0);
    }

    #[test]
    fn of_a_device_it_is_worth_the_copies_too() {
        let mut valued = Valued::new(500.0);
        let copied = |passes, bytes_copied| StreamStats { bytes_copied, ..after(passes, 0, 0) };
        assert_eq!(valued.worth(copied(3, 9000), false, None), 3.0 / 500.0);
        assert_eq!(valued.worth(copied(5, 9000), false, None), 0.0, "nothing was copied");
        let read = StreamStats { bytes_copied: 9100, ..after(6, 1000, 2) };
        assert_eq!(valued.worth(read, false, None), 2.0 / 1000.0 + 1.0 / 500.0);
        assert_eq!(Valued::new(0.0).worth(copied(3, 9000), false, None), 0.0, "nobody knows how fast");
    }
}

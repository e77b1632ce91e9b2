//! What memory is worth to streamed weights: a pure sum over what passes have waited for.

use super::telemetry::StreamStats;
use crate::experts::MissedByALittle;

/// What was known when memory was valued last.
#[derive(Debug, Default)]
pub struct Valued {
    stats: StreamStats,
    missed: u64,
}

impl Valued {
    /// Seconds that the passes since the last call would have waited less with each byte more. A byte of bands that
    /// stays is a byte less to read in each pass; of experts, `missed` tells what a little more memory would have
    /// held. As passes read side by side with computing, only what they waited for each byte counts.
    pub fn worth(&mut self, stats: StreamStats, missed: Option<MissedByALittle>) -> f64 {
        let passed = stats.since(&self.stats);
        let not_read = match missed {
            Some(MissedByALittle { bytes, more }) if more > 0 => (bytes - self.missed) as f64 / more as f64,
            Some(_) => 0.0,
            None => passed.passes as f64,
        };
        (self.stats, self.missed) = (stats, missed.map_or(0, |missed| missed.bytes));
        if passed.bytes_read == 0 { 0.0 } else { passed.stall.as_secs_f64() / passed.bytes_read as f64 * not_read }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn memory_is_worth_what_passes_have_waited_for() {
        let mut valued = Valued::default();
        let after = |passes, bytes_read, waited| StreamStats {
            passes,
            bytes_read,
            stall: Duration::from_secs(waited),
            ..StreamStats::default()
        };
        assert_eq!(valued.worth(after(0, 0, 0), None), 0.0);
        // Four passes have read 1000 bytes and waited 2 ms for each: a byte that stays saves four of them.
        assert_eq!(valued.worth(after(4, 1000, 2), None), 4.0 * 2.0 / 1000.0);
        assert_eq!(valued.worth(after(4, 1000, 2), None), 0.0, "no pass since");
        assert_eq!(valued.worth(after(9, 1000, 3), None), 0.0, "nothing was read");
        assert_eq!(valued.worth(after(10, 2000, 3), None), 0.0, "nobody waited");
        // Of experts, 50 bytes more would have held 300 of the bytes that were read.
        let mut valued = Valued::default();
        let missed = |bytes| Some(MissedByALittle { bytes, more: 50 });
        assert_eq!(valued.worth(after(1, 1000, 1), missed(100)), 1.0 / 1000.0 * 2.0);
        assert_eq!(valued.worth(after(2, 2000, 2), missed(400)), 1.0 / 1000.0 * 6.0);
        assert_eq!(valued.worth(after(3, 3000, 3), missed(400)), 0.0);
    }
}

//! Decides how long a sequence waits for a store.

use std::time::Duration;

/// The share of the time that computing the wanted blocks would take for which a sequence waits for the first block.
const FIRST_SHARE: f64 = 0.05;
const FIRST: (Duration, Duration) = (Duration::from_millis(2), Duration::from_secs(1));

/// The waits for the first block and for each further one, if it is not known how fast they are computed.
const UNMEASURED: Wait = Wait { first: Duration::from_millis(100), each: Duration::from_millis(20) };

/// The rule for how long a sequence waits for blocks from a store before it computes the missing blocks. The wait
/// begins when the tier asks the store for the first block. Before it asks, the tier may have to wait for free memory.
/// That wait may take no longer than the permitted wait for the first block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Patience {
    /// The first block must come within a twentieth of the time that the engine would take to compute all requested
    /// blocks. This limit is at least 2 ms and at most 1 s. Each block that comes extends the wait by the time that the
    /// engine would take to compute one block. If it is not known how fast the engine computes blocks, the limit is
    /// 100 ms and each extension is 20 ms.
    #[default]
    Measured,
    /// The first block must come within this time. Each block that comes extends the wait by the same time.
    Fixed(Duration),
}

/// The wait of one fetch. The fetch is given up when it has taken longer than `first`, plus `each` for each block that
/// has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wait {
    first: Duration,
    each: Duration,
}

impl Patience {
    /// Returns the wait of a fetch of `blocks` blocks. Computing them takes `computing` seconds, if that is known.
    pub(crate) fn wait(self, blocks: usize, computing: Option<f64>) -> Wait {
        match (self, computing) {
            (Patience::Fixed(each), _) => Wait { first: each, each },
            (Patience::Measured, None) => UNMEASURED,
            (Patience::Measured, Some(seconds)) => {
                // No measured rate is so small that this limit matters.
                let seconds = seconds.clamp(0.0, 1e6);
                let first = Duration::from_secs_f64(FIRST_SHARE * seconds).clamp(FIRST.0, FIRST.1);
                Wait { first, each: Duration::from_secs_f64(seconds / blocks.max(1) as f64) }
            }
        }
    }
}

impl Wait {
    /// Returns how long a fetch of which `filled` blocks have come may have taken.
    pub(crate) fn until(self, filled: usize) -> Duration {
        self.first.saturating_add(self.each.saturating_mul(u32::try_from(filled).unwrap_or(u32::MAX)))
    }

    /// Returns whether asking makes sense if the first block takes `answer` to come.
    pub(crate) fn covers(self, answer: Duration) -> bool {
        answer < self.first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_loses_a_twentieth_of_computing_at_most() {
        let wait = Patience::Measured.wait(100, Some(10.0));
        assert_eq!((wait.until(0), wait.until(10)), (Duration::from_millis(500), Duration::from_millis(1500)));
        assert!(wait.covers(Duration::from_millis(499)) && !wait.covers(Duration::from_millis(500)));
        // Never so short that no store can answer, never longer than somebody notices.
        assert_eq!(Patience::Measured.wait(1, Some(0.01)).until(0), FIRST.0);
        assert_eq!(Patience::Measured.wait(100, Some(1000.0)).until(0), FIRST.1);
        assert_eq!(Patience::Measured.wait(100, Some(f64::MAX)).until(0), FIRST.1);
        assert_eq!(Patience::Measured.wait(100, None).until(1), Duration::from_millis(120));
        assert_eq!(Patience::Fixed(Duration::from_secs(2)).wait(1, Some(0.1)).until(2), Duration::from_secs(6));
    }
}

//! How long servers are waited for.

use std::time::Duration;

/// How long servers are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubPatience {
    /// The first wait between two attempts; each further one is twice as long.
    pub wait: Duration,
    /// The longest of these waits.
    pub wait_max: Duration,
    /// The time that the rest of an answer of the API may take once it has begun.
    pub answer: Duration,
    /// The time without one further byte of a file after which it is not asked for again.
    pub standstill: Duration,
}

impl Default for HubPatience {
    /// Long enough for a download to outlive a short outage, short enough for a person to wait.
    fn default() -> Self {
        let (wait, wait_max) = (Duration::from_millis(250), Duration::from_secs(10));
        Self { wait, wait_max, answer: Duration::from_secs(60), standstill: Duration::from_secs(120) }
    }
}

impl HubPatience {
    /// The wait after one of this length.
    pub(crate) fn next(&self, wait: Duration) -> Duration {
        (wait * 2).min(self.wait_max)
    }
}

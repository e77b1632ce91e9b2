//! Timeouts and waits for servers.

use std::time::Duration;

/// Timeouts and waits for servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubPatience {
    /// The wait before the first retry. The wait doubles with each further retry.
    pub wait: Duration,
    /// Longest wait before a retry.
    pub wait_max: Duration,
    /// Time limit for receiving a response of the API after its header.
    pub answer: Duration,
    /// The time without further bytes of a file after which the download of the file is given up.
    pub standstill: Duration,
}

impl Default for HubPatience {
    /// Returns waits that are long enough for a download to survive a short outage, and short enough for a person.
    fn default() -> Self {
        let (wait, wait_max) = (Duration::from_millis(250), Duration::from_secs(10));
        Self { wait, wait_max, answer: Duration::from_secs(60), standstill: Duration::from_secs(120) }
    }
}

impl HubPatience {
    /// Returns the wait that follows `wait`.
    pub(crate) fn next(&self, wait: Duration) -> Duration {
        (wait * 2).min(self.wait_max)
    }
}

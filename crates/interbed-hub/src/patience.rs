//! Timeouts and waits for servers.

use std::time::Duration;

/// Timeouts for requests, and delays before retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubPatience {
    /// Delay before the first retry. The delay doubles with each further retry.
    pub wait: Duration,
    /// Maximum delay before a retry.
    pub wait_max: Duration,
    /// Time limit for receiving the body of an API response.
    pub answer: Duration,
    /// Time without new bytes of the file after which a failing download is no longer retried.
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

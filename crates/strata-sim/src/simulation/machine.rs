//! What the simulated hardware can do, and how it misbehaves.

use super::SimulationError;

/// A disk, or a link between host and device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChannelSpec {
    /// Bytes a second that all requests share.
    pub bytes_per_s: f64,
    /// Nanoseconds from a request's last byte to its answer; latencies of requests overlap.
    pub latency_ns: u64,
    /// How many requests are taken at a time; the others wait.
    pub depth: usize,
}

/// What goes wrong, and how often; by default nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Faults {
    /// Up to so many nanoseconds are added to each answer, at random: answers come out of order.
    pub jitter_ns: u64,
    /// Up to so many nanoseconds pass until an eviction is done, at random.
    pub eviction_ns: u64,
    /// The share of loads that fail.
    pub failed_loads: f64,
    /// The share of loads for which there is no memory.
    pub failed_allocations: f64,
}

/// A disk, perhaps a link, and what goes wrong with them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimulatedMachine {
    /// Where the host tier is read from.
    pub disk: ChannelSpec,
    /// Over which the device tier is copied.
    pub link: Option<ChannelSpec>,
    /// What goes wrong.
    pub faults: Faults,
    /// Chooses the faults; the same seed gives the same run.
    pub seed: u64,
}

impl SimulatedMachine {
    /// # Errors
    /// A bandwidth or depth that is no number above 0.
    pub(super) fn check(&self) -> Result<(), SimulationError> {
        let link = self.link.unwrap_or(self.disk);
        let settings = [
            ("the disk's bandwidth", self.disk.bytes_per_s),
            ("the disk's depth", self.disk.depth as f64),
            ("the link's bandwidth", link.bytes_per_s),
            ("the link's depth", link.depth as f64),
        ];
        match settings.into_iter().find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
            Some((setting, value)) => Err(SimulationError::Machine { setting, value }),
            None => Ok(()),
        }
    }
}

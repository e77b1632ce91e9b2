//! What the simulated hardware can do, and its faults.

use super::SimulationError;

/// A disk, or a link between host and device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChannelSpec {
    /// Bytes a second that all requests share.
    pub bytes_per_s: f64,
    /// Nanoseconds from a request's last byte to its completion; latencies of requests overlap.
    pub latency_ns: u64,
    /// How many requests are in flight at a time; the others wait.
    pub depth: usize,
}

/// The faults, and how often they occur; by default none.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Faults {
    /// The most nanoseconds added to each completion, at random, so that completions come out of order.
    pub jitter_ns: u64,
    /// The most nanoseconds that an eviction takes, at random.
    pub eviction_ns: u64,
    /// The share of loads that fail.
    pub failed_loads: f64,
    /// The share of loads for which there is no memory.
    pub failed_allocations: f64,
}

/// A disk, optionally a link, and their faults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimulatedMachine {
    /// The disk that the host tier is read from.
    pub disk: ChannelSpec,
    /// The link that the device tier is copied over.
    pub link: Option<ChannelSpec>,
    /// The faults.
    pub faults: Faults,
    /// Chooses the faults; the same seed gives the same run.
    pub seed: u64,
}

impl SimulatedMachine {
    /// # Errors
    /// When a bandwidth or depth is not a number above 0.
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

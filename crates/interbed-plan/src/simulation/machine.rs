//! Describes what the simulated hardware can do, and its faults.

use super::SimulationError;

/// Describes a disk, or a link between host and device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChannelSpec {
    /// Bytes per second that all requests share.
    pub bytes_per_s: f64,
    /// Nanoseconds from a request's last byte to its completion; latencies of requests overlap.
    pub latency_ns: u64,
    /// Number of requests that may be in flight at a time; the others wait.
    pub depth: usize,
}

/// Describes faults of the hardware and how often they occur; by default none.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Faults {
    /// Maximum number of nanoseconds added to each completion, at random, so that completions come out of order.
    pub jitter_ns: u64,
    /// Maximum number of nanoseconds that an eviction takes, at random.
    pub eviction_ns: u64,
    /// Share of loads that fail, from 0 to 1.
    pub failed_loads: f64,
    /// Share of loads for which there is no memory, from 0 to 1.
    pub failed_allocations: f64,
}

/// Describes a disk, optionally a link, and their faults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimulatedMachine {
    /// Disk that the host tier is read from.
    pub disk: ChannelSpec,
    /// Link that the device tier is copied over, if there is one.
    pub link: Option<ChannelSpec>,
    /// Faults of disk and link.
    pub faults: Faults,
    /// Seed that chooses the faults; equal seeds give equal runs.
    pub seed: u64,
}

impl SimulatedMachine {
    /// Checks the figures of disk and link.
    ///
    /// # Errors
    /// Fails if a bandwidth or depth is not a number above 0.
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

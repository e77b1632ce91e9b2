//! The figures of a simulated pass.

use interbed_weights::window::UnitId;

/// Names what an interval of the timeline shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activity {
    /// A pass computes with the unit.
    Compute,
    /// The unit is read from disk.
    Read,
    /// The unit is copied to the device.
    Copy,
    /// A pass waits for the unit.
    Stall,
}

/// Describes one interval of the timeline, in nanoseconds of virtual time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimelineEvent {
    /// Unit of weights that the interval is about.
    pub unit: UnitId,
    /// What happened to the unit.
    pub activity: Activity,
    /// Time at which the interval began, in nanoseconds since the simulation's start.
    pub start_ns: u64,
    /// Time at which the interval ended, in nanoseconds since the simulation's start.
    pub end_ns: u64,
}

/// Holds the figures of one pass. Reading and copying count if they began or ended since the previous report, so bytes
/// fetched for the next pass count in the pass during which they are fetched.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PassReport {
    /// Seconds from the first acquisition to the last release.
    pub seconds: f64,
    /// Seconds in which computing waited for units of weights.
    pub stall_seconds: f64,
    /// Seconds of computing with units of weights.
    pub compute_seconds: f64,
    /// Seconds in which the disk moved bytes.
    pub read_seconds: f64,
    /// Seconds in which the link moved bytes.
    pub copy_seconds: f64,
    /// Bytes that arrived in host memory.
    pub host_bytes_loaded: u64,
    /// Bytes that arrived in device memory.
    pub device_bytes_loaded: u64,
    /// Least number of seconds that this pass can take on this machine with these budgets, whatever the policy.
    pub bound_seconds: f64,
}

impl PassReport {
    /// Returns the share of reading and copying that computing hid, which is 1 - stall time ÷ I/O time. The share is 1
    /// if there was no I/O, too.
    pub fn overlap_efficiency(&self) -> f64 {
        let io = self.read_seconds + self.copy_seconds;
        if io > 0.0 { (1.0 - self.stall_seconds / io).max(0.0) } else { 1.0 }
    }

    /// Returns the pass's least possible time ÷ its real time; 1 is perfect.
    pub fn share_of_bound(&self) -> f64 {
        if self.seconds > 0.0 { self.bound_seconds / self.seconds } else { 1.0 }
    }
}

/// Sums what has happened since the simulation began.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub host_bytes: u64,
    pub device_bytes: u64,
    pub disk_busy_ns: u64,
    pub link_busy_ns: u64,
}

//! The figures of a simulated pass.

use interbed_weights::window::UnitId;

/// What an interval of the timeline shows.
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

/// One interval of the timeline, in nanoseconds of virtual time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimelineEvent {
    /// The unit.
    pub unit: UnitId,
    /// What happened.
    pub activity: Activity,
    /// When it began.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// The figures of one pass. I/O counts if it began or ended since the previous report: what is fetched for the next
/// pass counts in the pass during which it is fetched.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PassReport {
    /// Seconds from the first acquisition to the last release.
    pub seconds: f64,
    /// Seconds in which compute waited for units.
    pub stall_seconds: f64,
    /// Seconds of computing with units.
    pub compute_seconds: f64,
    /// Seconds in which the disk moved bytes.
    pub read_seconds: f64,
    /// Seconds in which the link moved bytes.
    pub copy_seconds: f64,
    /// Bytes that arrived in the host.
    pub host_bytes_loaded: u64,
    /// Bytes that arrived in the device.
    pub device_bytes_loaded: u64,
    /// The least time that this pass can take on this machine with these budgets, whatever the policy.
    pub bound_seconds: f64,
}

impl PassReport {
    /// 1 - stall time ÷ I/O time: 1 if all I/O was hidden, or there was none, 0 if none was.
    pub fn overlap_efficiency(&self) -> f64 {
        let io = self.read_seconds + self.copy_seconds;
        if io > 0.0 { (1.0 - self.stall_seconds / io).max(0.0) } else { 1.0 }
    }

    /// Bound ÷ time: 1 is perfect.
    pub fn share_of_bound(&self) -> f64 {
        if self.seconds > 0.0 { self.bound_seconds / self.seconds } else { 1.0 }
    }
}

/// Sums since the simulation began.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub host_bytes: u64,
    pub device_bytes: u64,
    pub disk_busy_ns: u64,
    pub link_busy_ns: u64,
}

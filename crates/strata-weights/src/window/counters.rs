//! What happened, in numbers that only grow.

/// Numbers that a window has counted since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WindowCounters {
    /// Loads that were commanded.
    pub loads: u64,
    /// Bytes of the loads that arrived, as the units' sizes say; what a driver reads for alignment is not in it.
    pub bytes_loaded: u64,
    /// Loads that failed, for want of memory or otherwise.
    pub loads_failed: u64,
    /// Of those, loads for which no memory could be had.
    pub allocations_failed: u64,
    /// Evictions that were commanded.
    pub evictions: u64,
    /// Acquisitions that succeeded.
    pub acquisitions: u64,
    /// Acquisitions that had to wait; asking again for the same unit is the same wait.
    pub waits: u64,
    /// Waits that ended in failure.
    pub waits_failed: u64,
    /// Reports that named no load or eviction in flight.
    pub stale_reports: u64,
    /// Ring only: queued requests that were dropped, because the pass had jumped or had passed them.
    pub requests_stale: u64,
    /// Ring only: requests for which the queue was full.
    pub requests_refused: u64,
}

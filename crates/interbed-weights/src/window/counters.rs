//! Counters of what a window has done; they only grow.

/// What a window has counted since it was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WindowCounters {
    /// Loads that were commanded.
    pub loads: u64,
    /// Bytes of the loads that arrived, by the units' sizes; what a driver reads beyond them for alignment is not
    /// included.
    pub bytes_loaded: u64,
    /// Loads that failed, for lack of memory or for another reason.
    pub loads_failed: u64,
    /// The part of `loads_failed` for which no memory could be allocated.
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
    /// Ring only: queued load requests that were dropped because the pass had jumped or had gone past their units.
    pub requests_stale: u64,
    /// Ring only: load requests that were refused because the queue was full, or dropped because nothing could be
    /// evicted for them.
    pub requests_refused: u64,
}

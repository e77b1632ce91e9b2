//! Counters of what a window has done, which only grow.

/// Counts of what a window has done since it was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WindowCounters {
    /// Number of loads that were commanded.
    pub loads: u64,
    /// Number of bytes of the loads that arrived, by the sizes of the units. Bytes that a driver reads beyond a unit
    /// for alignment are not included.
    pub bytes_loaded: u64,
    /// Number of loads that failed, for lack of memory or for another reason.
    pub loads_failed: u64,
    /// Number of failed loads for which no memory could be allocated. The field `loads_failed` includes these loads.
    pub allocations_failed: u64,
    /// Number of evictions that were commanded.
    pub evictions: u64,
    /// Number of acquisitions that succeeded.
    pub acquisitions: u64,
    /// Number of acquisitions that had to wait. A caller that asks again for the same unit is still in the same wait.
    pub waits: u64,
    /// Number of waits that ended in failure.
    pub waits_failed: u64,
    /// Number of reports that named no load or eviction in flight.
    pub stale_reports: u64,
    /// Number of queued load requests that were dropped because the pass had jumped or had gone past their units; ring
    /// only.
    pub requests_stale: u64,
    /// Number of load requests that were refused because the queue was full, or dropped because nothing could be
    /// evicted for them; ring only.
    pub requests_refused: u64,
}

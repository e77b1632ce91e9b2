//! Counters of what a window has done, which only grow.

/// Counts of a window's actions since it was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WindowCounters {
    /// Number of loads that were commanded.
    pub loads: u64,
    /// Total size in bytes of the units that were loaded. If a driver also reads other bytes for the sake of alignment,
    /// they do not count.
    pub bytes_loaded: u64,
    /// Number of loads that failed, for lack of memory or for another reason.
    pub loads_failed: u64,
    /// Number of failed loads for which no memory could be allocated. The field `loads_failed` includes these loads.
    pub allocations_failed: u64,
    /// Number of evictions that were commanded.
    pub evictions: u64,
    /// Number of acquisitions that succeeded.
    pub acquisitions: u64,
    /// Number of waits that began. A caller that acquires the same unit again while it waits does not begin another
    /// wait.
    pub waits: u64,
    /// Number of waits that ended in failure.
    pub waits_failed: u64,
    /// Number of reports that matched no load or eviction in flight.
    pub stale_reports: u64,
    /// Number of queued load requests that were dropped because the pass had jumped elsewhere or had gone past their
    /// units. Always 0 except under [`Policy::Ring`](super::Policy::Ring).
    pub requests_stale: u64,
    /// Number of load requests that were refused because the queue was full, or dropped because no unit could be
    /// evicted to make room. Always 0 except under [`Policy::Ring`](super::Policy::Ring).
    pub requests_refused: u64,
}

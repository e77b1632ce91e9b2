//! What a window is asked to do.

use super::ring_config::RingConfig;
use super::unit_id::UnitId;

/// What a [`Window`](super::Window) holds, where, and by which policy.
#[derive(Debug, Clone)]
pub struct WindowConfig {
    /// How many bytes each unit takes, by unit; more than 0.
    pub unit_bytes: Vec<u64>,
    /// The cyclic order in which a pass acquires units, each at most once. Units that are not in it (experts) are
    /// loaded on demand.
    pub order: Vec<UnitId>,
    /// Bytes that all units of this tier may take together; units being loaded or evicted count.
    pub budget: u64,
    /// Which units stay and which are evicted.
    pub policy: Policy,
    /// How often a load is tried before the callers that wait for it are told that it failed.
    pub load_attempts: u32,
}

/// Which units stay and which are evicted.
#[derive(Debug, Clone)]
pub enum Policy {
    /// A fixed subset stays, the rest passes through a few slots. The default.
    Resident(ResidentConfig),
    /// Slides with the pass and drops what it leaves.
    Ring(RingConfig),
}

/// How [`Policy::Resident`] streams what does not stay.
///
/// A streamed unit takes a slot of the largest unit's bytes, a resident one takes its own bytes. A user of the window
/// may have at most `stream_slots` units in use or waited for at the same time; with more, waits may never end.
/// Residents that are present do not count, except those that a smaller budget evicts while they are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentConfig {
    /// The number of slots that units stream through, and also the most residents that are loaded at the same time.
    /// There are no slots if everything fits, and more than this if all units of the order fit and memory is left for
    /// units on demand.
    pub stream_slots: usize,
}

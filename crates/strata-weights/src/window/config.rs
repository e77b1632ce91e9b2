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
    /// Bytes that all units of this tier may take together; units being loaded and being evicted are counted.
    pub budget: u64,
    /// Who stays and who goes.
    pub policy: Policy,
    /// How often a load is tried before it fails those who wait for it.
    pub load_attempts: u32,
}

/// Who stays and who goes.
#[derive(Debug, Clone)]
pub enum Policy {
    /// A fixed subset stays, the rest passes through a few slots. The default.
    Resident(ResidentConfig),
    /// Slides with the pass and drops what it leaves.
    Ring(RingConfig),
}

/// How [`Policy::Resident`] streams what does not stay.
///
/// A streamed unit takes a slot of the largest unit's bytes, a resident one takes its own bytes. Whoever uses the
/// window may have at most `stream_slots` units in use or waited for at the same time; with more, waits may not end.
/// Units that stay and are there do not count, except those that a smaller budget sends away while they are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentConfig {
    /// The number of slots that units stream through; also how many residents are loaded at the same time. There are
    /// none if everything fits, and more if all that the order names fits and memory is left for units on demand.
    pub stream_slots: usize,
}

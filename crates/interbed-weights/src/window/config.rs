//! Configuration of a window.

use super::ring_config::RingConfig;
use super::unit_id::UnitId;

/// Units of a [`Window`](super::Window), the window's budget, and its policy.
#[derive(Debug, Clone)]
pub struct WindowConfig {
    /// Number of bytes that each unit takes, by the unit's number; more than 0.
    pub unit_bytes: Vec<u64>,
    /// Cyclic order in which a pass acquires units, each at most once. Units outside the order (experts) are loaded on
    /// demand.
    pub order: Vec<UnitId>,
    /// Number of bytes that all units of this tier may take together; units being loaded or evicted count.
    pub budget: u64,
    /// Policy that decides which units stay and which are evicted.
    pub policy: Policy,
    /// Maximum number of times that a load is tried before the callers that wait for it are told that it failed.
    pub load_attempts: u32,
}

/// Policy that decides which units stay and which are evicted.
#[derive(Debug, Clone)]
pub enum Policy {
    /// A fixed subset of units stays, and the rest passes through a few slots. This is the default.
    Resident(ResidentConfig),
    /// A window slides with the pass, and drops the units that the pass leaves behind.
    Ring(RingConfig),
}

/// Settings with which [`Policy::Resident`] streams the units that do not stay.
///
/// A streamed unit takes a slot of the largest unit's bytes, a resident unit takes its own bytes. A user of the window
/// may have at most `stream_slots` units in use or waited for at the same time; with more, waits may never end.
/// Residents that are present do not count, except those that a smaller budget evicts while they are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentConfig {
    /// Number of slots that units stream through, and also the maximum number of residents that are loaded at the same
    /// time. If all units fit into memory, the window has no slots. If only the units that passes read in order fit, it
    /// adds slots for the other units as far as memory is left.
    pub stream_slots: usize,
}

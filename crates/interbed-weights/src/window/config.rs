//! Configuration of a window.

use super::ring_config::RingConfig;
use super::unit_id::UnitId;

/// Configuration of a [`Window`](super::Window).
#[derive(Debug, Clone)]
pub struct WindowConfig {
    /// Size of each unit in bytes, indexed by unit number. Every size is at least 1.
    pub unit_bytes: Vec<u64>,
    /// Cyclic order in which a pass acquires units. Each unit occurs at most once. Units that do not occur (experts)
    /// are loaded on demand.
    pub order: Vec<UnitId>,
    /// Maximum number of bytes that all units in this tier may take together, including units that are being loaded or
    /// evicted.
    pub budget: u64,
    /// Policy that decides which units stay and which are evicted.
    pub policy: Policy,
    /// Maximum number of attempts to load a unit before callers that wait for it get
    /// [`Acquired::Failed`](super::Acquired::Failed).
    pub load_attempts: u32,
}

/// Policy that decides which units stay and which are evicted.
#[derive(Debug, Clone)]
pub enum Policy {
    /// A fixed subset of the units stays in memory. All other units are streamed through a few slots.
    Resident(ResidentConfig),
    /// The window slides along the order with the pass, and evicts units that the pass has left behind.
    Ring(RingConfig),
}

/// Settings of [`Policy::Resident`].
///
/// A streamed unit takes a slot, which has the size of the largest unit. A resident unit takes only its own size.
/// Callers may have at most `stream_slots` units in use or waited for at the same time; with more, a wait may never
/// end. A resident that is present does not count, unless a reduced budget requires its eviction after use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentConfig {
    /// Number of slots for streamed units. This is also the maximum number of loads of residents in flight. If all
    /// units fit into the budget, the window has no slots. If the slots and all units of the order fit, but not all
    /// on-demand units, the remaining memory is divided into additional slots, which on-demand units use.
    pub stream_slots: usize,
}

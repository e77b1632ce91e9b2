//! What a window is asked to do, and what can be wrong with that.

use thiserror::Error;

use super::ring_config::RingConfig;

/// What is moved in one go: a band of rows, a tensor, a group or a whole layer. Numbered from 0 within a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId(pub u32);

impl UnitId {
    /// The unit's place in vectors that are kept by unit.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

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
    /// A fixed subset stays, the rest passes through a few slots (W13). The default.
    Resident(ResidentConfig),
    /// The seed's window, which slides with the pass and drops what it leaves (W3, W4).
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

/// A window that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WindowError {
    /// The budget cannot hold what must be in memory at the same time.
    #[error("a window of {budget} bytes is too small for its units: the least that works is {least} bytes")]
    BudgetTooSmall {
        /// The budget that was asked for.
        budget: u64,
        /// The least that works with the other settings as they are.
        least: u64,
    },
    /// A setting that must be at least 1 is 0.
    #[error("{setting} is 0: it must be at least 1")]
    Zero {
        /// The setting's name.
        setting: &'static str,
    },
    /// A unit without bytes.
    #[error("unit {} has no bytes: leave it out", unit.0)]
    EmptyUnit {
        /// The unit.
        unit: UnitId,
    },
    /// A unit that does not exist.
    #[error("the order names unit {}, but there are {units} units", unit.0)]
    UnknownUnit {
        /// The unit.
        unit: UnitId,
        /// How many there are.
        units: usize,
    },
    /// A unit that a pass would acquire twice.
    #[error("the order names unit {} twice: make it two units, or name it once", unit.0)]
    RepeatedUnit {
        /// The unit.
        unit: UnitId,
    },
    /// More units, or bytes, than can be counted.
    #[error("{units} units or their bytes are too many to be counted: use larger units")]
    TooLarge {
        /// How many units there are.
        units: usize,
    },
    /// Settings of the ring that contradict each other.
    #[error("ring settings contradict each other: {problem}")]
    Ring {
        /// Which, and how.
        problem: String,
    },
}

//! What can be wrong with a window's settings.

use thiserror::Error;

use super::unit_id::UnitId;

/// Why a window cannot be created or changed.
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

//! Errors in a window's settings.

use thiserror::Error;

use super::unit_id::UnitId;

/// Error in the settings of a window.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WindowError {
    /// The budget cannot hold the units that must be in memory at the same time.
    #[error("a window of {budget} bytes is too small for its units: the least that works is {least} bytes")]
    BudgetTooSmall {
        /// Budget that was asked for, in bytes.
        budget: u64,
        /// Least budget that works with the other settings as they are, in bytes.
        least: u64,
    },
    /// A setting that must be at least 1 is 0.
    #[error("{setting} is 0: it must be at least 1")]
    Zero {
        /// Name of the setting.
        setting: &'static str,
    },
    /// A unit has no bytes.
    #[error("unit {} has no bytes: leave it out", unit.0)]
    EmptyUnit {
        /// Unit that has no bytes.
        unit: UnitId,
    },
    /// The order names a unit that does not exist.
    #[error("the order names unit {}, but there are {units} units", unit.0)]
    UnknownUnit {
        /// Unit that does not exist.
        unit: UnitId,
        /// Number of units that exist.
        units: usize,
    },
    /// The order names a unit twice, so a pass would acquire it twice.
    #[error("the order names unit {} twice: make it two units, or name it once", unit.0)]
    RepeatedUnit {
        /// Unit that is named twice.
        unit: UnitId,
    },
    /// There are too many units, or their total size overflows.
    #[error("{units} units or their bytes are too many to be counted: use larger units")]
    TooLarge {
        /// Number of units.
        units: usize,
    },
    /// Settings of the ring policy contradict each other.
    #[error("ring settings contradict each other: {problem}")]
    Ring {
        /// Description of which settings contradict each other, and how.
        problem: String,
    },
}

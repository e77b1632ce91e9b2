//! Errors in an arena's settings and counts.

use thiserror::Error;

/// The reason why an arena refuses its shape, its budget or the counts of an earlier run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// The budget has no room for two slabs of each size, so reads could not overlap with computing.
    #[error("{budget} bytes are too few for experts: the least that works is {least} bytes")]
    TooSmall {
        /// The budget that was asked for.
        budget: u64,
        /// Bytes of two slabs of each size, the least that works.
        least: u64,
    },
    /// A number in the arena's shape is out of range.
    #[error("{what} is {got}, expected {expected}")]
    Shape {
        /// Name of the number that is wrong.
        what: &'static str,
        /// Value that the number has.
        got: u64,
        /// Values that are possible.
        expected: &'static str,
    },
    /// The counts belong to another model, or are damaged.
    #[error("counts of uses do not fit: {what}")]
    Counts {
        /// Description of what does not agree.
        what: String,
    },
}

//! What can be wrong with an arena's settings.

use thiserror::Error;

/// Why an arena cannot be created or warmed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// The budget has no room for two slabs of each size, so a read could not overlap with computing.
    #[error("{budget} bytes are too few for experts: the least that works is {least} bytes")]
    TooSmall {
        /// The budget that was asked for.
        budget: u64,
        /// Two slabs of each size.
        least: u64,
    },
    /// A shape that no model has.
    #[error("{what} is {got}, expected {expected}")]
    Shape {
        /// Which number.
        what: &'static str,
        /// Its value.
        got: u64,
        /// What is possible.
        expected: &'static str,
    },
    /// Counts of another model, or damaged ones.
    #[error("counts of uses do not fit: {what}")]
    Counts {
        /// What does not agree.
        what: String,
    },
}

//! Files that fail on demand and files that are slow, for the tests of this and other crates, and to try the effect of
//! a slower disk.

mod faulty_file;
mod faulty_space;
mod throttled_file;

pub use faulty_file::{Effect, Fault, FaultyFile, RecordedRead, Which};
pub use faulty_space::{FaultySpace, HeldWrites, WriteEffect};
pub use throttled_file::{Throttle, ThrottledFile};

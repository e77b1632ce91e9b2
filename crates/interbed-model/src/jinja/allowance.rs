//! Limits a rendering: the bytes of one value, the bytes of all values together, the bytes written, and the time.
//!
//! Each rendering has a thread of its own, so the allowance is kept in a variable of the thread.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use thiserror::Error as ThisError;

/// The most bytes that one value may have, with all its texts.
pub(super) const VALUE_BYTES_MAX: usize = 64 << 20;
/// The number of bytes that a value counts without its text, whether it is part of a list or stands alone.
pub(super) const NODE_BYTES: usize = 64;
/// The deepest nesting of a value. Requests nest at most 127 deep.
pub(super) const DEPTH_MAX: usize = 200;
/// The bytes of values that a rendering may make, in addition to [`MADE_FACTOR`] bytes for each byte of its input.
const MADE_BASE: usize = 256 << 20;
const MADE_FACTOR: usize = 64;
/// The number by which the limit of the output is multiplied for all writing together. A macro and each macro that
/// calls it write the same text again, and so a rendering writes more than its output has.
const WRITTEN_FACTOR: usize = 4;
/// The longest time that a rendering may take. Ordinary renderings take milliseconds.
const TIME_MAX: Duration = Duration::from_secs(20);

/// Names the limit that a template exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ThisError)]
pub(crate) enum Excess {
    #[error("it makes a value of more than {VALUE_BYTES_MAX} bytes")]
    Value,
    #[error("the values that it makes have more than {0} bytes together")]
    Made(usize),
    #[error("it writes too much")]
    Written,
    #[error("it takes longer than {} s", TIME_MAX.as_secs())]
    Time,
    #[error("it makes a value that is nested more than {DEPTH_MAX} deep")]
    Depth,
    #[error("it puts a namespace into another value")]
    Namespace,
}

struct Allowance {
    made: usize,
    made_max: usize,
    written: usize,
    written_max: usize,
    end: Option<Instant>,
}

thread_local! {
    static ALLOWANCE: RefCell<Allowance> =
        const { RefCell::new(Allowance { made: 0, made_max: 0, written: 0, written_max: 0, end: None }) };
}

/// Begins the allowance of this thread's rendering. The input has `given` bytes, and the output may have `output_max`.
pub(crate) fn begin(given: usize, output_max: usize) {
    let allowance = Allowance {
        made: 0,
        made_max: MADE_BASE.saturating_add(given.saturating_mul(MADE_FACTOR)),
        written: 0,
        written_max: output_max.saturating_mul(WRITTEN_FACTOR),
        end: Instant::now().checked_add(TIME_MAX),
    };
    ALLOWANCE.with(|current| *current.borrow_mut() = allowance);
}

/// Counts `bytes` bytes of a value that is about to be made. Fails if the value is too large or a limit is exceeded.
pub(super) fn make(bytes: usize) -> Result<(), Excess> {
    if bytes > VALUE_BYTES_MAX {
        return Err(Excess::Value);
    }
    ALLOWANCE.with(|allowance| {
        let mut allowance = allowance.borrow_mut();
        allowance.made = allowance.made.saturating_add(bytes);
        if allowance.made > allowance.made_max { Err(Excess::Made(allowance.made_max)) } else { Ok(()) }
    })
}

/// Counts `bytes` bytes that are about to be written. Fails if the rendering has written too much.
pub(super) fn write(bytes: usize) -> Result<(), Excess> {
    ALLOWANCE.with(|allowance| {
        let mut allowance = allowance.borrow_mut();
        allowance.written = allowance.written.saturating_add(bytes);
        if allowance.written > allowance.written_max { Err(Excess::Written) } else { Ok(()) }
    })
}

/// Fails if the rendering has taken too long.
pub(super) fn in_time() -> Result<(), Excess> {
    let end = ALLOWANCE.with(|allowance| allowance.borrow().end);
    if end.is_some_and(|end| Instant::now() > end) { Err(Excess::Time) } else { Ok(()) }
}

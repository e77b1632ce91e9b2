//! The limits of a rendering: the size of a value, bytes of all values together, bytes written, time.
//!
//! A rendering has a thread of its own, and so its allowance is the thread's.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use thiserror::Error as ThisError;

/// Largest value, texts and all, in bytes.
pub(super) const VALUE_BYTES_MAX: usize = 64 << 20;
/// Bytes of a value without its text, in a list or alone.
pub(super) const NODE_BYTES: usize = 64;
/// Deepest nesting of a value. Requests nest at most 127 deep.
const DEPTH_MAX: usize = 200;
/// Bytes of all values that a rendering may make, in addition to [`MADE_FACTOR`] for each byte of its input.
const MADE_BASE: usize = 256 << 20;
const MADE_FACTOR: usize = 64;
/// How often over a text may be written: by a macro, by the macro that calls it, and so on.
const WRITTEN_FACTOR: usize = 4;
/// Longest that a rendering may take. Honest ones take milliseconds.
const TIME_MAX: Duration = Duration::from_secs(20);

/// Which limit a template exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ThisError)]
pub(super) enum Excess {
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

impl From<Excess> for Error {
    fn from(excess: Excess) -> Self {
        Self::new(ErrorKind::InvalidOperation, excess.to_string()).with_source(excess)
    }
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

/// Begins the allowance of this thread's rendering, whose input has `given` bytes and whose output at most
/// `output_max`.
pub(super) fn begin(given: usize, output_max: usize) {
    let allowance = Allowance {
        made: 0,
        made_max: MADE_BASE.saturating_add(given.saturating_mul(MADE_FACTOR)),
        written: 0,
        written_max: output_max.saturating_mul(WRITTEN_FACTOR),
        end: Instant::now().checked_add(TIME_MAX),
    };
    ALLOWANCE.with(|current| *current.borrow_mut() = allowance);
}

/// Counts `bytes` that are about to be made.
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

/// Counts `bytes` that are about to be written.
pub(super) fn write(bytes: usize) -> Result<(), Excess> {
    ALLOWANCE.with(|allowance| {
        let mut allowance = allowance.borrow_mut();
        allowance.written = allowance.written.saturating_add(bytes);
        if allowance.written > allowance.written_max { Err(Excess::Written) } else { Ok(()) }
    })
}

fn in_time() -> Result<(), Excess> {
    let end = ALLOWANCE.with(|allowance| allowance.borrow().end);
    if end.is_some_and(|end| Instant::now() > end) { Err(Excess::Time) } else { Ok(()) }
}

/// Bytes of a value, if they are within the limits.
pub(super) fn bytes_of(value: &Value) -> Result<usize, Excess> {
    let mut bytes = 0;
    measure(value, 0, &mut bytes)?;
    Ok(bytes)
}

/// Adds the bytes of a value, as often as they stand in it: whatever prints or compares it meets them as often.
fn measure(value: &Value, depth: usize, bytes: &mut usize) -> Result<(), Excess> {
    *bytes += NODE_BYTES + text_bytes(value);
    if *bytes > VALUE_BYTES_MAX {
        return Err(Excess::Value);
    }
    if value.as_object().is_none() {
        return Ok(());
    }
    if depth > DEPTH_MAX {
        return Err(Excess::Depth);
    }
    if depth > 0 && is_namespace(value) {
        return Err(Excess::Namespace);
    }
    if bytes.is_multiple_of(1 << 10) {
        in_time()?;
    }
    let Ok(items) = value.try_iter() else { return Ok(()) };
    let is_map = value.kind() == ValueKind::Map;
    for item in items {
        measure(&item, depth + 1, bytes)?;
        if is_map && let Ok(entry) = value.get_item(&item) {
            measure(&entry, depth + 1, bytes)?;
        }
    }
    Ok(())
}

/// Bytes of a text; of other values none.
pub(super) fn text_bytes(value: &Value) -> usize {
    value.as_bytes().map_or(0, <[u8]>::len)
}

/// A namespace is the one value that changes: within others, or within itself, it could grow after it was measured.
fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

/// A value that is about to be worked on.
pub(super) fn operand(value: Value) -> Result<Value, Error> {
    in_time()?;
    if value.as_object().is_some() || text_bytes(&value) > VALUE_BYTES_MAX {
        bytes_of(&value)?;
    }
    Ok(value)
}

/// A value that has been made. What would be computed each time it is looked at becomes a list, so that no value stands
/// on a million others.
pub(super) fn made(value: Value) -> Result<Value, Error> {
    in_time()?;
    if value.as_object().is_none() {
        make(text_bytes(&value))?;
        return Ok(value);
    }
    bytes_of(&value)?;
    make(value.len().unwrap_or(0).saturating_mul(NODE_BYTES))?;
    let computed = match value.kind() {
        ValueKind::Iterable => true,
        ValueKind::Seq => {
            value.downcast_object_ref::<Vec<Value>>().is_none() && value.downcast_object_ref::<Tuple>().is_none()
        }
        _ => false,
    };
    Ok(if computed { value.try_iter()?.collect::<Vec<_>>().into() } else { value })
}

/// A value on its way into a namespace.
pub(super) fn stored(value: Value) -> Result<Value, Error> {
    if is_namespace(&value) {
        return Err(Excess::Namespace.into());
    }
    operand(value)
}

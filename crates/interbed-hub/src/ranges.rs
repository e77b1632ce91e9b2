//! Which bytes are asked for, and what headers of answers say.

use std::ops::Range;
use std::time::Duration;

/// Bytes that one request asks for: few enough that several in flight take little memory, and enough that what lies
/// between two requests does not count.
pub const RANGE_BYTES: u64 = 4 << 20;

/// The ranges of `have..size` in order, each of at most `step` bytes.
pub fn ranges(have: u64, size: u64, step: u64) -> impl Iterator<Item = Range<u64>> {
    let step = step.max(1);
    let mut next = have;
    std::iter::from_fn(move || {
        let range = (next < size).then(|| next..next.saturating_add(step).min(size))?;
        next = range.end;
        Some(range)
    })
}

/// What a `Content-Range` header says: the bytes, and of how many, where it says so.
pub fn content_range(header: &str) -> Option<(Range<u64>, Option<u64>)> {
    let (range, total) = header.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.trim().split_once('-')?;
    let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    let end = last.checked_add(1)?;
    (first < end && total.is_none_or(|total| end <= total)).then_some((first..end, total))
}

/// How long a `Retry-After` header says to wait; dates are not read.
pub fn retry_after(header: &str) -> Option<Duration> {
    header.trim().parse().ok().map(Duration::from_secs)
}

//! Byte ranges of requests, and the response headers about them.

use std::ops::Range;
use std::time::Duration;

/// The bytes of one request. They are few enough that several requests in flight use little memory, and enough that the
/// latency between requests does not matter.
pub const RANGE_BYTES: u64 = 4 << 20;

/// Splits `have..size` into ranges of at most `step` bytes, in order.
pub fn ranges(have: u64, size: u64, step: u64) -> impl Iterator<Item = Range<u64>> {
    let step = step.max(1);
    let mut next = have;
    std::iter::from_fn(move || {
        let range = (next < size).then(|| next..next.saturating_add(step).min(size))?;
        next = range.end;
        Some(range)
    })
}

/// Parses a `Content-Range` header: the range and, if given, the total size in bytes.
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

/// Parses a `Retry-After` header that gives seconds. Returns `None` if it gives a date.
pub fn retry_after(header: &str) -> Option<Duration> {
    header.trim().parse().ok().map(Duration::from_secs)
}

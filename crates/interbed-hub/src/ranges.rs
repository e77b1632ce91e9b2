//! Byte ranges of requests, and the response headers about them.

use std::ops::Range;
use std::time::Duration;

/// Maximum number of bytes that one request asks for. The limit is low enough that several responses fit in little
/// memory, and high enough that the latency of each request hardly matters.
pub const RANGE_BYTES: u64 = 4 << 20;

/// Splits `have..size` into consecutive ranges of at most `step` bytes.
pub fn ranges(have: u64, size: u64, step: u64) -> impl Iterator<Item = Range<u64>> {
    let step = step.max(1);
    let mut next = have;
    std::iter::from_fn(move || {
        let range = (next < size).then(|| next..next.saturating_add(step).min(size))?;
        next = range.end;
        Some(range)
    })
}

/// Parses a `Content-Range` header. Returns the byte range, and the total size in bytes if the header contains it.
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

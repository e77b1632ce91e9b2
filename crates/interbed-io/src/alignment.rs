//! The block size of direct reads and writes.

use std::ops::Range;

/// Memory addresses, offsets and lengths of direct reads are multiples of this many bytes. Disks require 512 or 4,096.
pub const DIRECT_ALIGN: usize = 4096;

/// Returns the smallest range of whole blocks that holds `range`, in bytes of a file. A read of `range` begins at the
/// start of the result, and its buffer has the length of the result. Returns `None` if the end overflows.
pub fn aligned_superset(range: Range<u64>) -> Option<Range<u64>> {
    let align = DIRECT_ALIGN as u64;
    Some(range.start / align * align..range.end.checked_next_multiple_of(align)?)
}

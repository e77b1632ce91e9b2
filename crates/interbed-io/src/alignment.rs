//! The block size of direct reads and writes.

use std::ops::Range;

/// Block size of direct reads and writes in bytes. Memory addresses, file offsets and lengths must be multiples of it.
/// Disks require a multiple of 512 or 4,096 bytes.
pub const DIRECT_ALIGN: usize = 4096;

/// Widens `range`, in bytes of a file, to multiples of [`DIRECT_ALIGN`]. A direct read of `range` has to cover the
/// returned range. Returns `None` if the end overflows.
pub fn aligned_superset(range: Range<u64>) -> Option<Range<u64>> {
    let align = DIRECT_ALIGN as u64;
    Some(range.start / align * align..range.end.checked_next_multiple_of(align)?)
}

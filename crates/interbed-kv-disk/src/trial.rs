//! Tries out how fast a disk writes and reads.

use std::time::Instant;

use interbed_io::{AlignedBuffer, DIRECT_ALIGN, DirectWrite};
use interbed_kv::SwapTrial;

use crate::DiskTierError;

/// Number of bytes that are written or read at a time, and that records of swapped blocks have at most, unless a single
/// block is larger.
pub(crate) const PART_BYTES: usize = 1 << 20;

/// Measures how long it takes to write to `file` and to read from it. Overwrites the first `bytes` bytes of the file
/// with zeros, or the whole file if it is shorter, and then reads them back. The number of bytes is rounded down to a
/// multiple of [`DIRECT_ALIGN`].
///
/// # Errors
/// Fails if the memory for the buffer cannot be allocated, or if a write or a read fails.
pub fn try_out(file: &dyn DirectWrite, bytes: usize) -> Result<SwapTrial, DiskTierError> {
    let no_memory = DiskTierError::Memory { bytes: PART_BYTES };
    let mut buffer = AlignedBuffer::new_zeroed(PART_BYTES).ok_or(no_memory)?;
    let bytes = (bytes as u64).min(file.len()) / DIRECT_ALIGN as u64 * DIRECT_ALIGN as u64;
    let parts = (0..bytes).step_by(PART_BYTES);
    let len = |offset: u64| usize::try_from(bytes - offset).unwrap_or(PART_BYTES).min(PART_BYTES);
    let began = Instant::now();
    for offset in parts.clone() {
        file.write_aligned_at(&buffer.as_slice()[..len(offset)], offset)?;
    }
    let written = Instant::now();
    for offset in parts {
        let len = len(offset);
        file.read_aligned_at(&mut buffer.as_mut()[..len], offset, len)?;
    }
    let (write_seconds, read_seconds) = ((written - began).as_secs_f64(), written.elapsed().as_secs_f64());
    Ok(SwapTrial { bytes, write_seconds, read_seconds })
}

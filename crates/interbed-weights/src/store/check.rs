//! Computes the checksums of regions as they are on the disk.

use std::ops::ControlFlow;

use interbed_io::{IoError, RandomAccessFile};
use xxhash_rust::xxh3::Xxh3;

use super::checksum::Checksum;
use super::format::Region;
use crate::chunks::{Extent, for_each_chunk};

/// The caller asked to stop.
#[derive(Debug)]
pub(crate) struct Stop;

/// Reads regions from the disk, not from the page cache, and returns for each region its checksum, or why it cannot be
/// read. `watch` is called after each chunk with the number of bytes that were read.
pub(crate) fn checksums(
    file: &dyn RandomAccessFile,
    regions: &[Region],
    watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Vec<Result<Checksum, IoError>>, Stop> {
    if let (Some(first), Some(last)) = (regions.first(), regions.last()) {
        // Bytes that stay in the page cache would not be read from the disk.
        file.drop_cache(first.offset..last.offset.saturating_add(last.bytes));
    }
    let mut found: Vec<_> = regions.iter().map(|_| Ok(Checksum::of(&[]))).collect();
    let extents: Vec<_> = regions.iter().map(|r| Extent { file: 0, offset: r.offset, bytes: r.bytes }).collect();
    let mut hash = Xxh3::new();
    for_each_chunk(&[file], &extents, |chunk| {
        let region = &regions[chunk.extent];
        if chunk.offset == region.offset {
            hash.reset();
        }
        match chunk.outcome {
            Ok(bytes) => hash.update(bytes),
            Err(error) => found[chunk.extent] = Err(error),
        }
        if chunk.offset + chunk.bytes == region.offset + region.bytes && found[chunk.extent].is_ok() {
            found[chunk.extent] = Ok(Checksum(hash.digest128()));
        }
        match watch(chunk.bytes) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Stop),
        }
    })?;
    Ok(found)
}

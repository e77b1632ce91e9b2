//! Reading much, in order, while the bytes before it are being looked at.

use std::sync::mpsc;

use strata_io::{IoError, RandomAccessFile};

/// One read, in bytes.
pub(crate) const CHUNK_BYTES: u64 = 4 << 20;
/// Chunks that are read, wait, or are being looked at.
const CHUNKS: usize = 4;

/// Bytes of a file that are wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) file: usize,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// A piece of an extent.
pub(crate) struct Chunk<'a> {
    /// Which extent it belongs to.
    pub(crate) extent: usize,
    /// Where it lies in its file.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// What was read, or why it could not be.
    pub(crate) outcome: Result<&'a [u8], IoError>,
}

/// Reads all extents in order on a thread of its own and hands their chunks to `consume` on this one; an empty extent
/// has none. A chunk that cannot be read does not keep the next from being read. Cached pages are dropped behind. Ends
/// at the first error of `consume`.
pub(crate) fn for_each_chunk<E>(
    files: &[&dyn RandomAccessFile],
    extents: &[Extent],
    mut consume: impl FnMut(Chunk<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let (fill, filled) = mpsc::sync_channel(CHUNKS);
    let (give_back, free) = mpsc::channel();
    for _ in 0..CHUNKS {
        // The receiver is at hand.
        let _ = give_back.send(Vec::new());
    }
    // By value: at an early end, what the reader waits for must be gone before it is waited for.
    std::thread::scope(move |scope| {
        scope.spawn(move || {
            for (index, extent) in extents.iter().enumerate() {
                let mut done = 0;
                while done < extent.bytes {
                    let (offset, bytes) = (extent.offset + done, CHUNK_BYTES.min(extent.bytes - done));
                    // Whoever takes chunks has gone when none comes back.
                    let Ok(mut buffer): Result<Vec<u8>, _> = free.recv() else { return };
                    buffer.resize(bytes as usize, 0);
                    let file = files[extent.file];
                    let outcome = file.read_exact_at(&mut buffer, offset).map(|()| buffer);
                    file.drop_cache(offset..offset + bytes);
                    if fill.send((index, offset, bytes, outcome)).is_err() {
                        return;
                    }
                    done += bytes;
                }
            }
        });
        for (extent, offset, bytes, outcome) in filled {
            let (outcome, buffer) = match outcome {
                Ok(buffer) => (Ok(()), buffer),
                Err(error) => (Err(error), Vec::new()),
            };
            let outcome = outcome.map(|()| buffer.as_slice());
            consume(Chunk { extent, offset, bytes, outcome })?;
            // The reader may be done.
            let _ = give_back.send(buffer);
        }
        Ok(())
    })
}

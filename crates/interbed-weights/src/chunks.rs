//! Reads large parts of files in order while the caller processes what was read before.

use std::sync::mpsc;

use interbed_io::{IoError, RandomAccessFile};

/// Number of bytes of one read.
const CHUNK_BYTES: u64 = 4 << 20;
/// Number of threads that read: a disk is fastest with a few requests in flight, and a thread of buffered reads issues
/// one at a time.
const READERS: usize = 3;
/// Number of buffers per reading thread: each is being read into, waiting, or being processed.
const BUFFERS: usize = 2;

/// A range of bytes of a file that is to be read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) file: usize,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// A piece of an [`Extent`], the range of bytes that is to be read.
pub(crate) struct Chunk<'a> {
    /// Index of the extent that the piece belongs to.
    pub(crate) extent: usize,
    /// Offset of the piece in its file.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Bytes of the piece, or the error if it could not be read.
    pub(crate) outcome: Result<&'a [u8], IoError>,
}

/// Reads all extents on a few threads and hands their chunks to `consume` on the calling thread, in order; an empty
/// extent has no chunks. A chunk that cannot be read does not stop the next ones. Pages are dropped from the cache once
/// they are read. The function ends at the first error of `consume`.
pub(crate) fn for_each_chunk<E>(
    files: &[&dyn RandomAccessFile],
    extents: &[Extent],
    mut consume: impl FnMut(Chunk<'_>) -> Result<(), E>,
) -> Result<(), E> {
    std::thread::scope(|scope| {
        // Reader `r` of `n` reads chunks `r`, `r + n`, `r + 2n` and so on, so taking from the readers in turn gives the
        // chunks in order. This scope owns the channels that readers wait on: on an early return they are dropped
        // before the readers are joined, so no reader waits for ever.
        let mut readers = Vec::with_capacity(READERS);
        for first in 0..READERS {
            let (fill, filled) = mpsc::sync_channel(BUFFERS);
            let (give_back, free) = mpsc::channel();
            for _ in 0..BUFFERS {
                // This cannot fail: the receiver exists.
                let _ = give_back.send(Vec::new());
            }
            scope.spawn(move || {
                for place in pieces(extents).skip(first).step_by(READERS) {
                    // The channel is closed: the consumer has stopped.
                    let Ok(mut buffer): Result<Vec<u8>, _> = free.recv() else { return };
                    buffer.resize(place.bytes as usize, 0);
                    let file = files[extents[place.extent].file];
                    let outcome = file.read_exact_at(&mut buffer, place.offset).map(|()| buffer);
                    file.drop_cache(place.offset..place.offset + place.bytes);
                    if fill.send(outcome).is_err() {
                        return;
                    }
                }
            });
            readers.push((filled, give_back));
        }
        for (index, Piece { extent, offset, bytes }) in pieces(extents).enumerate() {
            let (filled, give_back) = &readers[index % READERS];
            // A reader stops early only if this function does.
            let Ok(outcome) = filled.recv() else { break };
            let (outcome, buffer) = match outcome {
                Ok(buffer) => (Ok(()), buffer),
                Err(error) => (Err(error), Vec::new()),
            };
            let outcome = outcome.map(|()| buffer.as_slice());
            consume(Chunk { extent, offset, bytes, outcome })?;
            // Fails if the reader is done, which is fine.
            let _ = give_back.send(buffer);
        }
        Ok(())
    })
}

/// A part of an extent, to be read as one chunk.
struct Piece {
    extent: usize,
    offset: u64,
    bytes: u64,
}

/// Returns the pieces of all extents, in order.
fn pieces(extents: &[Extent]) -> impl Iterator<Item = Piece> + '_ {
    extents.iter().enumerate().flat_map(|(index, extent)| {
        (0..extent.bytes.div_ceil(CHUNK_BYTES)).map(move |chunk| {
            let done = chunk * CHUNK_BYTES;
            Piece { extent: index, offset: extent.offset + done, bytes: CHUNK_BYTES.min(extent.bytes - done) }
        })
    })
}

//! Reading much, in order, while the bytes before it are being looked at.

use std::sync::mpsc;

use strata_io::{IoError, RandomAccessFile};

/// One read, in bytes.
const CHUNK_BYTES: u64 = 4 << 20;
/// Threads that read: a disk is at its best with a few requests at a time, and buffered reads of one thread make one.
const READERS: usize = 3;
/// Chunks of each of them, being read, waiting, or being looked at.
const BUFFERS: usize = 2;

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

/// Reads all extents on a few threads and hands their chunks to `consume` on this one, in order; an empty extent has
/// none. A chunk that cannot be read does not keep the next from being read. Cached pages are dropped behind. Ends at
/// the first error of `consume`.
pub(crate) fn for_each_chunk<E>(
    files: &[&dyn RandomAccessFile],
    extents: &[Extent],
    mut consume: impl FnMut(Chunk<'_>) -> Result<(), E>,
) -> Result<(), E> {
    std::thread::scope(|scope| {
        // Each reads every so-many-th chunk, so taking from one after the other gives them in order. All that readers
        // wait for is owned here: at an early end it is gone before they are waited for.
        let mut readers = Vec::with_capacity(READERS);
        for first in 0..READERS {
            let (fill, filled) = mpsc::sync_channel(BUFFERS);
            let (give_back, free) = mpsc::channel();
            for _ in 0..BUFFERS {
                // The receiver is at hand.
                let _ = give_back.send(Vec::new());
            }
            scope.spawn(move || {
                for place in pieces(extents).skip(first).step_by(READERS) {
                    // Whoever takes chunks has gone when none comes back.
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
            // A reader ends early only with this function.
            let Ok(outcome) = filled.recv() else { break };
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

/// A chunk of an extent.
struct Piece {
    extent: usize,
    offset: u64,
    bytes: u64,
}

/// All chunks, in order.
fn pieces(extents: &[Extent]) -> impl Iterator<Item = Piece> + '_ {
    extents.iter().enumerate().flat_map(|(index, extent)| {
        (0..extent.bytes.div_ceil(CHUNK_BYTES)).map(move |chunk| {
            let done = chunk * CHUNK_BYTES;
            Piece { extent: index, offset: extent.offset + done, bytes: CHUNK_BYTES.min(extent.bytes - done) }
        })
    })
}

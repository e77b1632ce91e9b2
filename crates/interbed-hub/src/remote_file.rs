//! Reads a file on the Hub at offsets, for headers.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use interbed_io::{IoError, RandomAccessFile};
use tokio::runtime::Runtime;

use crate::error::HubProblem;
use crate::source::FileSource;

/// The number of pieces that are kept. Headers are read in order, and hardly any part of them is read twice.
const PIECES: usize = 2;
/// Maximum number of bytes that are read beyond the requested ones.
const AHEAD_MAX: u64 = 8 << 20;

/// The bytes of the beginning of a file that are read. Readers of GGUF headers request as many at a time.
const BEGINNING_BYTES: u64 = 1 << 20;

/// A file that has not been downloaded. A read requests bytes from the server unless the file has just read them.
pub(crate) struct RemoteFile {
    source: FileSource,
    runtime: Arc<Runtime>,
    /// Path of the file in the cache, once it is downloaded.
    path: PathBuf,
    pieces: Mutex<VecDeque<Piece>>,
}

struct Piece {
    start: u64,
    bytes: Vec<u8>,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl RemoteFile {
    /// Opens the file of `source`, which will be downloaded to `path`.
    pub(crate) fn new(source: FileSource, runtime: Arc<Runtime>, path: PathBuf) -> Self {
        Self { source, runtime, path, pieces: Mutex::new(VecDeque::new()) }
    }

    /// Reads the header of a safetensors file, but not its weights. The read gets the header's length first, then as
    /// many bytes. Returns the number of bytes read.
    pub(crate) async fn read_safetensors_header(&self, header_max: u64) -> Result<u64, HubProblem> {
        let size = self.source.size;
        if size < 8 {
            // The parser refuses such a file.
            return Ok(0);
        }
        let mut bytes = self.source.read(0..8).await?;
        let length = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
        if length <= header_max.min(size - 8) && length > 0 {
            bytes.extend(self.source.read(8..8 + length).await?);
        }
        let read = bytes.len() as u64;
        self.keep(Piece { start: 0, bytes });
        Ok(read)
    }

    /// Reads the beginning of a file whose header does not say its length. Returns the number of bytes read.
    pub(crate) async fn read_beginning(&self) -> Result<u64, HubProblem> {
        let bytes = self.source.read(0..BEGINNING_BYTES.min(self.source.size)).await?;
        let read = bytes.len() as u64;
        self.keep(Piece { start: 0, bytes });
        Ok(read)
    }

    /// Returns the path of the file in the repository.
    pub(crate) fn path_there(&self) -> &str {
        &self.source.path
    }

    fn keep(&self, piece: Piece) {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.push_back(piece);
        while pieces.len() > PIECES {
            pieces.pop_front();
        }
    }

    /// Copies the bytes at `offset` if they were just read. Otherwise returns, as the error, the offset up to which to
    /// read.
    fn copy_kept(&self, buf: &mut [u8], offset: u64) -> Result<(), u64> {
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let end = offset + buf.len() as u64;
        for piece in pieces.iter() {
            if piece.start <= offset && end <= piece.end() {
                let at = (offset - piece.start) as usize;
                buf.copy_from_slice(&piece.bytes[at..at + buf.len()]);
                return Ok(());
            }
        }
        // A reader that continues at the end of the last read will probably go on, and each request takes a while, so
        // the next read is longer.
        let ahead = pieces.back().filter(|last| last.end() == offset).map_or(0, |last| last.bytes.len() as u64 * 2);
        Err(end.max(offset + ahead.min(AHEAD_MAX)).min(self.source.size))
    }
}

impl RandomAccessFile for RemoteFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> u64 {
        self.source.size
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), IoError> {
        let (wanted, len_at_open) = (buf.len(), self.source.size);
        if wanted == 0 {
            return Ok(());
        }
        if offset.checked_add(wanted as u64).is_none_or(|end| end > len_at_open) {
            let got = usize::try_from(len_at_open.saturating_sub(offset)).unwrap_or(0);
            return Err(IoError::Ended { path: self.path.clone(), offset, wanted, got, len_at_open });
        }
        let Err(end) = self.copy_kept(buf, offset) else { return Ok(()) };
        let bytes = self.runtime.block_on(self.source.read(offset..end)).map_err(|problem| {
            let source = io::Error::other(problem);
            IoError::Read { path: self.path.clone(), offset, wanted, got: 0, source }
        })?;
        buf.copy_from_slice(&bytes[..wanted]);
        self.keep(Piece { start: offset, bytes });
        Ok(())
    }
}

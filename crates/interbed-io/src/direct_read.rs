//! The interface for streaming weights: reads in whole blocks, past the page cache.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::progress::Progress;
use crate::{DIRECT_ALIGN, IoError};

/// A file or block device that several threads can read at the same time in whole blocks, if possible without the page
/// cache.
pub trait DirectRead: Send + Sync {
    /// Returns the file's path, for messages.
    fn path(&self) -> &Path;

    /// Returns the length of the file in bytes when it was opened.
    fn len(&self) -> u64;

    /// Returns whether the file was empty when it was opened.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills at least the first `needed` bytes of `buf` from `offset` on. `buf` starts on a [`DIRECT_ALIGN`] boundary,
    /// and its length and `offset` are multiples of `DIRECT_ALIGN`. `buf[needed..]` may stay unfilled only at the end
    /// of the file. Short reads and interruptions are continued here.
    ///
    /// # Errors
    /// Fails with [`IoError::Ended`] if the file ends before `needed` bytes were read, with [`IoError::Read`] if the
    /// system fails, and with [`IoError::BadRequest`] if the request is not aligned. `buf` is then partly written and
    /// must not be used.
    fn read_aligned_at(&self, buf: &mut [u8], offset: u64, needed: usize) -> Result<(), IoError>;

    /// Checks that the file is still the one that was opened, by its length, times and inode.
    ///
    /// # Errors
    /// Fails with [`IoError::Changed`] if the file has changed, and with [`IoError::Open`] if the file cannot be
    /// examined.
    fn check_unchanged(&self) -> Result<(), IoError>;

    /// Returns the descriptor for engines that call the kernel themselves; it is open for direct I/O. Returns `None` if
    /// engines must use [`read_aligned_at`](Self::read_aligned_at).
    fn direct_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Returns whether reads bypass the page cache.
    fn is_direct(&self) -> bool {
        self.direct_fd().is_some()
    }
}

/// A file that can also be written in whole blocks, such as swap space.
pub trait DirectWrite: DirectRead {
    /// Writes all of `buf` at `offset`. The length of `buf`, its address and `offset` are multiples of
    /// [`DIRECT_ALIGN`]. The file does not grow.
    ///
    /// # Errors
    /// Fails with [`IoError::Write`] if the system fails or the file is too short, and with [`IoError::BadRequest`] if
    /// the request is not aligned. The content of the range is unspecified after an error.
    fn write_aligned_at(&self, buf: &[u8], offset: u64) -> Result<(), IoError>;
}

/// Implements [`DirectRead::read_aligned_at`] by blocking reads of `file`, which had `len` bytes when it was opened.
pub(crate) fn read_blocks(
    file: &File,
    path: &Path,
    len: u64,
    buf: &mut [u8],
    offset: u64,
    needed: usize,
) -> Result<(), IoError> {
    check_request(path, buf, offset, needed)?;
    let mut progress = Progress::new(buf.len(), offset, needed, len);
    while let Some(from) = progress.next() {
        match file.read_at(&mut buf[from..], offset + from as u64) {
            Ok(count) => progress.advance(from, count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(progress.failed(path, error)),
        }
    }
    progress.finish(path, len)
}

/// Checks the arguments of [`DirectRead::read_aligned_at`].
pub(crate) fn check_request(path: &Path, buf: &[u8], offset: u64, needed: usize) -> Result<(), IoError> {
    let len = buf.len();
    let end = offset.checked_add(len as u64);
    let problem = if !buf.as_ptr().addr().is_multiple_of(DIRECT_ALIGN) {
        "the buffer does not start on a block"
    } else if !len.is_multiple_of(DIRECT_ALIGN) {
        "the length is not a number of blocks"
    } else if !offset.is_multiple_of(DIRECT_ALIGN as u64) {
        "the offset does not lie on a block"
    } else if needed > len {
        "more bytes are needed than the buffer holds"
    } else if end.is_none_or(|end| i64::try_from(end).is_err()) {
        "the end is beyond what a file can have"
    } else {
        return Ok(());
    };
    Err(IoError::BadRequest { path: path.to_owned(), offset, len, needed, problem })
}

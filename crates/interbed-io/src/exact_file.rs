//! A regular file or a block device, read through the page cache.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, OFlags, fadvise};

use crate::{FileIdentity, IoError, RandomAccessFile};

/// The number of bytes to whose multiples ranges are widened before their pages are dropped. It is no smaller than any
/// page size.
const CACHE_GRAIN: u64 = 64 << 10;

/// A regular file or a block device that is open for reading. Its length is determined once, when it is opened.
#[derive(Debug)]
pub struct ExactFile {
    file: File,
    path: PathBuf,
    identity: FileIdentity,
}

impl ExactFile {
    /// Opens a regular file or a block device and follows symbolic links. A Hugging Face cache consists of such links,
    /// and a block device may hold a packed store.
    ///
    /// # Errors
    /// Fails with [`IoError::Open`] if the file is missing or not permitted, and with [`IoError::NotRegular`] if the
    /// path leads to something else, such as a directory or a pipe.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, IoError> {
        let path = path.as_ref();
        let open_error = |source| IoError::Open { path: path.to_owned(), source };
        // Non-blocking, so that opening a pipe without a writer returns at once; regular files ignore the flag.
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(open_error)?;
        let metadata = file.metadata().map_err(open_error)?;
        if !metadata.is_file() && !metadata.file_type().is_block_device() {
            return Err(IoError::NotRegular { path: path.to_owned(), found: what_lies_there(&metadata) });
        }
        Self::of(file, path.to_owned()).map_err(open_error)
    }

    /// Wraps a file that is already open.
    pub(crate) fn of(file: File, path: PathBuf) -> io::Result<Self> {
        let identity = FileIdentity::of(&file, &file.metadata()?)?;
        Ok(Self { file, path, identity })
    }
}

impl RandomAccessFile for ExactFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> u64 {
        self.identity.len
    }

    fn identity(&self) -> Option<&FileIdentity> {
        Some(&self.identity)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), IoError> {
        let wanted = buf.len();
        let outcome = fill(buf, |part, done| {
            let at = offset.checked_add(done as u64).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
            self.file.read_at(part, at)
        });
        match outcome {
            Ok(got) if got == wanted => Ok(()),
            Ok(got) => Err(IoError::Ended { path: self.path.clone(), offset, wanted, got, len_at_open: self.len() }),
            Err((got, source)) => Err(IoError::Read { path: self.path.clone(), offset, wanted, got, source }),
        }
    }

    fn drop_cache(&self, range: Range<u64>) {
        let start = range.start / CACHE_GRAIN * CACHE_GRAIN;
        let Some(end) = range.end.checked_next_multiple_of(CACHE_GRAIN) else { return };
        if let Some(len) = NonZeroU64::new(end.saturating_sub(start)) {
            // Only advice: a file system that does not support it keeps the pages, without further effect.
            let _ = fadvise(&self.file, start, Some(len), Advice::DontNeed);
        }
    }
}

/// Names the kind of a file that is not regular, for an error.
pub(crate) fn what_lies_there(metadata: &Metadata) -> &'static str {
    match metadata.file_type() {
        t if t.is_dir() => "a directory",
        t if t.is_fifo() => "a pipe",
        t if t.is_socket() => "a socket",
        t if t.is_char_device() => "a character device",
        t if t.is_block_device() => "a block device",
        _ => "not a file",
    }
}

/// Calls `read(rest of buf, bytes so far)` until the buffer is full or the file ends. Returns the number of bytes read.
/// An error comes with the number of bytes read before it.
fn fill(
    buf: &mut [u8],
    mut read: impl FnMut(&mut [u8], usize) -> io::Result<usize>,
) -> Result<usize, (usize, io::Error)> {
    let mut done = 0;
    while done < buf.len() {
        match read(&mut buf[done..], done) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((done, error)),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One result of a faulty file, which is a number of bytes or an error.
    type Answer = Result<usize, io::ErrorKind>;

    fn fill_from(answers: &[Answer], len: usize) -> (Result<usize, (usize, io::ErrorKind)>, Vec<u8>) {
        let mut answers = answers.iter();
        let mut buf = vec![0; len];
        let outcome = fill(&mut buf, |part, done| match *answers.next().expect("asked more often than planned") {
            Ok(count) => {
                for (index, byte) in part[..count].iter_mut().enumerate() {
                    *byte = (done + index) as u8 + 1;
                }
                Ok(count)
            }
            Err(kind) => Err(kind.into()),
        });
        (outcome.map_err(|(done, error)| (done, error.kind())), buf)
    }

    #[test]
    fn short_reads_and_interruptions_are_continued() {
        use io::ErrorKind::{Interrupted, PermissionDenied};
        let (outcome, buf) = fill_from(&[Ok(2), Err(Interrupted), Ok(1), Ok(3)], 6);
        assert_eq!((outcome, buf.as_slice()), (Ok(6), &[1, 2, 3, 4, 5, 6][..]));
        assert_eq!(fill_from(&[Ok(2), Ok(0)], 6).0, Ok(2));
        assert_eq!(fill_from(&[Ok(4), Err(PermissionDenied)], 6).0, Err((4, PermissionDenied)));
        assert_eq!(fill_from(&[], 0).0, Ok(0));
    }
}

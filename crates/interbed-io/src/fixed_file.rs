//! A file of fixed length, read and written in whole blocks past the page cache.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, OFlags, fadvise, fcntl_getfl, fcntl_setfl};

use crate::direct_read::{check_request, read_blocks};
use crate::{AlignedBuffer, DIRECT_ALIGN, DirectRead, IoError};

/// A file whose users decide how its space is reserved and when its writes are synced. If the file system refuses
/// direct I/O, the pages of the page cache are dropped after each read.
#[derive(Debug)]
pub(crate) struct FixedFile {
    file: File,
    /// The path, for messages.
    path: PathBuf,
    len: u64,
    direct: bool,
}

impl FixedFile {
    /// Returns whether a file can have this length: a positive number of whole blocks.
    pub(crate) fn can_have(len: u64) -> bool {
        len > 0 && len.is_multiple_of(DIRECT_ALIGN as u64) && i64::try_from(len).is_ok()
    }

    /// Wraps a file of `len` bytes that is open for reading and writing, without direct I/O.
    pub(crate) fn new(file: File, path: PathBuf, len: u64) -> Self {
        Self { file, path, len, direct: false }
    }

    /// Allocates memory for one block, filled with zeros.
    pub(crate) fn block(&self) -> Result<AlignedBuffer, IoError> {
        let no_memory = || IoError::Open { path: self.path.clone(), source: io::ErrorKind::OutOfMemory.into() };
        AlignedBuffer::new_zeroed(DIRECT_ALIGN).ok_or_else(no_memory)
    }

    /// Turns direct I/O on if a `trial` with it succeeds.
    pub(crate) fn try_direct(&mut self, trial: impl FnOnce(&Self) -> Result<(), IoError>) -> Result<(), IoError> {
        self.direct = self.set_direct(true).is_ok();
        if self.direct && trial(self).is_err() {
            self.direct = false;
            self.set_direct(false).map_err(|source| IoError::Open { path: self.path.clone(), source })?;
        }
        Ok(())
    }

    fn set_direct(&self, direct: bool) -> io::Result<()> {
        let mut flags = fcntl_getfl(&self.file)?;
        flags.set(OFlags::DIRECT, direct);
        fcntl_setfl(&self.file, flags).map_err(io::Error::from)
    }

    /// Writes `buf` at `offset`, without syncing.
    pub(crate) fn write(&self, buf: &[u8], offset: u64) -> Result<(), IoError> {
        check_request(&self.path, buf, offset, buf.len())?;
        let fault = |source| IoError::Write { path: self.path.clone(), action: "write to", source };
        // Space was reserved for exactly `len` bytes.
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.len) {
            return Err(fault(io::ErrorKind::InvalidInput.into()));
        }
        self.file.write_all_at(buf, offset).map_err(fault)
    }

    /// Waits until everything written is on the disk. An error names this `action`.
    pub(crate) fn sync(&self, action: &'static str) -> Result<(), IoError> {
        self.file.sync_data().map_err(|source| IoError::Write { path: self.path.clone(), action, source })
    }

    /// Drops clean pages of this range from the page cache, unless direct I/O is on. Without a length, the range
    /// reaches to the end of the file.
    pub(crate) fn forget_pages(&self, offset: u64, len: Option<NonZeroU64>) {
        if !self.direct {
            // This is only advice: if it is not supported, the pages stay until the system needs the memory.
            let _ = fadvise(&self.file, offset, len, Advice::DontNeed);
        }
    }
}

impl DirectRead for FixedFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_aligned_at(&self, buf: &mut [u8], offset: u64, needed: usize) -> Result<(), IoError> {
        read_blocks(&self.file, &self.path, self.len, buf, offset, needed)?;
        self.forget_pages(offset, NonZeroU64::new(buf.len() as u64));
        Ok(())
    }

    /// Always returns `Ok`, because the users of the file know better whether others may change it.
    fn check_unchanged(&self) -> Result<(), IoError> {
        Ok(())
    }

    fn direct_fd(&self) -> Option<BorrowedFd<'_>> {
        self.direct.then(|| self.file.as_fd())
    }
}

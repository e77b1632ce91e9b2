//! Files and block devices that are read past the page cache.

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, OFlags, fadvise, fcntl_setfl};

use crate::direct_read::read_blocks;
use crate::exact_file::what_lies_there;
use crate::{AlignedBuffer, DIRECT_ALIGN, DirectRead, FileIdentity, IoError};

/// A regular file or block device opened for reading with `O_DIRECT`. If the file system refuses direct I/O, as tmpfs
/// and some overlay and network file systems do, reads go through the page cache. The pages that were read are then
/// dropped.
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    path: PathBuf,
    identity: FileIdentity,
    direct: bool,
}

impl DirectFile {
    /// Opens `path` and follows symbolic links. Reads the first block to find out whether direct I/O works.
    ///
    /// # Errors
    /// Fails with [`IoError::Open`] if the file is missing or not permitted. Fails with [`IoError::NotRegular`] if the
    /// path leads to neither a regular file nor a block device. Fails with [`IoError::Read`] if the first block cannot
    /// be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, IoError> {
        Self::open_with(path.as_ref(), OFlags::DIRECT)
    }

    /// Opens `path` without direct I/O. Each read goes through the page cache and then drops the pages that were read.
    ///
    /// # Errors
    /// Fails for the reasons for which [`open`](Self::open) fails.
    pub fn open_buffered(path: impl AsRef<Path>) -> Result<Self, IoError> {
        Self::open_with(path.as_ref(), OFlags::empty())
    }

    fn open_with(path: &Path, mode: OFlags) -> Result<Self, IoError> {
        let open_error = |source| IoError::Open { path: path.to_owned(), source };
        // Non-blocking, so that opening a pipe without a writer returns at once.
        let open = |mode: OFlags| {
            let flags = i32::try_from((mode | OFlags::NONBLOCK).bits()).unwrap_or(0);
            OpenOptions::new().read(true).custom_flags(flags).open(path)
        };
        let mut direct = mode.contains(OFlags::DIRECT);
        let file = match open(mode) {
            Err(error) if direct && error.kind() == io::ErrorKind::InvalidInput => {
                direct = false;
                open(OFlags::empty())
            }
            outcome => outcome,
        };
        let file = file.map_err(open_error)?;
        let metadata = file.metadata().map_err(open_error)?;
        if !metadata.is_file() && !metadata.file_type().is_block_device() {
            return Err(IoError::NotRegular { path: path.to_owned(), found: what_lies_there(&metadata) });
        }
        let identity = FileIdentity::of(&file, &metadata).map_err(open_error)?;
        let mut this = Self { file, path: path.to_owned(), identity, direct };
        // io_uring takes `O_NONBLOCK` literally and returns EAGAIN where it should wait, so the flag is cleared.
        this.set_direct(direct).map_err(open_error)?;
        this.settle_mode()?;
        Ok(this)
    }

    /// Returns the properties that the file had when it was opened.
    pub fn identity(&self) -> &FileIdentity {
        &self.identity
    }

    /// Chooses between direct and buffered reads by a trial: some file systems open a file for direct reads and refuse
    /// only the reads.
    fn settle_mode(&mut self) -> Result<(), IoError> {
        let out_of_memory = || IoError::Open { path: self.path.clone(), source: io::ErrorKind::OutOfMemory.into() };
        let mut block = AlignedBuffer::new_zeroed(DIRECT_ALIGN).ok_or_else(out_of_memory)?;
        match self.read_aligned_at(block.as_mut(), 0, 0) {
            Err(IoError::Read { source, .. }) if self.direct && source.kind() == io::ErrorKind::InvalidInput => {
                self.direct = false;
                self.set_direct(false).map_err(|source| IoError::Open { path: self.path.clone(), source })?;
                self.read_aligned_at(block.as_mut(), 0, 0)
            }
            outcome => outcome,
        }
    }

    /// Sets the file's status flags: `O_DIRECT` or none.
    fn set_direct(&self, direct: bool) -> io::Result<()> {
        let flags = if direct { OFlags::DIRECT } else { OFlags::empty() };
        fcntl_setfl(&self.file, flags).map_err(io::Error::from)
    }
}

impl DirectRead for DirectFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> u64 {
        self.identity.len
    }

    fn read_aligned_at(&self, buf: &mut [u8], offset: u64, needed: usize) -> Result<(), IoError> {
        read_blocks(&self.file, &self.path, self.identity.len, buf, offset, needed)?;
        if !self.direct {
            // Only advice: a file system that does not support it keeps the pages, without further effect.
            let _ = fadvise(&self.file, offset, NonZeroU64::new(buf.len() as u64), Advice::DontNeed);
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<(), IoError> {
        let open_error = |source| IoError::Open { path: self.path.clone(), source };
        let metadata = self.file.metadata().map_err(open_error)?;
        let mut now = FileIdentity::of(&self.file, &metadata).map_err(open_error)?;
        // A removed name is harmless, as the bytes stay while the file is open. Another file under the name means that
        // the user wants other weights than these.
        match std::fs::metadata(&self.path) {
            Ok(named) => now.inode = FileIdentity::inode_of(&named),
            Err(_) => now = now.without_name(&self.identity),
        }
        match self.identity.change_to(&now) {
            Some(change) => Err(IoError::Changed { path: self.path.clone(), change }),
            None => Ok(()),
        }
    }

    fn direct_fd(&self) -> Option<BorrowedFd<'_>> {
        self.direct.then(|| self.file.as_fd())
    }
}

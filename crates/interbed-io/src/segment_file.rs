//! A named file of fixed length, written and read in whole blocks past the page cache.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::direct_read::{check_request, read_blocks};
use crate::{AlignedBuffer, DIRECT_ALIGN, DirectRead, DirectWrite, IoError, PrivateFolder};

/// A file that stores a segment of a KV store; in tests, memory that fails on demand.
pub trait SegmentWrite: DirectWrite {
    /// Waits until everything written is on the disk.
    ///
    /// # Errors
    /// [`IoError::Write`]; everything written since the last success may be lost then.
    fn sync(&self) -> Result<(), IoError>;
}

/// A file that only its owner may read or write, whose disk space is allocated when it is created. If the file system
/// refuses direct I/O, the pages of the page cache are dropped after each read and each sync.
#[derive(Debug)]
pub struct SegmentFile {
    file: File,
    path: PathBuf,
    len: u64,
    direct: bool,
}

impl SegmentFile {
    /// Opens the file `name` in `folder`, and creates it or changes its length to `len` bytes if need be.
    ///
    /// # Errors
    /// [`IoError::BadRequest`] if `len` is no multiple of [`DIRECT_ALIGN`], those of [`PrivateFolder::open_file`],
    /// [`IoError::Write`] if the disk has no room.
    pub fn create(folder: &PrivateFolder, name: &str, len: u64) -> Result<Self, IoError> {
        let path = folder.path().join(name);
        if len == 0 || !len.is_multiple_of(DIRECT_ALIGN as u64) || i64::try_from(len).is_err() {
            let problem = "the length is not a number of blocks";
            return Err(IoError::BadRequest { path, offset: 0, len: 0, needed: 0, problem });
        }
        let file = folder.open_or_create(name)?;
        let fault = |action| {
            let path = path.clone();
            move |source| IoError::Write { path, action, source }
        };
        let before = file.metadata().map_err(fault("examine"))?.len();
        if before > len {
            file.set_len(len).map_err(fault("resize"))?;
        }
        match fallocate(&file, FallocateFlags::empty(), 0, len) {
            Ok(()) => {}
            // If the file system does not support this, a later write may find the disk full, and fail.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(len).map_err(fault("resize"))?,
            Err(errno) => {
                // A file that did not exist before is not left behind incomplete.
                if before == 0 {
                    let _ = folder.remove(name);
                }
                return Err(fault("reserve room for")(errno.into()));
            }
        }
        Self::settle(file, path, len)
    }

    /// Opens an existing file in `folder`.
    ///
    /// # Errors
    /// [`IoError::Open`] if it does not exist, and those of [`PrivateFolder::open_file`].
    pub fn open(folder: &PrivateFolder, name: &str) -> Result<Self, IoError> {
        let path = folder.path().join(name);
        let Some(file) = folder.open_file(name)? else {
            return Err(IoError::Open { path, source: io::ErrorKind::NotFound.into() });
        };
        let len = file.metadata().map_err(|source| IoError::Open { path: path.clone(), source })?.len();
        Self::settle(file, path, len / DIRECT_ALIGN as u64 * DIRECT_ALIGN as u64)
    }

    /// Turns direct I/O on if a trial read of a block succeeds.
    fn settle(file: File, path: PathBuf, len: u64) -> Result<Self, IoError> {
        let mut this = Self { file, path, len, direct: false };
        this.direct = this.set_direct(true).is_ok();
        if this.direct && len > 0 {
            let no_memory = || IoError::Open { path: this.path.clone(), source: io::ErrorKind::OutOfMemory.into() };
            let mut block = AlignedBuffer::new_zeroed(DIRECT_ALIGN).ok_or_else(no_memory)?;
            if this.read_aligned_at(block.as_mut(), 0, DIRECT_ALIGN).is_err() {
                this.direct = false;
                this.set_direct(false).map_err(|source| IoError::Open { path: this.path.clone(), source })?;
            }
        }
        Ok(this)
    }

    fn set_direct(&self, direct: bool) -> io::Result<()> {
        let mut flags = fcntl_getfl(&self.file)?;
        flags.set(OFlags::DIRECT, direct);
        fcntl_setfl(&self.file, flags).map_err(io::Error::from)
    }

    fn forget_pages(&self, offset: u64, len: Option<NonZeroU64>) {
        if !self.direct {
            // This is only advice: if it is not supported, the pages stay until the system needs the memory.
            let _ = fadvise(&self.file, offset, len, Advice::DontNeed);
        }
    }
}

impl DirectRead for SegmentFile {
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

    /// Always returns `Ok`, as readers of a segment verify its content.
    fn check_unchanged(&self) -> Result<(), IoError> {
        Ok(())
    }

    fn direct_fd(&self) -> Option<BorrowedFd<'_>> {
        self.direct.then(|| self.file.as_fd())
    }
}

impl DirectWrite for SegmentFile {
    fn write_aligned_at(&self, buf: &[u8], offset: u64) -> Result<(), IoError> {
        check_request(&self.path, buf, offset, buf.len())?;
        let fault = |source| IoError::Write { path: self.path.clone(), action: "write to", source };
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.len) {
            return Err(fault(io::ErrorKind::InvalidInput.into()));
        }
        self.file.write_all_at(buf, offset).map_err(fault)
    }
}

impl SegmentWrite for SegmentFile {
    fn sync(&self) -> Result<(), IoError> {
        let fault = |source| IoError::Write { path: self.path.clone(), action: "sync", source };
        self.file.sync_data().map_err(fault)?;
        self.forget_pages(0, None);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_written_is_there_when_the_file_is_opened_again() {
        let parent = tempfile::tempdir().unwrap();
        let folder = PrivateFolder::open(parent.path()).unwrap();
        let mut block = AlignedBuffer::new_zeroed(DIRECT_ALIGN).unwrap();
        {
            let file = SegmentFile::create(&folder, "segment", 4 * DIRECT_ALIGN as u64).unwrap();
            block.as_mut().fill(7);
            file.write_aligned_at(block.as_slice(), 2 * DIRECT_ALIGN as u64).unwrap();
            file.sync().unwrap();
            assert!(file.write_aligned_at(block.as_slice(), 4 * DIRECT_ALIGN as u64).is_err());
        }
        assert_eq!(std::fs::metadata(parent.path().join("segment")).unwrap().permissions().mode() & 0o777, 0o600);
        let again = SegmentFile::create(&folder, "segment", 4 * DIRECT_ALIGN as u64).unwrap();
        block.as_mut().fill(0);
        again.read_aligned_at(block.as_mut(), 2 * DIRECT_ALIGN as u64, DIRECT_ALIGN).unwrap();
        assert!(block.as_slice().iter().all(|&byte| byte == 7));
        assert_eq!(SegmentFile::open(&folder, "segment").unwrap().len(), 4 * DIRECT_ALIGN as u64);
        assert!(SegmentFile::open(&folder, "other").is_err());
    }

    #[test]
    fn links_and_directories_are_refused() {
        let parent = tempfile::tempdir().unwrap();
        let folder = PrivateFolder::open(parent.path()).unwrap();
        std::fs::write(parent.path().join("mine"), b"mine").unwrap();
        std::os::unix::fs::symlink(parent.path().join("mine"), parent.path().join("link")).unwrap();
        std::fs::create_dir(parent.path().join("folder")).unwrap();
        assert!(SegmentFile::create(&folder, "link", DIRECT_ALIGN as u64).is_err());
        assert!(SegmentFile::open(&folder, "folder").is_err());
        assert!(SegmentFile::create(&folder, "odd", 5).is_err());
        assert_eq!(std::fs::read(parent.path().join("mine")).unwrap(), b"mine");
    }
}

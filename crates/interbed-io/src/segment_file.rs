//! A named file of fixed length, written and read in whole blocks past the page cache.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::fixed_file::FixedFile;
use crate::{DIRECT_ALIGN, DirectRead, DirectWrite, IoError, PrivateFolder};

/// A file that stores a segment of a KV store. Tests implement it in memory.
pub trait SegmentWrite: DirectWrite {
    /// Waits until everything written is on the disk.
    ///
    /// # Errors
    /// Fails with [`IoError::Write`] if the system fails. Everything written since the last success may then be lost.
    fn sync(&self) -> Result<(), IoError>;
}

/// A file of fixed length that only its owner may read or write. [`create`](Self::create) allocates its disk space. If
/// the file system refuses direct I/O, each read and each sync drops the file's pages from the page cache.
#[derive(Debug)]
pub struct SegmentFile {
    file: FixedFile,
}

impl SegmentFile {
    /// Opens the file `name` in `folder` and sets its length to `len` bytes. Creates the file if it does not exist.
    ///
    /// # Errors
    /// Fails with [`IoError::BadRequest`] if `len` is not a positive multiple of [`DIRECT_ALIGN`], and with
    /// [`IoError::Write`] if the disk has too little free space. Also fails for the reasons for which
    /// [`PrivateFolder::open_file`] fails.
    pub fn create(folder: &PrivateFolder, name: &str, len: u64) -> Result<Self, IoError> {
        let path = folder.path().join(name);
        if !FixedFile::can_have(len) {
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
    /// Fails with [`IoError::Open`] if the file does not exist. Also fails for the reasons for which
    /// [`PrivateFolder::open_file`] fails.
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
        let mut file = FixedFile::new(file, path, len);
        let mut block = file.block()?;
        let trial = |file: &FixedFile| match len {
            0 => Ok(()),
            _ => file.read_aligned_at(block.as_mut(), 0, DIRECT_ALIGN),
        };
        file.try_direct(trial)?;
        Ok(Self { file })
    }
}

impl DirectRead for SegmentFile {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_aligned_at(&self, buf: &mut [u8], offset: u64, needed: usize) -> Result<(), IoError> {
        self.file.read_aligned_at(buf, offset, needed)
    }

    /// Always returns `Ok`, because readers of a segment verify its content.
    fn check_unchanged(&self) -> Result<(), IoError> {
        Ok(())
    }

    fn direct_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.direct_fd()
    }
}

impl DirectWrite for SegmentFile {
    fn write_aligned_at(&self, buf: &[u8], offset: u64) -> Result<(), IoError> {
        self.file.write(buf, offset)
    }
}

impl SegmentWrite for SegmentFile {
    fn sync(&self) -> Result<(), IoError> {
        self.file.sync("sync")?;
        self.file.forget_pages(0, None);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::AlignedBuffer;

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

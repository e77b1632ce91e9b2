//! Space on a disk for data that does not fit into memory. The space exists for the lifetime of the process.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags, fallocate, statfs};
use rustix::io::Errno;
use thiserror::Error;

use crate::fixed_file::FixedFile;
use crate::{DIRECT_ALIGN, DirectRead, DirectWrite, IoError, disk_bytes_free};

/// The `statfs` types of file systems that keep files in memory: tmpfs and ramfs.
const MEMORY_FILE_SYSTEMS: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// The number of names that are tried on file systems without unnamed files.
const NAMES_MAX: u32 = 100;

/// The reason why swap space could not be created.
#[derive(Debug, Error)]
pub enum SwapFileError {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The directory is on a file system that stores files in memory, so swapping to it would free no memory.
    #[error("{} lies in memory, so swapping to it frees none; name a directory on a disk", directory.display())]
    InMemory {
        /// Path of the directory.
        directory: PathBuf,
    },
    /// The disk has too little free space.
    #[error(
        "{} has room for {free} bytes, but swap space of {wanted} was asked for; free {} bytes, or ask for less",
        directory.display(), wanted.saturating_sub(*free)
    )]
    NoRoom {
        /// Path of the directory.
        directory: PathBuf,
        /// Number of bytes requested.
        wanted: u64,
        /// Number of bytes that an ordinary user can still write to the directory.
        free: u64,
    },
    /// The size is not a positive number of whole blocks.
    #[error("swap space of {wanted} bytes cannot be; ask for a positive number of blocks of {DIRECT_ALIGN} bytes")]
    BadSize {
        /// Number of bytes requested.
        wanted: u64,
    },
}

/// An unnamed file that only this process can access. Its disk space is allocated when it is created, and freed when
/// the value is dropped or the process ends. If the file system refuses direct I/O, each write is synced and its pages
/// are dropped from the page cache.
#[derive(Debug)]
pub struct SwapFile {
    file: FixedFile,
}

impl SwapFile {
    /// Creates a swap file of `len` bytes on the file system of `directory`. `len` must be a positive multiple of
    /// [`DIRECT_ALIGN`].
    ///
    /// # Errors
    /// Fails for one of the reasons in [`SwapFileError`]. Nothing is left on the disk after an error.
    pub fn create(directory: impl AsRef<Path>, len: u64) -> Result<Self, SwapFileError> {
        let directory = directory.as_ref();
        if !FixedFile::can_have(len) {
            return Err(SwapFileError::BadSize { wanted: len });
        }
        if is_in_memory(directory)? {
            return Err(SwapFileError::InMemory { directory: directory.to_owned() });
        }
        // The file has no name on disk; error messages show this one.
        let path = directory.join("(swap)");
        let fault = |action| {
            let path = path.clone();
            move |source| IoError::Write { path, action, source }
        };
        let file = nameless(directory).map_err(fault("create"))?;
        // Free space is checked first, as a file system that cannot reserve space, or reserves it step by step, would
        // report a full disk late.
        let no_room = |free| SwapFileError::NoRoom { directory: directory.to_owned(), wanted: len, free };
        let free = disk_bytes_free(directory)?;
        if free < len {
            return Err(no_room(free));
        }
        match fallocate(&file, FallocateFlags::empty(), 0, len) {
            Ok(()) => {}
            // Not all file systems support this; on those that do not, a later write may still find the disk full, and
            // fail.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(len).map_err(fault("resize"))?,
            Err(Errno::NOSPC | Errno::DQUOT) => return Err(no_room(free)),
            Err(errno) => return Err(fault("reserve room for")(errno.into()).into()),
        }
        Ok(Self::settle(FixedFile::new(file, path.clone(), len))?)
    }

    /// Returns whether the file system of `directory` stores files in memory.
    ///
    /// # Errors
    /// Fails with [`IoError::Open`] if the directory is missing or the system call fails.
    pub fn is_in_memory(directory: impl AsRef<Path>) -> Result<bool, IoError> {
        is_in_memory(directory.as_ref())
    }

    /// Turns direct I/O on if a block can be written and read with it. Otherwise checks that a block can be written and
    /// read without it.
    fn settle(mut file: FixedFile) -> Result<Self, IoError> {
        let mut block = file.block()?;
        file.try_direct(|file| {
            file.write(block.as_slice(), 0)?;
            file.read_aligned_at(block.as_mut(), 0, DIRECT_ALIGN)
        })?;
        let this = Self { file };
        if !this.is_direct() {
            this.write_aligned_at(block.as_slice(), 0)?;
            this.read_aligned_at(block.as_mut(), 0, DIRECT_ALIGN)?;
        }
        Ok(this)
    }
}

impl DirectRead for SwapFile {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_aligned_at(&self, buf: &mut [u8], offset: u64, needed: usize) -> Result<(), IoError> {
        self.file.read_aligned_at(buf, offset, needed)
    }

    /// Always returns `Ok`, because no other process can reach the file.
    fn check_unchanged(&self) -> Result<(), IoError> {
        Ok(())
    }

    fn direct_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.direct_fd()
    }
}

impl DirectWrite for SwapFile {
    fn write_aligned_at(&self, buf: &[u8], offset: u64) -> Result<(), IoError> {
        self.file.write(buf, offset)?;
        if !self.is_direct() {
            // Only clean pages can be dropped.
            self.file.sync("write to")?;
            self.file.forget_pages(offset, NonZeroU64::new(buf.len() as u64));
        }
        Ok(())
    }
}

fn is_in_memory(directory: &Path) -> Result<bool, IoError> {
    let stat = statfs(directory)
        .map_err(|errno| IoError::Open { path: directory.to_owned(), source: io::Error::from(errno) })?;
    // The field's type differs between architectures.
    Ok(MEMORY_FILE_SYSTEMS.contains(&(stat.f_type as i64)))
}

/// Opens a file in `directory` without a name, or whose name is removed at once.
fn nameless(directory: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let flags = |flags: OFlags| i32::try_from(flags.bits()).unwrap_or(0);
    match options.clone().custom_flags(flags(OFlags::TMPFILE)).open(directory) {
        // These are the errors of file systems without unnamed files, and of kernels that do not know them.
        Err(error) if refuses_nameless(&error) => {}
        outcome => return outcome,
    }
    named_for_a_moment(directory, options.custom_flags(flags(OFlags::NOFOLLOW)).create_new(true))
}

/// Opens a file whose name is removed once it is open. `options` must never open an existing file.
fn named_for_a_moment(directory: &Path, options: &OpenOptions) -> io::Result<File> {
    let mut outcome = Err(io::ErrorKind::AlreadyExists.into());
    for number in 0..NAMES_MAX {
        let mut name = OsString::from(".interbed-swap-");
        name.push(format!("{}-{number}", std::process::id()));
        let path = directory.join(name);
        outcome = options.open(&path);
        match &outcome {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(_) => break,
            Ok(_) => {
                std::fs::remove_file(&path)?;
                break;
            }
        }
    }
    outcome
}

fn refuses_nameless(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    [Errno::OPNOTSUPP, Errno::ISDIR, Errno::INVAL].iter().any(|refusal| errno == Some(refusal.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_name_is_there_for_a_moment_only_and_nobodys_file_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        // An earlier process with the same process id may have left such a file.
        let taken = dir.path().join(format!(".interbed-swap-{}-0", std::process::id()));
        std::fs::write(&taken, b"mine").unwrap();
        let mut options = OpenOptions::new();
        let file = named_for_a_moment(dir.path(), options.read(true).write(true).create_new(true)).unwrap();
        file.write_all_at(b"theirs", 0).unwrap();
        assert_eq!(std::fs::read(&taken).unwrap(), b"mine");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

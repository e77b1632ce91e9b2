//! The destination of a large file that is written over hours. The destination is a file with a temporary name until it
//! is complete, or a raw block device.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;
use thiserror::Error;

use crate::{ExactFile, IoError, block_device_bytes, disk_bytes_free};

/// The reason why a target cannot be written to.
#[derive(Debug, Error)]
pub enum TargetError {
    /// A read, a write or a related system call failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The path leads to a directory, a pipe or another unsuitable file.
    #[error("{} is {found}; name a new file or a block device", path.display())]
    Unsuitable {
        /// The given path.
        path: PathBuf,
        /// Kind of file that the path leads to, in words.
        found: &'static str,
    },
    /// The device is mounted, is used as swap, or is held by another program or volume.
    #[error("{} is in use: it is mounted, or held by another program; unmount it first", path.display())]
    InUse {
        /// Path of the device.
        path: PathBuf,
    },
    /// Another process is writing to the same target.
    #[error("{} is being written by another process; wait for it, or end it", path.display())]
    Busy {
        /// Path of the temporary file, or of the device.
        path: PathBuf,
    },
    /// The target has too little space.
    #[error(
        "{} needs {wanted} bytes, but there is room for {available}; {} bytes are missing",
        path.display(), wanted.saturating_sub(*available)
    )]
    NoRoom {
        /// Path of the file or the device.
        path: PathBuf,
        /// Number of bytes needed in all.
        wanted: u64,
        /// Number of bytes that fit, including those already written.
        available: u64,
    },
}

/// A large file or a block device that is written in pieces at any offset. Until [`commit`](Self::commit), a regular
/// file has the temporary name `.NAME.partial` in the same directory. If the target is dropped before the commit, the
/// temporary file stays, so that a later process can [`open`](Self::open) it and continue. Only one process can hold a
/// target at a time.
#[derive(Debug)]
pub struct WriteTarget {
    file: File,
    /// The final path.
    path: PathBuf,
    /// The temporary path; `None` for a device.
    temporary: Option<PathBuf>,
}

impl WriteTarget {
    /// Opens a target for writing. If `path` is a block device, opens the device. Otherwise opens the temporary file
    /// that an earlier process left for `path`, or creates a new one. An existing file at `path` is not changed before
    /// [`commit`](Self::commit).
    ///
    /// # Errors
    /// Fails with [`TargetError::InUse`] if a device is in use, with [`TargetError::Busy`] if another process writes to
    /// the target, and with [`TargetError::Unsuitable`] if the path leads to an unsuitable file. Fails with
    /// [`TargetError::Io`] if a system call fails.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TargetError> {
        let path = path.as_ref().to_owned();
        let fault = |source| IoError::Write { path: path.clone(), action: "open", source };
        let found = match std::fs::metadata(&path) {
            Ok(metadata) if metadata.file_type().is_block_device() => return Self::open_device(path),
            Ok(metadata) if metadata.is_dir() => Some("a directory"),
            Ok(metadata) if metadata.is_file() => None,
            Ok(_) => Some("neither a file nor a block device"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(fault(error).into()),
        };
        if let Some(found) = found {
            return Err(TargetError::Unsuitable { path, found });
        }
        let name = path.file_name().ok_or_else(|| fault(io::ErrorKind::InvalidInput.into()))?;
        let mut temporary_name = OsString::from(".");
        temporary_name.push(name);
        temporary_name.push(".partial");
        let temporary = path.with_file_name(temporary_name);
        // A symbolic link under this name, which somebody else may have created, is not followed.
        let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or(0);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).custom_flags(flags);
        loop {
            let file = options.open(&temporary).map_err(fault)?;
            let metadata = file.metadata().map_err(fault)?;
            if !metadata.is_file() {
                return Err(TargetError::Unsuitable { path: temporary, found: "no regular file" });
            }
            lock(&file, &temporary)?;
            // Between opening and locking, the process that had the lock may have finished: then this is the file under
            // its final name, which must not be written to.
            let named = std::fs::symlink_metadata(&temporary);
            if named.is_ok_and(|named| (named.dev(), named.ino()) == (metadata.dev(), metadata.ino())) {
                return Ok(Self { file, path, temporary: Some(temporary) });
            }
        }
    }

    fn open_device(path: PathBuf) -> Result<Self, TargetError> {
        // For a block device, this flag requests exclusive use: file systems, swap and volumes hold it the same way.
        let flags = i32::try_from(OFlags::EXCL.bits()).unwrap_or(0);
        match OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path) {
            Ok(file) => {
                lock(&file, &path)?;
                Ok(Self { file, path, temporary: None })
            }
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Err(TargetError::InUse { path }),
            Err(source) => Err(IoError::Write { path, action: "open", source }.into()),
        }
    }

    /// Returns the final path of the file, or the path of the device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the temporary file; `None` for a device.
    pub fn temporary(&self) -> Option<&Path> {
        self.temporary.as_deref()
    }

    /// Returns whether the target is a block device.
    pub fn is_device(&self) -> bool {
        self.temporary.is_none()
    }

    /// Sets the length of a file to `bytes` bytes and allocates its disk space, so that later writes do not find the
    /// disk full. Added bytes are zero. For a device, only checks that its size is at least `bytes` bytes.
    ///
    /// # Errors
    /// Fails with [`TargetError::NoRoom`] if the target has too little space, and with [`TargetError::Io`] if a system
    /// call fails.
    pub fn reserve(&self, bytes: u64) -> Result<(), TargetError> {
        let no_room = |available| TargetError::NoRoom { path: self.path.clone(), wanted: bytes, available };
        if self.is_device() {
            let available = block_device_bytes(&self.file).map_err(|source| self.fault("examine", source))?;
            return if available < bytes { Err(no_room(available)) } else { Ok(()) };
        }
        self.file.set_len(bytes).map_err(|source| self.fault("resize", source))?;
        let metadata = self.file.metadata().map_err(|source| self.fault("examine", source))?;
        // The unit is 512 bytes, whatever the file system's block size.
        let held = metadata.blocks().saturating_mul(512);
        let free = disk_bytes_free(self.directory())?;
        if held.saturating_add(free) < bytes {
            return Err(no_room(held.saturating_add(free)));
        }
        match fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
            // Not all file systems support this; on those that do not, a write may still find the disk full.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(Errno::NOSPC) => Err(no_room(held.saturating_add(free))),
            Err(errno) => Err(self.fault("reserve room for", errno.into()).into()),
        }
    }

    /// Truncates a file to length 0. Does nothing to a device.
    ///
    /// # Errors
    /// Fails with [`IoError::Write`] if a system call fails.
    pub fn clear(&self) -> Result<(), IoError> {
        match self.is_device() {
            true => Ok(()),
            false => self.file.set_len(0).map_err(|source| self.fault("resize", source)),
        }
    }

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// Fails with [`IoError::Write`] if the system fails, for instance because the disk is full.
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<(), IoError> {
        self.file.write_all_at(bytes, offset).map_err(|source| self.fault("write", source))
    }

    /// Waits until all written data is on the disk.
    ///
    /// # Errors
    /// Fails with [`IoError::Write`] if a system call fails.
    pub fn sync(&self) -> Result<(), IoError> {
        self.file.sync_data().map_err(|source| self.fault("sync", source))
    }

    /// Opens the target for reading, with its current length.
    ///
    /// # Errors
    /// Fails with [`IoError::Open`] if a system call fails.
    pub fn reader(&self) -> Result<ExactFile, IoError> {
        let path = self.temporary.as_ref().unwrap_or(&self.path);
        let fault = |source| IoError::Open { path: path.clone(), source };
        let file = self.file.try_clone().map_err(fault)?;
        ExactFile::of(file, path.clone()).map_err(fault)
    }

    /// Syncs the file, renames it to its final name, and syncs the directory, so that the new name survives a crash. A
    /// device is only synced.
    ///
    /// # Errors
    /// Fails with [`IoError::Write`] if a system call fails. If the rename has not happened by then, the file keeps its
    /// temporary name.
    pub fn commit(self) -> Result<(), IoError> {
        self.file.sync_all().map_err(|source| self.fault("sync", source))?;
        let Some(temporary) = &self.temporary else { return Ok(()) };
        std::fs::rename(temporary, &self.path).map_err(|source| self.fault("rename", source))?;
        File::open(self.directory()).and_then(|handle| handle.sync_all()).map_err(|source| self.fault("sync", source))
    }

    /// Removes the temporary file. Does nothing to a device.
    ///
    /// # Errors
    /// Fails with [`IoError::Write`] if a system call fails.
    pub fn discard(self) -> Result<(), IoError> {
        match &self.temporary {
            Some(temporary) => std::fs::remove_file(temporary).map_err(|source| self.fault("remove", source)),
            None => Ok(()),
        }
    }

    fn directory(&self) -> &Path {
        match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    fn fault(&self, action: &'static str, source: io::Error) -> IoError {
        IoError::Write { path: self.path.clone(), action, source }
    }
}

/// Locks the file until it is closed, or until the process ends at the latest.
fn lock(file: &File, path: &Path) -> Result<(), TargetError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(TargetError::Busy { path: path.to_owned() }),
        // Some network file systems have no locks; there, users have to avoid two writers themselves.
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        Err(TryLockError::Error(source)) => {
            Err(IoError::Write { path: path.to_owned(), action: "lock", source }.into())
        }
    }
}

//! Files that appear whole or not at all.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::IoError;

/// The counter that makes the names of one process's temporary files unique.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A file that appears under its final name only when it is complete. Bytes are written to a temporary file in the same
/// directory. [`commit`](Self::commit) syncs and renames this file. If the writer is dropped without a commit, the
/// temporary file is removed.
#[derive(Debug)]
pub struct AtomicWriter {
    file: File,
    path: PathBuf,
    temporary: PathBuf,
    committed: bool,
}

impl AtomicWriter {
    /// Creates the temporary file for `path`. An existing file at `path` is not changed before
    /// [`commit`](Self::commit).
    ///
    /// # Errors
    /// Fails with [`IoError::Write`] if the directory is missing, full or not writable.
    pub fn create(path: impl AsRef<Path>) -> Result<Self, IoError> {
        let path = path.as_ref().to_owned();
        let fault = |source| IoError::Write { path: path.clone(), action: "create", source };
        let name = path.file_name().ok_or_else(|| fault(io::ErrorKind::InvalidInput.into()))?;
        let mut temporary_name = std::ffi::OsString::from(".");
        temporary_name.push(name);
        // Containers that share a folder may have the same process numbers, and what one that was killed has left must
        // not be in the way.
        let unique = RandomState::new().hash_one(NEXT.fetch_add(1, Ordering::Relaxed));
        temporary_name.push(format!(".{}-{unique:016x}.partial", std::process::id()));
        let temporary = path.with_file_name(temporary_name);
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary).map_err(fault)?;
        Ok(Self { file, path, temporary, committed: false })
    }

    /// Returns the final path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// Fails with [`IoError::Write`] if the system fails, for instance because the disk is full.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), IoError> {
        self.file.write_all(bytes).map_err(|source| self.fault("write", source))
    }

    /// Syncs the file to disk, renames it, and syncs the directory, so that the new name survives a crash.
    ///
    /// # Errors
    /// Fails with [`IoError::Write`] if a system call fails. If the rename has not happened by then, the temporary file
    /// is removed.
    pub fn commit(mut self) -> Result<(), IoError> {
        self.file.sync_all().map_err(|source| self.fault("sync", source))?;
        std::fs::rename(&self.temporary, &self.path).map_err(|source| self.fault("rename", source))?;
        self.committed = true;
        let directory = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        File::open(directory).and_then(|handle| handle.sync_all()).map_err(|source| self.fault("sync", source))
    }

    fn fault(&self, action: &'static str, source: io::Error) -> IoError {
        IoError::Write { path: self.path.clone(), action, source }
    }
}

impl Drop for AtomicWriter {
    fn drop(&mut self) {
        if !self.committed {
            // There is no one to report an error to; if the file is already gone, all is well.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

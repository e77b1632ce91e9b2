//! The directory of a store: its secret, its lock, and a file for each segment.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use interbed_io::{IoError, SegmentFile, SegmentWrite};
use thiserror::Error;

/// Where segments are kept.
pub trait SegmentSpace: Send + Sync {
    /// The numbers of the segments that are there, in no order.
    ///
    /// # Errors
    /// The system's.
    fn existing(&self) -> Result<Vec<u32>, IoError>;

    /// Opens a segment that is there.
    ///
    /// # Errors
    /// When there is none, or it cannot be opened.
    fn open(&self, segment: u32) -> Result<Arc<dyn SegmentWrite>, IoError>;

    /// Opens a segment of `len` bytes, which is created if need be.
    ///
    /// # Errors
    /// When the disk has no room.
    fn create(&self, segment: u32, len: u64) -> Result<Arc<dyn SegmentWrite>, IoError>;

    /// Removes a segment.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self, segment: u32) -> Result<(), IoError>;

    /// Takes away the index that an earlier process has left, if there is one.
    fn take_index(&self) -> Option<Vec<u8>>;

    /// Leaves an index for the next process.
    ///
    /// # Errors
    /// The system's; there is none then.
    fn leave_index(&self, bytes: &[u8]) -> Result<(), IoError>;
}

/// Why a directory cannot be used.
#[derive(Debug, Error)]
pub enum DirectoryError {
    /// The system refused.
    #[error(transparent)]
    Io(#[from] IoError),
    /// Another process uses it.
    #[error("{} is in use by another process; give each server a directory of its own", path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// Its files take memory.
    #[error("{} lies in memory, so that keeping KV there frees none; name a directory on a disk", path.display())]
    InMemory {
        /// The directory.
        path: PathBuf,
    },
    /// The secret is not one.
    #[error("{} is damaged; remove it, and with it what is stored in its directory", path.display())]
    Secret {
        /// The file.
        path: PathBuf,
    },
}

/// A directory that this process alone uses. Its files can be read by their owner only.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    secret: [u8; 32],
    /// Locked while it is open.
    _lock: File,
}

const SECRET: &str = "secret";
const LOCK: &str = "lock";
const INDEX: &str = "index";

impl Directory {
    /// Opens the directory at `path`, which is created if need be.
    ///
    /// # Errors
    /// See [`DirectoryError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DirectoryError> {
        let path = path.as_ref().to_owned();
        let fault = |action| {
            let path = path.clone();
            move |source| IoError::Write { path, action, source }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(fault("create"))?;
        if interbed_io::SwapFile::is_in_memory(&path)? {
            return Err(DirectoryError::InMemory { path });
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(path.join(LOCK)).map_err(fault("open the lock of"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DirectoryError::Busy { path }),
            // Some network file systems have no locks; there, the user must avoid two servers.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(source)) => return Err(fault("lock")(source).into()),
        }
        let secret = secret(&path)?;
        Ok(Self { path, secret, _lock: lock })
    }

    /// Whether `path` was [opened](Self::open) before.
    pub fn is_one(path: impl AsRef<Path>) -> bool {
        path.as_ref().join(SECRET).is_file()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What all names and headers in it are keyed with: made at random when it was first opened.
    pub fn secret(&self) -> [u8; 32] {
        self.secret
    }

    fn segment(&self, number: u32) -> PathBuf {
        self.path.join(format!("segment-{number:06}"))
    }
}

impl SegmentSpace for Directory {
    fn existing(&self) -> Result<Vec<u32>, IoError> {
        let fault = |source| IoError::Open { path: self.path.clone(), source };
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(fault)? {
            let name = entry.map_err(fault)?.file_name();
            let number: Option<u32> = name.to_str().and_then(|name| name.strip_prefix("segment-")?.parse().ok());
            numbers.extend(number);
        }
        Ok(numbers)
    }

    fn open(&self, segment: u32) -> Result<Arc<dyn SegmentWrite>, IoError> {
        Ok(Arc::new(SegmentFile::open(self.segment(segment))?))
    }

    fn create(&self, segment: u32, len: u64) -> Result<Arc<dyn SegmentWrite>, IoError> {
        Ok(Arc::new(SegmentFile::create(self.segment(segment), len)?))
    }

    fn remove(&self, segment: u32) -> Result<(), IoError> {
        let path = self.segment(segment);
        std::fs::remove_file(&path).map_err(|source| IoError::Write { path, action: "remove", source })
    }

    fn take_index(&self) -> Option<Vec<u8>> {
        let path = self.path.join(INDEX);
        let bytes = std::fs::read(&path).ok();
        // What is written from now on is not in it.
        std::fs::remove_file(&path).ok().and(bytes)
    }

    fn leave_index(&self, bytes: &[u8]) -> Result<(), IoError> {
        let fault = |source| IoError::Write { path: self.path.join(INDEX), action: "write", source };
        write_whole(&self.path, INDEX, bytes).map_err(fault)
    }
}

/// The directory's secret, which is made if there is none.
fn secret(directory: &Path) -> Result<[u8; 32], DirectoryError> {
    let path = directory.join(SECRET);
    let mut secret = [0; 32];
    match File::open(&path) {
        Ok(mut file) => {
            let mut rest = [0];
            let whole = file.read_exact(&mut secret).is_ok() && matches!(file.read(&mut rest), Ok(0));
            return if whole { Ok(secret) } else { Err(DirectoryError::Secret { path }) };
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(IoError::Open { path, source }.into()),
    }
    let fault = |source| IoError::Write { path: path.clone(), action: "make a secret in", source };
    File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut secret)).map_err(fault)?;
    write_whole(directory, SECRET, &secret).map_err(fault)?;
    Ok(secret)
}

/// Writes a file under another name until it is whole: a process may be killed at any moment.
fn write_whole(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let partial = directory.join(format!("{name}.partial"));
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&partial, directory.join(name))?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_is_one_process_at_a_time_and_keeps_its_secret() {
        let parent = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = parent.path().join("kv");
        let first = Directory::open(&path).unwrap();
        assert!(matches!(Directory::open(&path), Err(DirectoryError::Busy { .. })));
        let secret = first.secret();
        assert_ne!(secret, [0; 32]);
        drop(first);
        assert_eq!(Directory::open(&path).unwrap().secret(), secret);
        for (name, mode) in [("", 0o700), (SECRET, 0o600), (LOCK, 0o600)] {
            assert_eq!(std::fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777, mode, "{name}");
        }
        std::fs::write(path.join(SECRET), b"short").unwrap();
        assert!(matches!(Directory::open(&path), Err(DirectoryError::Secret { .. })));
    }

    #[test]
    fn segments_are_found_again() {
        let parent = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let directory = Directory::open(parent.path()).unwrap();
        assert_eq!(directory.existing().unwrap(), []);
        directory.create(7, 8192).unwrap();
        std::fs::write(parent.path().join("segment-x"), b"").unwrap();
        assert_eq!(directory.existing().unwrap(), [7]);
        assert_eq!(directory.open(7).unwrap().len(), 8192);
        assert!(directory.take_index().is_none());
        directory.leave_index(b"what there is").unwrap();
        assert_eq!((directory.take_index(), directory.take_index()), (Some(b"what there is".to_vec()), None));
        directory.remove(7).unwrap();
        assert!(directory.open(7).is_err() && directory.existing().unwrap().is_empty());
    }
}

//! The directory of a store: its secret, its lock, and a file for each segment.

use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use interbed_io::{IoError, PrivateFolder, SegmentFile, SegmentWrite};
use thiserror::Error;

use crate::{index_file, record};

/// Storage for the segments of a store of KV on disk. A segment has a number and a fixed length in bytes. It holds
/// records; a record is a header followed by one or more KV blocks.
pub trait SegmentSpace: Send + Sync {
    /// Returns the numbers of the segments that are there, in no order.
    ///
    /// # Errors
    /// Fails if the system refuses to list the segments.
    fn existing(&self) -> Result<Vec<u32>, IoError>;

    /// Opens a segment that is there.
    ///
    /// # Errors
    /// Fails if there is no such segment, or if it cannot be opened.
    fn open(&self, segment: u32) -> Result<Arc<dyn SegmentWrite>, IoError>;

    /// Opens a segment of `len` bytes, and creates it if need be.
    ///
    /// # Errors
    /// Fails if the disk has no room.
    fn create(&self, segment: u32, len: u64) -> Result<Arc<dyn SegmentWrite>, IoError>;

    /// Removes a segment.
    ///
    /// # Errors
    /// Fails if the system refuses to remove the segment.
    fn remove(&self, segment: u32) -> Result<(), IoError>;

    /// Takes away the index that an earlier process has left, if there is one. By default, there is none.
    fn take_index(&self) -> Option<Vec<u8>> {
        None
    }

    /// Leaves an index for the next process. By default, nothing is left.
    ///
    /// # Errors
    /// Fails if the system refuses to write the index; no index is left then.
    fn leave_index(&self, _bytes: &[u8]) -> Result<(), IoError> {
        Ok(())
    }
}

/// Reason why a directory cannot be used.
#[derive(Debug, Error)]
pub enum DirectoryError {
    /// A system call failed; or another user owns the directory or one of its files, or can write to one of them; or a
    /// file in it is a link or has another name elsewhere.
    #[error(transparent)]
    Io(#[from] IoError),
    /// Another process uses the directory.
    #[error("{} is in use by another process; give each server a directory of its own", path.display())]
    Busy {
        /// Path of the directory.
        path: PathBuf,
    },
    /// The directory lies on a file system that keeps files in memory.
    #[error("{} lies in memory, so that keeping KV there frees none; name a directory on a disk", path.display())]
    InMemory {
        /// Path of the directory.
        path: PathBuf,
    },
    /// The file with the directory's secret is damaged, or other users can read it.
    #[error("{} {problem}; remove it, and with it what is stored in its directory", path.display())]
    Secret {
        /// Path of the file.
        path: PathBuf,
        /// Description of what is wrong with the file.
        problem: &'static str,
    },
    /// The directory contains a file with a name that Interbed uses, but the file does not begin with the bytes that
    /// this version of Interbed writes. To protect the file, Interbed does not use the directory.
    #[error(
        "{} is not Interbed's, or is of an older version: it begins with \"{begin}\". Remove it if nobody needs it, or \
         name another directory",
        path.display()
    )]
    NotOurs {
        /// Path of the file.
        path: PathBuf,
        /// First bytes of the file, escaped.
        begin: String,
    },
}

/// A directory that stores KV on disk. While a process has the directory open, a lock keeps other processes from
/// opening it, if the file system supports locks. The directory belongs to the user that runs this process, and no
/// other user can write to it. No other user can read the files that Interbed creates in it.
#[derive(Debug)]
pub struct Directory {
    folder: PrivateFolder,
    secret: [u8; 32],
    /// File that is locked while the directory is open.
    _lock: File,
}

const SECRET: &str = "secret";
const LOCK: &str = "lock";
const INDEX: &str = "index";

/// Maximum number of bytes of an index that is read.
const INDEX_BYTES_MAX: u64 = 1 << 30;

impl Directory {
    /// Opens the directory at `path`, and creates it if it does not exist.
    ///
    /// # Errors
    /// Fails for one of the reasons in [`DirectoryError`]. Files that were already in the directory are then unchanged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DirectoryError> {
        let folder = PrivateFolder::open(path)?;
        if interbed_io::SwapFile::is_in_memory(folder.path())? {
            return Err(DirectoryError::InMemory { path: folder.path().to_owned() });
        }
        let lock = folder.open_or_create(LOCK)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DirectoryError::Busy { path: folder.path().to_owned() }),
            // Some network file systems have no locks; there, the user must avoid two servers.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(source)) => {
                return Err(IoError::Write { path: folder.path().to_owned(), action: "lock", source }.into());
            }
        }
        check_ours(&folder)?;
        let secret = secret(&folder)?;
        Ok(Self { folder, secret, _lock: lock })
    }

    /// Returns whether an earlier call to [`Directory::open`] has set up the directory at `path`. Checks only whether
    /// the directory contains a file with the name of the secret's file.
    pub fn is_one(path: impl AsRef<Path>) -> bool {
        path.as_ref().join(SECRET).is_file()
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the directory's secret. A store uses it to compute block keys and to sign the headers of its records.
    /// The secret is chosen at random when the directory is first opened.
    pub fn secret(&self) -> [u8; 32] {
        self.secret
    }
}

/// Returns the name of the file of segment `number`.
fn segment(number: u32) -> String {
    format!("segment-{number:06}")
}

/// Returns the number of the segment whose file has this name; `None` if no segment has it.
fn number_of(name: &str) -> Option<u32> {
    name.strip_prefix("segment-")?.parse().ok().filter(|&number| segment(number) == name)
}

/// Refuses files with names that Interbed uses if Interbed did not write them, since they would be overwritten sooner
/// or later. Space that was reserved and never written to is zeros.
fn check_ours(folder: &PrivateFolder) -> Result<(), DirectoryError> {
    for name in folder.names()? {
        let magic = match number_of(&name) {
            Some(_) => record::MAGIC,
            None if name == INDEX => index_file::MAGIC,
            None => continue,
        };
        let Some(file) = folder.open_file(&name)? else { continue };
        let path = folder.path().join(name);
        let mut begin = Vec::new();
        let read = file.take(magic.len() as u64).read_to_end(&mut begin);
        read.map_err(|source| IoError::Open { path: path.clone(), source })?;
        if begin != magic && begin.iter().any(|&byte| byte != 0) {
            return Err(DirectoryError::NotOurs { path, begin: begin.escape_ascii().to_string() });
        }
    }
    Ok(())
}

impl SegmentSpace for Directory {
    fn existing(&self) -> Result<Vec<u32>, IoError> {
        Ok(self.folder.names()?.iter().filter_map(|name| number_of(name)).collect())
    }

    fn open(&self, number: u32) -> Result<Arc<dyn SegmentWrite>, IoError> {
        Ok(Arc::new(SegmentFile::open(&self.folder, &segment(number))?))
    }

    fn create(&self, number: u32, len: u64) -> Result<Arc<dyn SegmentWrite>, IoError> {
        Ok(Arc::new(SegmentFile::create(&self.folder, &segment(number), len)?))
    }

    fn remove(&self, number: u32) -> Result<(), IoError> {
        self.folder.remove(&segment(number))
    }

    fn take_index(&self) -> Option<Vec<u8>> {
        let file = self.folder.open_file(INDEX).ok()??;
        let mut bytes = Vec::new();
        let read = file.take(INDEX_BYTES_MAX).read_to_end(&mut bytes);
        // What is written from now on is not in it.
        self.folder.remove(INDEX).ok()?;
        read.ok().map(|_| bytes)
    }

    fn leave_index(&self, bytes: &[u8]) -> Result<(), IoError> {
        self.folder.write_whole(INDEX, bytes)
    }
}

/// Returns the directory's secret, and makes it if there is none.
fn secret(folder: &PrivateFolder) -> Result<[u8; 32], DirectoryError> {
    let path = folder.path().join(SECRET);
    let fault = |source| IoError::Open { path: path.clone(), source };
    let mut secret = [0; 32];
    if let Some(mut file) = folder.open_file(SECRET)? {
        // Who has read it can make records that are believed.
        if file.metadata().map_err(fault)?.mode() & 0o077 != 0 {
            return Err(DirectoryError::Secret { path, problem: "can be read by other users" });
        }
        let mut rest = [0];
        let whole = file.read_exact(&mut secret).is_ok() && matches!(file.read(&mut rest), Ok(0));
        return if whole { Ok(secret) } else { Err(DirectoryError::Secret { path, problem: "is damaged" }) };
    }
    File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut secret)).map_err(fault)?;
    folder.write_whole(SECRET, &secret)?;
    Ok(secret)
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
        // Other names than ours are nobody's business here.
        for name in ["segment-x", "segment-8", "segment-+00009", "notes"] {
            std::fs::write(parent.path().join(name), b"other").unwrap();
        }
        assert_eq!(directory.existing().unwrap(), [7]);
        assert_eq!(directory.open(7).unwrap().len(), 8192);
        assert!(directory.take_index().is_none());
        directory.leave_index(b"what there is").unwrap();
        assert_eq!((directory.take_index(), directory.take_index()), (Some(b"what there is".to_vec()), None));
        directory.remove(7).unwrap();
        assert!(directory.open(7).is_err() && directory.existing().unwrap().is_empty());
    }

    /// Opens a directory in which `prepare` has been at work since it was last used, and which must be refused. Returns
    /// the error.
    fn refused(prepare: impl Fn(&Path)) -> String {
        let parent = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = parent.path().join("kv");
        Directory::open(&path).unwrap();
        std::fs::write(parent.path().join("mine"), b"mine").unwrap();
        prepare(&path);
        let error = Directory::open(&path).expect_err("it is refused").to_string();
        assert_eq!(std::fs::read(parent.path().join("mine")).unwrap(), b"mine", "{error}");
        error
    }

    #[test]
    fn files_of_others_and_of_older_versions_are_refused_and_stay() {
        for (name, content) in
            [("segment-000000", &b"OTHERSKV"[..]), ("index", b"OTHERSIX"), ("segment-000005", b"my"), ("index", b"\n")]
        {
            let error = refused(|path| std::fs::write(path.join(name), content).unwrap());
            assert!(error.contains(name) && error.contains("older version"), "{error}");
        }
        // What a crash leaves of a segment that was never written to is ours.
        let parent = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        std::fs::write(parent.path().join("segment-000000"), b"").unwrap();
        std::fs::write(parent.path().join("segment-000001"), [0; 4096]).unwrap();
        assert_eq!(Directory::open(parent.path()).unwrap().existing().unwrap().len(), 2);
    }

    #[test]
    fn planted_links_and_secrets_are_refused() {
        let mine = |path: &Path| path.parent().unwrap().join("mine");
        for name in ["secret", "lock", "index", "segment-000000"] {
            let link = |path: &Path| {
                let _ = std::fs::remove_file(path.join(name));
                std::os::unix::fs::symlink(mine(path), path.join(name)).unwrap();
            };
            assert!(refused(link).contains("link"), "{name}");
            let hard_link = |path: &Path| {
                let _ = std::fs::remove_file(path.join(name));
                std::fs::hard_link(mine(path), path.join(name)).unwrap();
            };
            assert!(refused(hard_link).contains("another name"), "{name}");
        }
        let rights = |path: &Path, name: &str, mode| {
            std::fs::set_permissions(path.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        assert!(refused(|path| rights(path, SECRET, 0o644)).contains("read by other users"));
        assert!(refused(|path| rights(path, SECRET, 0o622)).contains("other users"));
        assert!(refused(|path| rights(path, "", 0o777)).contains("other users"));
        if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
            for name in ["", SECRET, LOCK] {
                let given = |path: &Path| std::os::unix::fs::chown(path.join(name), Some(1234), None).unwrap();
                assert!(refused(given).contains("user 1234"), "{name}");
            }
        }
    }

    #[test]
    fn what_a_killed_process_left_half_written_is_no_way_out() {
        let parent = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = parent.path().join("kv");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(parent.path().join("mine"), b"mine").unwrap();
        for name in ["secret.partial", "index.partial"] {
            std::os::unix::fs::symlink(parent.path().join("mine"), path.join(name)).unwrap();
        }
        let directory = Directory::open(&path).unwrap();
        directory.leave_index(b"what there is").unwrap();
        assert_eq!(directory.take_index().as_deref(), Some(&b"what there is"[..]));
        assert_eq!(std::fs::read(parent.path().join("mine")).unwrap(), b"mine");
        let secret = directory.secret();
        drop(directory);
        assert_eq!(Directory::open(&path).unwrap().secret(), secret);
    }
}

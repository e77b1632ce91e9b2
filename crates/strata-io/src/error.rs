//! What can go wrong with a file.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// A file operation failed. Every variant names the file, and the figures that a reader of the message needs.
#[derive(Debug, Error)]
pub enum IoError {
    /// The file could not be opened or examined.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The path leads to something that has no bytes to read at an offset, such as a directory or a pipe.
    #[error("{} is {found}, expected a regular file or a block device", path.display())]
    NotRegular {
        /// The path.
        path: PathBuf,
        /// What lies there.
        found: &'static str,
    },
    /// The file ended before the read was full: it is truncated, or has shrunk since it was opened.
    #[error(
        "{} ended early: wanted {wanted} bytes at offset {offset}, got {got}; the file had {len_at_open} bytes when it \
         was opened. It is truncated or was changed: fetch it again",
        path.display()
    )]
    Ended {
        /// The file.
        path: PathBuf,
        /// Where the read began, in bytes from the start.
        offset: u64,
        /// Bytes asked for.
        wanted: usize,
        /// Bytes that came before the end.
        got: usize,
        /// The file's length when it was opened.
        len_at_open: u64,
    },
    /// The system failed a read.
    #[error("cannot read {wanted} bytes at offset {offset} of {} (got {got}): {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Where the read began, in bytes from the start.
        offset: u64,
        /// Bytes asked for.
        wanted: usize,
        /// Bytes that came before the failure.
        got: usize,
        /// What the system said; `raw_os_error` gives the errno.
        source: io::Error,
    },
    /// Creating, writing, syncing or renaming failed; the file under its final name is untouched.
    #[error("cannot {action} {}: {source}", path.display())]
    Write {
        /// The file under its final name.
        path: PathBuf,
        /// What was being done, as a verb: "create", "write", "sync", "rename".
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl IoError {
    /// The system's error number, where the system failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            IoError::Open { source, .. } | IoError::Read { source, .. } | IoError::Write { source, .. } => {
                source.raw_os_error()
            }
            IoError::NotRegular { .. } | IoError::Ended { .. } => None,
        }
    }
}

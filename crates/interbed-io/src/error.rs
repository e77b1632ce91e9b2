//! Errors of file operations.

use std::path::PathBuf;
use std::{fmt, io};

use thiserror::Error;

use crate::DIRECT_ALIGN;

/// A failed file operation, or a read engine that cannot be started.
#[derive(Debug, Error)]
pub enum IoError {
    /// The file could not be opened or examined.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path leads to something that cannot be read at an offset, such as a directory or a pipe.
    #[error("{} is {found}, expected a regular file or a block device", path.display())]
    NotRegular {
        /// The path.
        path: PathBuf,
        /// Kind of file that the path leads to, in words.
        found: &'static str,
    },
    /// The file ended before the read was complete: it is truncated, or has shrunk since it was opened.
    #[error(
        "{} ended early: wanted {wanted} bytes at offset {offset}, got {got}; the file had {len_at_open} bytes when it \
         was opened. It is truncated or was changed: fetch it again",
        path.display()
    )]
    Ended {
        /// Path of the file.
        path: PathBuf,
        /// Offset at which the read began, in bytes.
        offset: u64,
        /// Number of bytes requested.
        wanted: usize,
        /// Number of bytes read before the end.
        got: usize,
        /// Length of the file in bytes when it was opened.
        len_at_open: u64,
    },
    /// A read failed with a system error.
    #[error("cannot read {wanted} bytes at offset {offset} of {} (got {got}): {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Offset at which the read began, in bytes.
        offset: u64,
        /// Number of bytes requested.
        wanted: usize,
        /// Number of bytes read before the failure.
        got: usize,
        /// The system's error; `raw_os_error` gives the errno.
        source: io::Error,
    },
    /// A file or folder could not be created, opened for writing, written, synced, renamed or removed.
    #[error("cannot {action} {}: {source}", path.display())]
    Write {
        /// Final path of the file.
        path: PathBuf,
        /// The failed operation, as a verb: "create", "write", "sync", "rename".
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The file was changed or replaced after it was opened.
    #[error("{} was changed while it was in use: {change}. Load it again, or restore what it was", path.display())]
    Changed {
        /// Path of the file.
        path: PathBuf,
        /// How the file has changed.
        change: FileChange,
    },
    /// Other users could change the content of a file or folder, or redirect what is written to it.
    #[error("{} {problem}", path.display())]
    NotPrivate {
        /// Path of the folder or file.
        path: PathBuf,
        /// What is wrong with the folder or file, and what to do.
        problem: String,
    },
    /// The arguments of a read or write are invalid, for example not aligned, or memory for the buffer is lacking.
    /// Nothing was read or written.
    #[error(
        "refused to read {len} bytes ({needed} needed) at offset {offset} of {}: {problem}; direct reads move whole \
         blocks of {DIRECT_ALIGN} bytes",
        path.display()
    )]
    BadRequest {
        /// Path of the file.
        path: PathBuf,
        /// Offset at which the read was to begin, in bytes.
        offset: u64,
        /// Number of bytes requested.
        len: usize,
        /// The number of requested bytes that were needed.
        needed: usize,
        /// What is wrong with the request.
        problem: &'static str,
    },
    /// The implementation of a file panicked during a read. The read engine continues with the next request.
    #[error("the read at offset {offset} of {} panicked: {message}. This is a bug: please report it", path.display())]
    Panicked {
        /// Path of the file.
        path: PathBuf,
        /// Offset at which the read began, in bytes.
        offset: u64,
        /// The message of the panic.
        message: String,
    },
    /// An engine for background reads is not available on this machine.
    #[error("cannot start {engine}: {source}")]
    Engine {
        /// Name of the engine, as in [`ReadEngine::name`](crate::ReadEngine::name).
        engine: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// How a file differs from the one that was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileChange {
    /// The length is different.
    Length {
        /// The length in bytes when the file was opened.
        opened: u64,
        /// The length in bytes now.
        now: u64,
    },
    /// The file was written to: its time of modification has changed.
    Modified,
    /// The change time (ctime) of the file is different, but its length and modification time are the same. Either the
    /// file was written to and its modification time was reset, or its permissions or links were changed.
    Touched,
    /// The path now leads to another file.
    Replaced,
}

impl fmt::Display for FileChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileChange::Length { opened, now } => write!(f, "it had {opened} bytes and has {now}"),
            FileChange::Modified => f.write_str("it was written to"),
            FileChange::Touched => {
                f.write_str("it was written to with its time put back, or its rights or links changed")
            }
            FileChange::Replaced => f.write_str("another file lies under its name"),
        }
    }
}

impl IoError {
    /// Returns the error number (errno) of the failed system call, if one failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            IoError::Open { source, .. }
            | IoError::Read { source, .. }
            | IoError::Write { source, .. }
            | IoError::Engine { source, .. } => source.raw_os_error(),
            IoError::NotRegular { .. }
            | IoError::Ended { .. }
            | IoError::Changed { .. }
            | IoError::NotPrivate { .. }
            | IoError::BadRequest { .. }
            | IoError::Panicked { .. } => None,
        }
    }
}

//! What can go wrong with a file.

use std::path::PathBuf;
use std::{fmt, io};

use thiserror::Error;

use crate::DIRECT_ALIGN;

/// A file operation failed. Every variant names the file, and the figures that a reader of the message needs.
#[derive(Debug, Error)]
pub enum IoError {
    /// The file could not be opened or examined.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path leads to something that cannot be read at an offset, such as a directory or a pipe.
    #[error("{} is {found}, expected a regular file or a block device", path.display())]
    NotRegular {
        /// The path.
        path: PathBuf,
        /// What the path leads to.
        found: &'static str,
    },
    /// The file ended before the read was complete: it is truncated, or has shrunk since it was opened.
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
        /// Bytes read before the end.
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
        /// Bytes read before the failure.
        got: usize,
        /// The system's error; `raw_os_error` gives the errno.
        source: io::Error,
    },
    /// Creating, writing, syncing or renaming failed; the file under its final name is untouched.
    #[error("cannot {action} {}: {source}", path.display())]
    Write {
        /// The file under its final name.
        path: PathBuf,
        /// The operation, as a verb: "create", "write", "sync", "rename".
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The file is no longer the one that was opened.
    #[error("{} was changed while it was in use: {change}. Load it again, or restore what it was", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// What has changed.
        change: FileChange,
    },
    /// Other users could change what is read there, or have something else written to.
    #[error("{} {problem}", path.display())]
    NotPrivate {
        /// The folder or the file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// The caller asked for a read that direct I/O cannot do; this was found before the system was called.
    #[error(
        "refused to read {len} bytes ({needed} needed) at offset {offset} of {}: {problem}; direct reads move whole \
         blocks of {DIRECT_ALIGN} bytes",
        path.display()
    )]
    BadRequest {
        /// The file.
        path: PathBuf,
        /// Where the read was to begin, in bytes from the start.
        offset: u64,
        /// Bytes asked for.
        len: usize,
        /// How many of these bytes were needed.
        needed: usize,
        /// What is wrong with the request.
        problem: &'static str,
    },
    /// A read panicked; its worker continues with the next one.
    #[error("the read at offset {offset} of {} panicked: {message}. This is a bug: please report it", path.display())]
    Panicked {
        /// The file.
        path: PathBuf,
        /// Where the read began, in bytes from the start.
        offset: u64,
        /// The panic's message.
        message: String,
    },
    /// An engine for background reads is not available on this machine.
    #[error("cannot start {engine}: {source}")]
    Engine {
        /// Its name, as in [`ReadEngine::name`](crate::ReadEngine::name).
        engine: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// How a file differs from the one that was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileChange {
    /// Its length is different.
    Length {
        /// Bytes when it was opened.
        opened: u64,
        /// Bytes now.
        now: u64,
    },
    /// It was written to: its time of modification has changed.
    Modified,
    /// It was changed, although its time of modification is as before: written to with the time put back, or given
    /// other rights or links.
    Touched,
    /// Another file has its name.
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
    /// The system's error number, if the system failed.
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

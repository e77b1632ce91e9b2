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
    /// The file is not the one that was opened any more.
    #[error("{} was changed while it was in use: {change}. Load it again, or restore what it was", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// What became different.
        change: FileChange,
    },
    /// A read was asked for that direct I/O cannot do: a mistake of the caller, found before the system saw it.
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
        /// How many of them must come.
        needed: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A read panicked; the worker that did it goes on with the next one.
    #[error("the read at offset {offset} of {} panicked: {message}. This is a bug: please report it", path.display())]
    Panicked {
        /// The file.
        path: PathBuf,
        /// Where the read began, in bytes from the start.
        offset: u64,
        /// What the panic said.
        message: String,
    },
    /// A way of reading in the background is not to be had on this machine.
    #[error("cannot start {engine}: {source}")]
    Engine {
        /// Its name, as in [`ReadEngine::name`](crate::ReadEngine::name).
        engine: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// In what a file differs from the one that was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileChange {
    /// It has another length.
    Length {
        /// Bytes when it was opened.
        opened: u64,
        /// Bytes now.
        now: u64,
    },
    /// It was written to: its time of modification moved.
    Modified,
    /// Another file lies under its name.
    Replaced,
}

impl fmt::Display for FileChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileChange::Length { opened, now } => write!(f, "it had {opened} bytes and has {now}"),
            FileChange::Modified => f.write_str("it was written to"),
            FileChange::Replaced => f.write_str("another file lies under its name"),
        }
    }
}

impl IoError {
    /// The system's error number, where the system failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            IoError::Open { source, .. }
            | IoError::Read { source, .. }
            | IoError::Write { source, .. }
            | IoError::Engine { source, .. } => source.raw_os_error(),
            IoError::NotRegular { .. }
            | IoError::Ended { .. }
            | IoError::Changed { .. }
            | IoError::BadRequest { .. }
            | IoError::Panicked { .. } => None,
        }
    }
}

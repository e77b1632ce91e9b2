//! A file whose reads fail on demand.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{DirectRead, FileChange, IoError};

/// The byte that a failed read leaves in its buffer, so that using the buffer gives wrong results rather than right
/// ones by chance.
const RUBBISH: u8 = 0xee;

/// A file that forwards reads to another file, makes chosen reads fail, and records all reads. It has no descriptor, so
/// engines must use [`DirectRead::read_aligned_at`].
pub struct FaultyFile {
    inner: Arc<dyn DirectRead>,
    state: Mutex<State>,
}

/// A selection of reads that fail, and the way in which they fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The reads that the fault applies to.
    pub reads: Which,
    /// The effect on the reads.
    pub effect: Effect,
    /// Maximum number of reads that fail; `None` means no limit.
    pub times: Option<u32>,
}

/// A selection of reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// All reads.
    All,
    /// The read with this index, counted from 0 since the file was created.
    Nth(u64),
    /// Reads that overlap this range of the file's bytes.
    Touching(Range<u64>),
}

/// The effect of a fault on a selected read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The read fails with [`IoError::Read`] and this error number, for instance 5 for EIO.
    Errno(i32),
    /// The read fails with [`IoError::Ended`] after this many bytes, which are read correctly.
    EndAfter(usize),
    /// The read panics, as if the file had a bug.
    Panic,
}

/// A recorded read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedRead {
    /// Offset at which the read began, in bytes.
    pub offset: u64,
    /// Length of the read in bytes.
    pub len: usize,
    /// Number of bytes that were required.
    pub needed: usize,
    /// Whether a fault was injected into the read.
    pub failed: bool,
}

#[derive(Default)]
struct State {
    faults: Vec<Fault>,
    reads: Vec<RecordedRead>,
    change: Option<FileChange>,
}

impl FaultyFile {
    /// Wraps a file. No read fails until a fault is injected.
    pub fn new(inner: Arc<dyn DirectRead>) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// Adds a fault. If several faults match a read, the one that was added first takes effect.
    pub fn inject(&self, fault: Fault) {
        self.lock().faults.push(fault);
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.lock().faults.clear();
    }

    /// Makes [`DirectRead::check_unchanged`] report `change`. With `None`, it reports changes of the wrapped file
    /// again.
    pub fn pretend_changed(&self, change: Option<FileChange>) {
        self.lock().change = change;
    }

    /// Returns all reads since the file was created, in the order in which they began.
    pub fn reads(&self) -> Vec<RecordedRead> {
        self.lock().reads.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DirectRead for FaultyFile {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_aligned_at(&self, buf: &mut [u8], offset: u64, needed: usize) -> Result<(), IoError> {
        let effect = self.lock().begin(offset, buf.len(), needed);
        let path = || self.path().to_owned();
        match effect {
            None => self.inner.read_aligned_at(buf, offset, needed),
            Some(Effect::Errno(errno)) => {
                buf.fill(RUBBISH);
                let source = io::Error::from_raw_os_error(errno);
                Err(IoError::Read { path: path(), offset, wanted: needed, got: 0, source })
            }
            Some(Effect::EndAfter(got)) => {
                self.inner.read_aligned_at(buf, offset, needed)?;
                let got = got.min(buf.len());
                buf[got..].fill(RUBBISH);
                Err(IoError::Ended { path: path(), offset, wanted: needed, got, len_at_open: self.len() })
            }
            Some(Effect::Panic) => panic!("a panic was asked for at offset {offset}"),
        }
    }

    fn check_unchanged(&self) -> Result<(), IoError> {
        let change = self.lock().change.clone();
        match change {
            Some(change) => Err(IoError::Changed { path: self.path().to_owned(), change }),
            None => self.inner.check_unchanged(),
        }
    }

    fn direct_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_direct(&self) -> bool {
        self.inner.is_direct()
    }
}

impl State {
    /// Records a read, and returns the fault that affects it, if any.
    fn begin(&mut self, offset: u64, len: usize, needed: usize) -> Option<Effect> {
        let number = self.reads.len() as u64;
        let end = offset.saturating_add(len as u64);
        let fault = self.faults.iter_mut().find(|fault| {
            fault.times != Some(0)
                && match &fault.reads {
                    Which::All => true,
                    Which::Nth(nth) => *nth == number,
                    Which::Touching(range) => range.start < end && offset < range.end,
                }
        });
        let effect = fault.map(|fault| {
            fault.times = fault.times.map(|times| times - 1);
            fault.effect.clone()
        });
        self.reads.push(RecordedRead { offset, len, needed, failed: effect.is_some() });
        effect
    }
}

impl fmt::Debug for FaultyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyFile({})", self.path().display())
    }
}

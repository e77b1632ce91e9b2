//! Swap space whose writes fail or are lost on demand, and whose reads fail like those of a [`FaultyFile`].

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::testing::FaultyFile;
use crate::{DirectRead, DirectWrite, IoError};

/// A file that forwards reads and writes to another file, and makes chosen ones fail.
pub struct FaultySpace {
    inner: Arc<dyn DirectWrite>,
    /// The file through which all reads go. Read faults can be injected into it.
    pub reads: FaultyFile,
    writes: Mutex<Writes>,
}

/// The effect of a fault on selected writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteEffect {
    /// The write fails with [`IoError::Write`] and this error number, for instance 28 for a full disk.
    Errno(i32),
    /// The write reports success but writes nothing, so reads return the old bytes.
    Lost,
    /// The write panics, as if the file had a bug.
    Panic,
}

/// A guard that [`FaultySpace::hold_writes`] returns. Writes block until the guard is dropped.
pub struct HeldWrites<'a> {
    _lock: MutexGuard<'a, Writes>,
}

#[derive(Default)]
struct Writes {
    count: u64,
    /// The index of the first affected write, the number of affected writes, and their effect.
    fault: Option<(u64, u64, WriteEffect)>,
}

impl FaultySpace {
    /// Wraps a file. No read or write fails until a fault is set.
    pub fn new(inner: Arc<dyn DirectWrite>) -> Self {
        let reads = FaultyFile::new(inner.clone());
        Self { inner, reads, writes: Mutex::default() }
    }

    /// Lets the next `spared` writes succeed, and applies `effect` to the `times` writes after them. Replaces any
    /// earlier setting.
    pub fn fail_writes(&self, spared: u64, times: u64, effect: WriteEffect) {
        let mut writes = self.lock();
        let first = writes.count.saturating_add(spared);
        writes.fault = Some((first, times, effect));
    }

    /// Blocks all writes until the returned guard is dropped. [`num_writes`](Self::num_writes) blocks too.
    pub fn hold_writes(&self) -> HeldWrites<'_> {
        HeldWrites { _lock: self.lock() }
    }

    /// Returns the number of writes requested so far, including failed ones.
    pub fn num_writes(&self) -> u64 {
        self.lock().count
    }

    fn lock(&self) -> MutexGuard<'_, Writes> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DirectRead for FaultySpace {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_aligned_at(&self, buf: &mut [u8], offset: u64, needed: usize) -> Result<(), IoError> {
        self.reads.read_aligned_at(buf, offset, needed)
    }

    fn check_unchanged(&self) -> Result<(), IoError> {
        self.reads.check_unchanged()
    }

    fn direct_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_direct(&self) -> bool {
        self.inner.is_direct()
    }
}

impl DirectWrite for FaultySpace {
    fn write_aligned_at(&self, buf: &[u8], offset: u64) -> Result<(), IoError> {
        let effect = {
            let mut writes = self.lock();
            let number = writes.count;
            writes.count += 1;
            let chosen = |&(first, times, _): &(u64, u64, _)| number >= first && number - first < times;
            writes.fault.filter(chosen).map(|(_, _, effect)| effect)
        };
        match effect {
            None => self.inner.write_aligned_at(buf, offset),
            Some(WriteEffect::Errno(errno)) => {
                let source = io::Error::from_raw_os_error(errno);
                Err(IoError::Write { path: self.path().to_owned(), action: "write to", source })
            }
            Some(WriteEffect::Lost) => Ok(()),
            Some(WriteEffect::Panic) => panic!("a panic was asked for at offset {offset}"),
        }
    }
}

impl fmt::Debug for FaultySpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultySpace({})", self.path().display())
    }
}

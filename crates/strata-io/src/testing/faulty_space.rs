//! Room to swap to whose writes fail, or are lost, on demand, and whose reads fail as those of a [`FaultyFile`] do.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::testing::FaultyFile;
use crate::{DirectRead, DirectWrite, IoError};

/// Hands reads and writes on to another file, except those that were chosen to fail.
pub struct FaultySpace {
    inner: Arc<dyn DirectWrite>,
    /// What reads go through: inject their faults here.
    pub reads: FaultyFile,
    writes: Mutex<Writes>,
}

/// What happens to writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteEffect {
    /// [`IoError::Write`] with this error number, for instance 28 for a full disk.
    Errno(i32),
    /// They seem to succeed, and nothing is written: what lay there before is read afterwards.
    Lost,
    /// A panic, as if the file had a bug.
    Panic,
}

/// See [`FaultySpace::hold_writes`].
pub struct HeldWrites<'a> {
    _lock: MutexGuard<'a, Writes>,
}

#[derive(Default)]
struct Writes {
    count: u64,
    /// Number of the first write that it happens to, and how many it happens to in all.
    fault: Option<(u64, u64, WriteEffect)>,
}

impl FaultySpace {
    /// A file without faults yet.
    pub fn new(inner: Arc<dyn DirectWrite>) -> Self {
        let reads = FaultyFile::new(inner.clone());
        Self { inner, reads, writes: Mutex::default() }
    }

    /// Of the writes from now on, `times` have this effect, after `spared` that have none. Takes the place of any that
    /// was chosen before.
    pub fn fail_writes(&self, spared: u64, times: u64, effect: WriteEffect) {
        let mut writes = self.lock();
        let first = writes.count.saturating_add(spared);
        writes.fault = Some((first, times, effect));
    }

    /// Writes wait as long as what is returned lives, and are not counted before.
    pub fn hold_writes(&self) -> HeldWrites<'_> {
        HeldWrites { _lock: self.lock() }
    }

    /// Writes that were asked for so far, whether they failed or not.
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

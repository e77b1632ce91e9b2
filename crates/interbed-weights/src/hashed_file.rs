//! Files whose bytes are hashed as they are read.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use interbed_io::{DirectRead, FileIdentity, IoError, RandomAccessFile};

use crate::content::ContentHash;

/// Number of bytes that are read before they are hashed. They are few enough to be in the processor's cache still,
/// where hashing takes a third of the time.
const STEP: usize = 256 << 10;

/// A file of a catalog.
pub(crate) struct HashedFile {
    pub(crate) file: Arc<dyn RandomAccessFile>,
    pub(crate) hash: Arc<ContentHash>,
    /// Index of the file among the catalog's files.
    pub(crate) number: usize,
    /// Whether two short reads cost as much as a long one.
    pub(crate) in_steps: bool,
}

impl RandomAccessFile for HashedFile {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn identity(&self) -> Option<&FileIdentity> {
        self.file.identity()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), IoError> {
        let step = if self.in_steps && !self.hash.is_complete() { STEP } else { buf.len().max(1) };
        let (len, mut read, mut hashed) = (buf.len(), 0, 0);
        while read < len {
            let end = len.min(read + step);
            self.file.read_exact_at(&mut buf[read..end], offset + read as u64)?;
            read = end;
            // A leaf that was not read wholly is hashed with the next step.
            let whole = self.hash.last_boundary(self.number, offset + read as u64).saturating_sub(offset) as usize;
            let until = if read == len { len } else { whole.clamp(hashed, read) };
            self.hash.was_read(self.number, offset + hashed as u64, &buf[hashed..until]);
            hashed = until;
        }
        Ok(())
    }

    fn drop_cache(&self, range: Range<u64>) {
        self.file.drop_cache(range);
    }
}

/// A file whose direct reads are hashed on their way. The kernel does not read by itself as long as anything is to be
/// hashed.
pub(crate) struct HashedDirect {
    pub(crate) file: Arc<dyn DirectRead>,
    pub(crate) hash: Arc<ContentHash>,
    /// Index of the file among the catalog's files.
    pub(crate) number: usize,
}

impl DirectRead for HashedDirect {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_aligned_at(&self, buf: &mut [u8], offset: u64, needed: usize) -> Result<(), IoError> {
        self.file.read_aligned_at(buf, offset, needed)?;
        self.hash.was_read(self.number, offset, &buf[..needed]);
        Ok(())
    }

    fn check_unchanged(&self) -> Result<(), IoError> {
        self.file.check_unchanged()
    }

    fn direct_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.direct_fd().filter(|_| self.hash.is_complete())
    }

    fn is_direct(&self) -> bool {
        self.file.is_direct()
    }
}

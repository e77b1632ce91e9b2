//! Segments side by side in one file without a name, which is gone when the process ends.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use interbed_io::{DirectRead, DirectWrite, IoError, SegmentWrite};

use crate::directory::SegmentSpace;

/// A file that is divided into segments of equal length.
pub(crate) struct UnnamedSpace {
    file: Arc<dyn DirectWrite>,
    segment_bytes: u64,
}

impl UnnamedSpace {
    pub(crate) fn new(file: Arc<dyn DirectWrite>, segment_bytes: u64) -> Self {
        Self { file, segment_bytes }
    }
}

impl SegmentSpace for UnnamedSpace {
    fn existing(&self) -> Result<Vec<u32>, IoError> {
        Ok(Vec::new())
    }

    fn open(&self, segment: u32) -> Result<Arc<dyn SegmentWrite>, IoError> {
        let (begin, len) = (u64::from(segment) * self.segment_bytes, self.segment_bytes);
        Ok(Arc::new(Part { file: Arc::clone(&self.file), begin, len }))
    }

    fn create(&self, segment: u32, _len: u64) -> Result<Arc<dyn SegmentWrite>, IoError> {
        self.open(segment)
    }

    fn remove(&self, _segment: u32) -> Result<(), IoError> {
        Ok(())
    }
}

/// A segment of the file.
struct Part {
    file: Arc<dyn DirectWrite>,
    begin: u64,
    len: u64,
}

impl DirectRead for Part {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_aligned_at(&self, buf: &mut [u8], offset: u64, needed: usize) -> Result<(), IoError> {
        self.file.read_aligned_at(buf, self.begin + offset, needed)
    }

    fn check_unchanged(&self) -> Result<(), IoError> {
        self.file.check_unchanged()
    }

    /// Returns `None`, because offsets in the segment are not those in the file.
    fn direct_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl DirectWrite for Part {
    fn write_aligned_at(&self, buf: &[u8], offset: u64) -> Result<(), IoError> {
        self.file.write_aligned_at(buf, self.begin + offset)
    }
}

impl SegmentWrite for Part {
    /// Does nothing, because nobody reads the file after a crash.
    fn sync(&self) -> Result<(), IoError> {
        Ok(())
    }
}

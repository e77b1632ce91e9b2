//! The interface through which file formats read files.

use std::ops::Range;
use std::path::Path;

use crate::{FileIdentity, IoError};

/// A file that several threads can read at any offset at the same time.
pub trait RandomAccessFile: Send + Sync {
    /// Returns the file's path, for messages.
    fn path(&self) -> &Path;

    /// Returns the length of the file in bytes when it was opened.
    fn len(&self) -> u64;

    /// Returns whether the file was empty when it was opened.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the properties by which a changed file is recognised; `None` if there are none.
    fn identity(&self) -> Option<&FileIdentity> {
        None
    }

    /// Fills `buf` with the bytes at `offset`. Short reads and interruptions are continued here.
    ///
    /// # Errors
    /// Fails with [`IoError::Ended`] if the file ends before `buf` is full, and with [`IoError::Read`] if the system
    /// fails. `buf` is then partly written and must not be used.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), IoError>;

    /// Tells the system that the cached pages of this byte range will not be needed again. This is only advice: it
    /// cannot fail, and a file without a page cache ignores it.
    fn drop_cache(&self, _range: Range<u64>) {}
}

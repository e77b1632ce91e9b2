//! Whether a file is still the same.

use std::fs::{File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;

use crate::FileChange;

/// The properties by which a changed file is recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileIdentity {
    pub(crate) len: u64,
    /// Device and inode, and for a block device the device that it refers to.
    pub(crate) inode: (u64, u64, u64),
    /// Seconds and nanoseconds; `None` for a block device, whose node does not record writes to the device.
    modified: Option<(i64, i64)>,
}

impl FileIdentity {
    pub(crate) fn of(mut file: &File, metadata: &Metadata) -> io::Result<Self> {
        let regular = metadata.is_file();
        // A block device's node has no length; seeking to its end finds it.
        let len = if regular { metadata.len() } else { file.seek(SeekFrom::End(0))? };
        let modified = regular.then(|| (metadata.mtime(), metadata.mtime_nsec()));
        Ok(Self { len, inode: Self::inode_of(metadata), modified })
    }

    pub(crate) fn inode_of(metadata: &Metadata) -> (u64, u64, u64) {
        (metadata.dev(), metadata.ino(), metadata.rdev())
    }

    /// How the file changed between `self` and `now`, if it did.
    pub fn change_to(&self, now: &Self) -> Option<FileChange> {
        if self.inode != now.inode {
            Some(FileChange::Replaced)
        } else if self.len != now.len {
            Some(FileChange::Length { opened: self.len, now: now.len })
        } else if self.modified != now.modified {
            Some(FileChange::Modified)
        } else {
            None
        }
    }
}

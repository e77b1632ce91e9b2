//! Detects whether a file has changed since it was opened.

use std::fs::{File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use crate::FileChange;

/// The length, inode, timestamps and link count of a file, from which a later change can be detected.
#[derive(Debug, Clone)]
pub struct FileIdentity {
    pub(crate) len: u64,
    /// The device and the inode; for a block device also the device number that the inode refers to.
    pub(crate) inode: (u64, u64, u64),
    /// The time of modification in seconds and nanoseconds; `None` for a block device, whose node does not record
    /// writes to the device.
    modified: Option<(i64, i64)>,
    /// The time of the last change of any kind (ctime), in seconds and nanoseconds. Unlike the time of modification, no
    /// program can set this time. It is `None` for a block device, and on file systems without such a time.
    changed: Option<(i64, i64)>,
    /// Number of hard links.
    links: u64,
}

impl FileIdentity {
    pub(crate) fn of(mut file: &File, metadata: &Metadata) -> io::Result<Self> {
        let regular = metadata.is_file();
        // A block device's node has no length; seeking to its end finds it.
        let len = if regular { metadata.len() } else { file.seek(SeekFrom::End(0))? };
        let modified = regular.then(|| (metadata.mtime(), metadata.mtime_nsec()));
        let has_changes = regular && !is_image(rustix::fs::fstatfs(file)?.f_type as u64);
        let changed = has_changes.then(|| (metadata.ctime(), metadata.ctime_nsec()));
        Ok(Self { len, inode: Self::inode_of(metadata), modified, changed, links: metadata.nlink() })
    }

    pub(crate) fn inode_of(metadata: &Metadata) -> (u64, u64, u64) {
        (metadata.dev(), metadata.ino(), metadata.rdev())
    }

    /// Compares the properties of a file at two times, and returns how the file changed from `self` to `now`. Returns
    /// `None` if it did not change.
    pub fn change_to(&self, now: &Self) -> Option<FileChange> {
        if self.inode != now.inode {
            Some(FileChange::Replaced)
        } else if self.len != now.len {
            Some(FileChange::Length { opened: self.len, now: now.len })
        } else if self.modified != now.modified {
            Some(FileChange::Modified)
        } else if self.changed != now.changed {
            Some(FileChange::Touched)
        } else {
            None
        }
    }

    /// Returns this identity with the ctime of `before` if one of the file's names was removed since then, because the
    /// removal of a name changes the ctime but no content.
    pub(crate) fn without_name(self, before: &Self) -> Self {
        let changed = if self.links < before.links { before.changed } else { self.changed };
        Self { changed, ..self }
    }

    /// Returns the time of the last change to the content or the metadata. Returns `None` for a block device, and for a
    /// file system that does not record this time.
    pub fn changed_at(&self) -> Option<SystemTime> {
        let time = |(seconds, nanoseconds): (i64, i64)| {
            let since = Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanoseconds).ok()?);
            SystemTime::UNIX_EPOCH.checked_add(since)
        };
        let changed = time(self.changed.filter(|&(seconds, _)| seconds > 0)?)?;
        let modified = self.modified.and_then(time);
        Some(modified.map_or(changed, |modified| modified.max(changed)))
    }

    /// Serializes the properties, so that they can be compared with those from another process. The device number is
    /// not included, because many systems assign a new one at each boot.
    pub fn to_bytes(&self) -> [u8; 48] {
        let (modified, changed) = (self.modified.unwrap_or_default(), self.changed.unwrap_or_default());
        let numbers = [modified.0, modified.1, changed.0, changed.1].map(i64::to_le_bytes);
        let mut bytes = [0; 48];
        bytes[..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.inode.1.to_le_bytes());
        bytes[16..].copy_from_slice(numbers.as_flattened());
        bytes
    }
}

/// Returns whether a file system of this kind, from `statfs`, is an image that was written as a whole. The ctime in
/// such an image is the time of modification, and another image may have the same time for other content.
fn is_image(kind: u64) -> bool {
    const CRAMFS: u64 = 0x28cd_3d45;
    const EROFS: u64 = 0xe0f5_e1e2;
    const ISO9660: u64 = 0x9660;
    const ROMFS: u64 = 0x7275;
    const SQUASHFS: u64 = 0x7371_7368;
    const UDF: u64 = 0x1501_3346;
    // The field is signed on some machines.
    [CRAMFS, EROFS, ISO9660, ROMFS, SQUASHFS, UDF].contains(&(kind & 0xffff_ffff))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    fn of(path: &std::path::Path) -> FileIdentity {
        let file = File::open(path).unwrap();
        FileIdentity::of(&file, &file.metadata().unwrap()).unwrap()
    }

    /// Waits until the file system's clock has certainly advanced.
    fn tick() {
        std::thread::sleep(Duration::from_millis(30));
    }

    #[test]
    fn what_is_put_back_is_noticed_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        fs::write(&path, [1; 100]).unwrap();
        let before = of(&path);
        assert_eq!(before.change_to(&of(&path)), None);
        assert_eq!(before.to_bytes(), of(&path).to_bytes());
        tick();
        let file = File::options().write(true).open(&path).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[2], 50).unwrap();
        file.set_modified(modified).unwrap();
        let after = of(&path);
        assert_eq!(before.modified, after.modified);
        assert_eq!(before.change_to(&after), Some(FileChange::Touched));
        assert_ne!(before.to_bytes(), after.to_bytes());
        assert!(after.changed_at() > before.changed_at());
    }

    #[test]
    fn a_copy_with_the_same_times_is_another_file() {
        let folder = tempfile::tempdir().unwrap();
        let [path, copy] = ["weights", "copy"].map(|name| folder.path().join(name));
        fs::write(&path, [1; 100]).unwrap();
        let before = of(&path);
        fs::write(&copy, [2; 100]).unwrap();
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        File::options().write(true).open(&copy).unwrap().set_modified(modified).unwrap();
        fs::rename(&copy, &path).unwrap();
        assert_eq!(before.change_to(&of(&path)), Some(FileChange::Replaced));
        assert_ne!(before.to_bytes(), of(&path).to_bytes());
    }

    #[test]
    fn a_time_in_the_future_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        fs::write(&path, [1; 100]).unwrap();
        let later = SystemTime::now() + Duration::from_secs(1000);
        File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        assert!(of(&path).changed_at().unwrap() > SystemTime::now() + Duration::from_secs(900));
    }
}

//! A folder that no other user can write to, and files in it.
//!
//! Files are opened relative to the open folder, so that later changes of its path have no effect. Symbolic links are
//! not followed, and a file that belongs to another user, or that others can write to, is refused: it may have been
//! planted to be trusted, or to redirect what is written.

use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;

use crate::IoError;

/// The permission bits that let other users write.
const OTHERS_WRITE: u32 = 0o022;

/// A folder that belongs to this user and that no other user can write to. Files in the folder are opened by name, and
/// symbolic links are not followed.
#[derive(Debug)]
pub struct PrivateFolder {
    folder: File,
    path: PathBuf,
}

impl PrivateFolder {
    /// Opens the folder at `path`. If it does not exist, creates it with access for this user only.
    ///
    /// # Errors
    /// Fails with [`IoError::NotPrivate`] if the folder belongs to another user, if other users can write to it, or if
    /// `path` is another user's symbolic link. Fails with [`IoError::Write`] or [`IoError::Open`] if a system call
    /// fails.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, IoError> {
        let path = path.as_ref().to_owned();
        let fault = |source| IoError::Open { path: path.clone(), source };
        let created = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        created.map_err(|source| IoError::Write { path: path.clone(), action: "create", source })?;
        let named = std::fs::symlink_metadata(&path).map_err(fault)?;
        if named.is_symlink() && ![0, user()].contains(&named.uid()) {
            let problem = format!("is a link that user {} has made; name the folder itself", named.uid());
            return Err(IoError::NotPrivate { path, problem });
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = File::from(rustix::fs::open(&path, flags, Mode::empty()).map_err(|errno| fault(errno.into()))?);
        let found = folder.metadata().map_err(fault)?;
        let problem = if found.uid() != user() {
            format!(
                "belongs to user {}, and this process runs as user {}; name a folder of its own",
                found.uid(),
                user()
            )
        } else if found.mode() & OTHERS_WRITE != 0 {
            "can be written to by other users; `chmod go-w` it, or name a folder in it that is yet to be made"
                .to_owned()
        } else {
            return Ok(Self { folder, path });
        };
        Err(IoError::NotPrivate { path, problem })
    }

    /// Returns the path by which the folder was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the names of all entries of the folder, in no particular order. Names that are not UTF-8 are left out.
    ///
    /// # Errors
    /// Fails with [`IoError::Open`] if a system call fails.
    pub fn names(&self) -> Result<Vec<String>, IoError> {
        let fault = |errno: Errno| IoError::Open { path: self.path.clone(), source: errno.into() };
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.folder).map_err(fault)? {
            // Names that are not UTF-8 are skipped, as no file that this crate creates has one.
            names.extend(entry.map_err(fault)?.file_name().to_str().ok().map(str::to_owned));
        }
        names.retain(|name| name != "." && name != "..");
        Ok(names)
    }

    /// Opens a file for reading and writing. Returns `None` if the file does not exist.
    ///
    /// # Errors
    /// Fails with [`IoError::NotPrivate`] if `name` is a symbolic link or not a regular file, or if the file belongs to
    /// another user, is writable by other users, or has more than one hard link. Fails with [`IoError::Open`] if a
    /// system call fails.
    pub fn open_file(&self, name: &str) -> Result<Option<File>, IoError> {
        match self.at(name, OFlags::empty()) {
            Err(IoError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    /// Opens a file for reading and writing. If it does not exist, creates an empty one.
    ///
    /// # Errors
    /// Fails for the reasons for which [`open_file`](Self::open_file) fails.
    pub fn open_or_create(&self, name: &str) -> Result<File, IoError> {
        loop {
            if let Some(file) = self.open_file(name)? {
                return Ok(file);
            }
            match self.create_new(name) {
                Err(IoError::Open { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {}
                outcome => return outcome,
            }
        }
    }

    /// Creates a file that only this user may read and write.
    ///
    /// # Errors
    /// Fails with [`IoError::Open`] if a system call fails, or if `name` already exists.
    pub fn create_new(&self, name: &str) -> Result<File, IoError> {
        self.at(name, OFlags::CREATE | OFlags::EXCL)
    }

    /// Writes a file atomically. A file or link that already has this name is replaced.
    ///
    /// # Errors
    /// Fails with [`IoError::Write`] or [`IoError::Open`] if a system call fails.
    pub fn write_whole(&self, name: &str, bytes: &[u8]) -> Result<(), IoError> {
        let partial = format!("{name}.partial");
        // A process that was killed may have left such a file. Of a link, this removes the link itself, not its target.
        self.remove(&partial)?;
        let mut file = self.create_new(&partial)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        let renamed = written.and_then(|()| Ok(renameat(&self.folder, &partial, &self.folder, name)?));
        let synced = renamed.and_then(|()| self.folder.sync_all());
        synced.map_err(|source| IoError::Write { path: self.path.join(name), action: "write", source })
    }

    /// Removes a file, if it exists.
    ///
    /// # Errors
    /// Fails with [`IoError::Write`] if the system fails.
    pub fn remove(&self, name: &str) -> Result<(), IoError> {
        match unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(IoError::Write { path: self.path.join(name), action: "remove", source: errno.into() }),
        }
    }

    fn at(&self, name: &str, flags: OFlags) -> Result<File, IoError> {
        let path = self.path.join(name);
        let refused = |problem: String| IoError::NotPrivate { path: path.clone(), problem };
        // Non-blocking, so that opening a pipe returns at once.
        let flags = flags | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.folder, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => File::from(file),
            Err(Errno::LOOP) => return Err(refused("is a link, which is not followed; remove it".to_owned())),
            Err(errno) => return Err(IoError::Open { path, source: errno.into() }),
        };
        let found = file.metadata().map_err(|source| IoError::Open { path: path.clone(), source })?;
        if !found.is_file() {
            return Err(refused("is no regular file; remove it".to_owned()));
        }
        if found.uid() != user() {
            let (owner, user) = (found.uid(), user());
            return Err(refused(format!("belongs to user {owner}, not to user {user}; remove it, if you know it")));
        }
        if found.mode() & OTHERS_WRITE != 0 {
            return Err(refused("can be written to by other users; remove it, and what was stored with it".to_owned()));
        }
        if found.nlink() > 1 {
            return Err(refused("has another name elsewhere, through which it can be changed; remove it".to_owned()));
        }
        Ok(file)
    }
}

/// Returns the effective user id of this process.
fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn refused<T: std::fmt::Debug>(outcome: Result<T, IoError>, why: &str) {
        let error = outcome.expect_err(why);
        assert!(matches!(error, IoError::NotPrivate { .. }), "{error}");
        assert!(error.to_string().contains(why), "{why:?} in {error}");
    }

    #[test]
    fn what_is_made_is_this_users_alone_and_what_others_can_write_to_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/b");
        PrivateFolder::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        for (rights, is_private) in [(0o755, true), (0o775, false), (0o757, false), (0o1777, false), (0o700, true)] {
            mode(&path, rights);
            let opened = PrivateFolder::open(&path);
            assert_eq!(opened.is_ok(), is_private, "{rights:o}");
            opened.err().into_iter().for_each(|error| refused(Err::<(), _>(error), "other users"));
        }
        // Links of the user's own are allowed, as they are used to move folders to another disk.
        symlink(&path, parent.path().join("link")).unwrap();
        PrivateFolder::open(parent.path().join("link")).unwrap();
    }

    #[test]
    fn what_is_another_users_is_refused() {
        if user() != 0 {
            // Only root can give files to other users.
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("kv");
        let folder = PrivateFolder::open(&path).unwrap();
        folder.write_whole("file", b"theirs").unwrap();
        chown(path.join("file"), Some(1234), None).unwrap();
        refused(folder.open_file("file"), "user 1234");
        refused(folder.open_or_create("file"), "user 1234");
        chown(&path, Some(1234), None).unwrap();
        refused(PrivateFolder::open(&path), "user 1234");
        let link = parent.path().join("link");
        symlink(parent.path().join("mine"), &link).unwrap();
        fs::create_dir(parent.path().join("mine")).unwrap();
        std::os::unix::fs::lchown(&link, Some(1234), None).unwrap();
        refused(PrivateFolder::open(&link), "link");
    }

    #[test]
    fn links_are_not_followed_and_nothing_is_written_through_them() {
        let parent = tempfile::tempdir().unwrap();
        let folder = PrivateFolder::open(parent.path().join("kv")).unwrap();
        let mine = parent.path().join("mine");
        fs::write(&mine, b"mine").unwrap();
        symlink(&mine, folder.path().join("file")).unwrap();
        symlink(&mine, folder.path().join("other.partial")).unwrap();
        symlink(parent.path().join("gone"), folder.path().join("dangling")).unwrap();
        fs::hard_link(&mine, folder.path().join("hard")).unwrap();
        for name in ["file", "dangling", "hard"] {
            refused(folder.open_file(name), "remove it");
            refused(folder.open_or_create(name), "remove it");
            assert!(folder.create_new(name).is_err());
        }
        fs::create_dir(folder.path().join("folder")).unwrap();
        assert!(folder.open_file("folder").is_err());
        folder.write_whole("other", b"whole").unwrap();
        // The name now belongs to a new file; the link's target is unchanged.
        folder.write_whole("file", b"whole").unwrap();
        assert_eq!(fs::read(&mine).unwrap(), b"mine");
        assert!(!parent.path().join("gone").exists());
        for name in ["file", "other"] {
            assert_eq!(fs::read(folder.path().join(name)).unwrap(), b"whole");
            assert_eq!(fs::symlink_metadata(folder.path().join(name)).unwrap().mode() & 0o777, 0o600);
        }
        mode(&folder.path().join("file"), 0o620);
        refused(folder.open_file("file"), "other users");
    }

    #[test]
    fn a_folder_stays_the_one_that_was_opened() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("kv");
        let folder = PrivateFolder::open(&path).unwrap();
        fs::rename(&path, parent.path().join("moved")).unwrap();
        fs::create_dir(&path).unwrap();
        folder.write_whole("file", b"here").unwrap();
        assert_eq!(folder.names().unwrap(), ["file"]);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        folder.remove("file").unwrap();
        folder.remove("file").unwrap();
        assert!(folder.open_file("file").unwrap().is_none());
    }
}

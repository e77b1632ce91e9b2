//! Folders for files that Interbed keeps for a user without being asked.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Returns the folder for persistent state: `XDG_STATE_HOME/interbed`, or `~/.local/state/interbed`. Returns `None` if
/// the user has no home folder.
pub fn state() -> Option<PathBuf> {
    ours("XDG_STATE_HOME", ".local/state")
}

/// Returns the folder for data that can be recreated and may be deleted at any time: `XDG_CACHE_HOME/interbed`, or
/// `~/.cache/interbed`. Returns `None` if the user has no home folder.
pub fn cache() -> Option<PathBuf> {
    ours("XDG_CACHE_HOME", ".cache")
}

/// Creates the folder of `file` and its missing parent folders. Only this user can access the new folders.
///
/// # Errors
/// Fails if a folder cannot be created.
pub fn create_private(file: &Path) -> io::Result<()> {
    match file.parent() {
        Some(folder) => DirBuilder::new().recursive(true).mode(0o700).create(folder),
        None => Ok(()),
    }
}

/// Returns Interbed's folder in the folder that `variable` names, or in `usual` in the user's home.
fn ours(variable: &str, usual: &str) -> Option<PathBuf> {
    // The XDG specification says that relative paths must be ignored.
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute(variable).or_else(|| Some(absolute("HOME")?.join(usual)))?;
    Some(folder.join("interbed"))
}

//! Folders in which a user's programs keep what nobody asked them to keep.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// What is of use later: `XDG_STATE_HOME/interbed`, or `~/.local/state/interbed`. `None` without a home.
pub fn state() -> Option<PathBuf> {
    ours("XDG_STATE_HOME", ".local/state")
}

/// What can be had again, and may be removed at any time: `XDG_CACHE_HOME/interbed`, or `~/.cache/interbed`. `None`
/// without a home.
pub fn cache() -> Option<PathBuf> {
    ours("XDG_CACHE_HOME", ".cache")
}

/// Makes the folder of `file`, and those above it, as far as they are missing, for this user alone.
///
/// # Errors
/// The system refuses.
pub fn create_private(file: &Path) -> io::Result<()> {
    match file.parent() {
        Some(folder) => DirBuilder::new().recursive(true).mode(0o700).create(folder),
        None => Ok(()),
    }
}

/// Our folder in that which `variable` names, or else in `usual` below the user's home.
fn ours(variable: &str, usual: &str) -> Option<PathBuf> {
    // By XDG's rules, a path that is not absolute is not to be used.
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute(variable).or_else(|| Some(absolute("HOME")?.join(usual)))?;
    Some(folder.join("interbed"))
}

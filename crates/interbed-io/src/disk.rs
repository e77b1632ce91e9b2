//! Free space on a disk.

use std::path::Path;

use crate::IoError;

/// Returns the number of bytes that an unprivileged user can still write to the file system of `path`. `path` must
/// exist.
///
/// # Errors
/// Fails with [`IoError::Open`] if the path is missing or the system call fails.
pub fn disk_bytes_free(path: impl AsRef<Path>) -> Result<u64, IoError> {
    let path = path.as_ref();
    let stat = rustix::fs::statvfs(path)
        .map_err(|errno| IoError::Open { path: path.to_owned(), source: std::io::Error::from(errno) })?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

//! Files with secrets, such as API keys.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Result;

use crate::failure::Advised;

/// Reads a file with secrets. `option` is the command-line option that gave the path, for error messages.
///
/// # Errors
/// Fails if the file cannot be read, or if it has more than `bytes_max` bytes.
pub fn read(option: &str, path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let failed = |error: io::Error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => "give the path of a file that is there",
            io::ErrorKind::PermissionDenied => "make the file readable for the user that the server runs as",
            _ => "give the path of a file",
        };
        let message = format!("cannot read {option} {}", path.display());
        match error.kind() {
            // Failures that starting again would not solve count as bad input.
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::IsADirectory => {
                Advised::input(format!("{message}: {error}"), hint)
            }
            _ => Advised::system(message, hint, error),
        }
    };
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Advised::input(
            format!("{option} {} is larger than {bytes_max} bytes, which is the limit", path.display()),
            "give the right file, or one with less in it",
        ));
    }
    Ok(bytes)
}

/// Logs a warning if every user of the machine can read the file.
pub fn warn_if_open(option: &str, path: &Path) {
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.mode() & 0o004 != 0) {
        tracing::warn!("{option} {} is readable for every user here; chmod 600 keeps it secret", path.display());
    }
}

//! Reading a model's small files whole: only regular files, and none that is longer than any honest one.

use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::path::Path;

/// Why a file was not read.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The file could not be read, or is not a regular file.
    Read(Error),
    /// The file is longer than the limit. The number is the file's length in bytes or, if the file grew beyond the
    /// limit while it was read, one more than the limit.
    TooLong(u64),
}

/// The content of a regular file of at most `limit` bytes; `None` where there is none.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, Fault> {
    // Asked before opening, because opening a pipe would wait for a writer.
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Fault::Read(error)),
    };
    if !metadata.is_file() {
        return Err(Fault::Read(Error::other("not a regular file")));
    }
    if metadata.len() > limit {
        return Err(Fault::TooLong(metadata.len()));
    }
    // The file may grow between the two calls.
    let mut content = Vec::new();
    File::open(path).and_then(|file| file.take(limit + 1).read_to_end(&mut content)).map_err(Fault::Read)?;
    let bytes = content.len() as u64;
    if bytes > limit { Err(Fault::TooLong(bytes)) } else { Ok(Some(content)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_within_the_limit_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert!(matches!(read(&path, 4), Ok(None)));
        std::fs::write(&path, b"four").unwrap();
        assert_eq!(read(&path, 4).unwrap().as_deref(), Some(&b"four"[..]));
        assert!(matches!(read(&path, 3), Err(Fault::TooLong(4))));
        assert!(matches!(read(dir.path(), 4), Err(Fault::Read(_))));
        // A device has no length, and this one no end.
        assert!(matches!(read(Path::new("/dev/zero"), 4), Err(Fault::Read(_))));
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(matches!(read(&pipe, 4), Err(Fault::Read(_))));
    }
}

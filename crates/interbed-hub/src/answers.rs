//! Parses and checks the responses of the Hub's API.

use serde::Deserialize;

use crate::digest::BlobId;
use crate::name::is_commit;

/// Longest path of a file in a repository, in bytes.
const PATH_MAX: usize = 1024;
/// Longest component of a path, in bytes: the limit of most file systems.
const PART_MAX: usize = 255;
/// Largest size of one file, in bytes; larger than any disk.
const SIZE_MAX: u64 = 1 << 50;

/// A file in a repository's list of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeFile {
    /// The file's path in the repository, which is [safe](safe_path).
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// Digest of the content.
    pub blob: BlobId,
}

#[derive(Deserialize)]
struct RawRevision {
    sha: String,
}

#[derive(Deserialize)]
struct RawEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    oid: String,
    #[serde(default)]
    size: u64,
    lfs: Option<RawLfs>,
}

#[derive(Deserialize)]
struct RawLfs {
    oid: String,
    size: u64,
}

/// Parses the commit in the response to `/api/models/R/revision/REV`.
pub(crate) fn commit(text: &[u8]) -> Result<String, String> {
    let RawRevision { sha } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if is_commit(&sha) { Ok(sha) } else { Err(format!("{sha:?} is no commit")) }
}

/// Parses the files in the response to `/api/models/R/tree/COMMIT`. Paths that could leave a folder are left out, and
/// returned as the second list.
pub(crate) fn tree(text: &[u8]) -> Result<(Vec<TreeFile>, Vec<String>), String> {
    let entries: Vec<RawEntry> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let (mut files, mut left_out) = (Vec::new(), Vec::new());
    for RawEntry { kind, path, oid, size, lfs } in entries {
        if kind != "file" {
            continue;
        }
        if !safe_path(&path) {
            left_out.push(path);
            continue;
        }
        let (blob, size) = match lfs {
            Some(lfs) => (BlobId::sha256(lfs.oid.strip_prefix("sha256:").unwrap_or(&lfs.oid)), lfs.size),
            None => (BlobId::git_sha1(&oid), size),
        };
        let blob = blob.ok_or_else(|| format!("{path} has a digest that is none"))?;
        if size > SIZE_MAX {
            return Err(format!("{path} has {size} bytes, but at most {SIZE_MAX} are accepted"));
        }
        files.push(TreeFile { path, size, blob });
    }
    Ok((files, left_out))
}

/// Returns whether a path from a server stays inside the folder that it is joined to, on every system. Such a path is
/// relative, has no `..`, is not too long, and has no characters that are special on some system.
pub fn safe_path(path: &str) -> bool {
    let is_safe = |part: &str| {
        !part.is_empty() && part.len() <= PART_MAX && part != "." && part != ".." && !part.ends_with(".incomplete")
    };
    path.len() <= PATH_MAX
        && !path.chars().any(|c| c.is_control() || matches!(c, '\\' | ':' | '\u{fffd}'))
        && path.split('/').all(is_safe)
}

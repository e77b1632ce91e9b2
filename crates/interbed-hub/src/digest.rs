//! Digests by which the Hub names contents.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use sha1::Sha1;
use sha2::Sha256;
// The two hash crates depend on different versions of the `Digest` trait.
use sha1::Digest as _;

/// Bytes of a file that are read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// The digest of a file's content. The cache stores the content under this digest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlobId {
    /// The SHA-256 of a large file's content.
    Sha256(String),
    /// The Git object id of a small file, which is the SHA-1 of a Git header followed by the content.
    GitSha1(String),
}

impl BlobId {
    /// Wraps the SHA-256 of a large file. Returns `None` if `digits` are not 64 lower-case hexadecimal digits.
    pub fn sha256(digits: &str) -> Option<Self> {
        is_hex(digits, 64).then(|| Self::Sha256(digits.to_owned()))
    }

    /// Wraps the Git object id of a small file. Returns `None` if `digits` are not 40 lower-case hexadecimal digits.
    pub fn git_sha1(digits: &str) -> Option<Self> {
        is_hex(digits, 40).then(|| Self::GitSha1(digits.to_owned()))
    }

    /// Reads the target of the symbolic link at `path`, and returns the digest that is the target's file name. Returns
    /// `None` if `path` is not a link into the `blobs` folder of a cache.
    pub fn of_link(path: &Path) -> Option<Self> {
        let target = fs::read_link(path).ok()?;
        let digits = target.file_name()?.to_str()?;
        let leads_there = target.parent().is_some_and(|folder| folder.ends_with("blobs"));
        leads_there.then(|| Self::sha256(digits).or_else(|| Self::git_sha1(digits)))?
    }

    /// Computes the digest of the file at `path`, with the hash function of `self`.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn digest_of(&self, path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let mut hasher = self.hasher(file.metadata()?.len());
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(hasher.finish()),
                Ok(count) => hasher.update(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the hexadecimal digits.
    pub fn digits(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::GitSha1(digits) => digits,
        }
    }

    /// Creates a hasher of the same kind as `self`. `bytes` is the length of the whole content in bytes. A Git object
    /// id depends on this length, because the Git header contains it.
    pub fn hasher(&self, bytes: u64) -> BlobHasher {
        match self {
            Self::Sha256(_) => BlobHasher::Sha256(Sha256::new()),
            Self::GitSha1(_) => BlobHasher::GitSha1(Sha1::new_with_prefix(format!("blob {bytes}\0"))),
        }
    }
}

/// A digest that is being computed.
#[derive(Debug, Clone)]
pub enum BlobHasher {
    /// Computes a [`BlobId::Sha256`].
    Sha256(Sha256),
    /// Computes a [`BlobId::GitSha1`].
    GitSha1(Sha1),
}

impl BlobHasher {
    /// Appends bytes to the hashed content.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::GitSha1(hash) => hash.update(bytes),
        }
    }

    /// Returns the digest of all appended bytes.
    pub fn finish(self) -> BlobId {
        match self {
            Self::Sha256(hash) => BlobId::Sha256(hex(&hash.finalize())),
            Self::GitSha1(hash) => BlobId::GitSha1(hex(&hash.finalize())),
        }
    }
}

fn is_hex(digits: &str, len: usize) -> bool {
    digits.len() == len && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

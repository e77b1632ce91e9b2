//! Hashes that identify a model, or data that was computed with it.

use std::time::UNIX_EPOCH;

use anyhow::Result;
use interbed_io::RandomAccessFile;

/// The number of bytes of each piece of a file that is hashed.
const SAMPLE_BYTES: u64 = 4096;

/// A hash over fields that are added one by one. The names and lengths of the fields are hashed too, so that different
/// lists of fields are never hashed as the same bytes.
#[derive(Default)]
pub struct Fingerprint(blake3::Hasher);

impl Fingerprint {
    /// Adds a field to the hash.
    pub fn field(&mut self, name: &str, value: &[u8]) {
        self.0.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
        self.0.update(&(value.len() as u64).to_le_bytes()).update(value);
    }

    /// Adds a file that may be too large to be read: its length, its time of modification, and the content of `pieces`
    /// pieces spread over it. `pieces` must be at least 2.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn file(&mut self, file: &dyn RandomAccessFile, pieces: u64) -> Result<()> {
        self.field("length", &file.len().to_le_bytes());
        let changed = std::fs::metadata(file.path()).ok().and_then(|data| data.modified().ok());
        let since = changed.and_then(|changed| changed.duration_since(UNIX_EPOCH).ok());
        self.field("changed", &since.unwrap_or_default().as_nanos().to_le_bytes());
        self.field("samples", &samples(file, pieces)?);
        Ok(())
    }

    /// Returns the hash of all fields.
    pub fn digest(&self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

/// Returns the hash of `pieces` pieces that are spread over `file`, including its beginning and its end.
fn samples(file: &dyn RandomAccessFile, pieces: u64) -> Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    let last = file.len().saturating_sub(SAMPLE_BYTES);
    let mut piece = vec![0; SAMPLE_BYTES.min(file.len()) as usize];
    for sample in 0..pieces {
        let offset = u128::from(last) * u128::from(sample) / u128::from(pieces - 1);
        file.read_exact_at(&mut piece, offset as u64)?;
        hasher.update(&piece);
    }
    Ok(*hasher.finalize().as_bytes())
}

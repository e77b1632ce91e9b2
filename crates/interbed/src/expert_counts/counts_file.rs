//! The file that stores how often a model's experts were used.
//!
//! ```text
//! "interbed counts 1\n"        18 bytes, with the version
//! fingerprint                32 bytes, of the model's files
//! mixture layers, experts    4 bytes each: what follows is as long as they say
//! uses [layer, expert]       4 bytes each, as f32
//! BLAKE3 of all before       32 bytes
//! ```
//!
//! Numbers are little-endian.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use interbed_io::{AtomicWriter, ExactFile, IoError, RandomAccessFile};
use interbed_weights::experts::{ArenaShape, SlabCounts};

const MAGIC: &[u8; 18] = b"interbed counts 1\n";
const FINGERPRINT_BYTES: usize = 32;
const HASH_BYTES: usize = 32;

/// The file with the expert counts of one model, which say how often each expert was used.
pub struct CountsFile {
    path: PathBuf,
    fingerprint: [u8; FINGERPRINT_BYTES],
    layers: usize,
    experts: usize,
}

impl CountsFile {
    /// Returns the file in `folder` for the model with this fingerprint. The file need not exist.
    pub fn new(folder: &Path, fingerprint: [u8; FINGERPRINT_BYTES], shape: &ArenaShape) -> Self {
        let name: String = fingerprint[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        let path = folder.join(name + ".counts");
        Self { path, fingerprint, layers: shape.layers(), experts: shape.experts() }
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the counts. Returns `None` if the file does not exist.
    ///
    /// # Errors
    /// Fails if the file cannot be read, is damaged, or belongs to another model or version.
    pub fn read(&self) -> Result<Option<SlabCounts>> {
        let file = match ExactFile::open(&self.path) {
            Ok(file) => file,
            Err(IoError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let head = self.head();
        let expected = head.len() + self.layers * self.experts * size_of::<f32>() + HASH_BYTES;
        // The length is checked first, so that no more bytes are read than counts of this model take.
        ensure!(file.len() == expected as u64, "it has {} bytes, but {expected} are expected", file.len());
        let mut bytes = vec![0; expected];
        file.read_exact_at(&mut bytes, 0)?;
        let (content, hash) = bytes.split_at(expected - HASH_BYTES);
        if blake3::hash(content).as_bytes() != hash {
            bail!("it is damaged");
        }
        let (own, uses) = content.split_at(head.len());
        ensure!(own == head, "it is another model's, or of another version");
        let uses = uses.chunks(self.experts * size_of::<f32>()).map(numbers);
        Ok(Some(SlabCounts { uses: uses.collect() }))
    }

    /// Replaces the file by one with `counts`.
    ///
    /// # Errors
    /// Fails if the file cannot be written. An older file then stays unchanged.
    pub fn write(&self, counts: &SlabCounts) -> Result<(), IoError> {
        let mut bytes = self.head();
        bytes.extend(counts.uses.iter().flatten().flat_map(|uses| uses.to_le_bytes()));
        let hash = blake3::hash(&bytes);
        bytes.extend(hash.as_bytes());
        let mut file = AtomicWriter::create(&self.path)?;
        file.append(&bytes)?;
        file.commit()
    }

    /// Checks that the file could be written, without writing it.
    ///
    /// # Errors
    /// Fails if the file could not be written.
    pub fn check_writable(&self) -> Result<(), IoError> {
        AtomicWriter::create(&self.path).map(drop)
    }

    /// Returns the bytes of the file before the counts.
    fn head(&self) -> Vec<u8> {
        let sizes = [self.layers as u32, self.experts as u32].map(u32::to_le_bytes).concat();
        [&MAGIC[..], &self.fingerprint, &sizes].concat()
    }
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&number| f32::from_le_bytes(number)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn shape(layers: usize, experts: usize) -> ArenaShape {
        ArenaShape::new(vec![4096; layers], experts, 1).expect("a shape")
    }

    #[test]
    fn what_is_written_is_read_and_a_file_is_what_its_page_says() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = CountsFile::new(folder.path(), [7; 32], &shape(2, 3));
        assert_eq!(file.read().expect("no file is no error"), None);
        let counts = SlabCounts { uses: vec![vec![0.5, 0.0, 2.0], vec![1e6, 1.0, 0.25]] };
        file.write(&counts).expect("it is written");
        assert_eq!(file.read().expect("it is read"), Some(counts));
        // Files of this version must stay readable, or users lose their counts.
        let mut bytes = b"interbed counts 1\n".to_vec();
        bytes.extend([[7u8; 32].as_slice(), &[2, 0, 0, 0], &[3, 0, 0, 0]].concat());
        bytes.extend([0.5f32, 0.0, 2.0, 1e6, 1.0, 0.25].iter().flat_map(|uses| uses.to_le_bytes()));
        bytes.extend(blake3::hash(&bytes).as_bytes());
        assert_eq!(fs::read(file.path()).expect("a file"), bytes);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing is left beside it");
    }

    #[test]
    fn what_is_not_whole_or_not_this_models_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = CountsFile::new(folder.path(), [7; 32], &shape(2, 3));
        file.write(&SlabCounts { uses: vec![vec![1.0; 3]; 2] }).expect("it is written");
        let whole = fs::read(file.path()).expect("a file");
        let refused = |bytes: &[u8], why: &str| {
            fs::write(file.path(), bytes).expect("it is written");
            let error = file.read().expect_err("it is refused").to_string();
            assert!(error.contains(why), "{why:?} in {error:?}");
        };
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            refused(&damaged, "damaged");
        }
        for length in 0..whole.len() {
            refused(&whole[..length], "bytes");
        }
        refused(&[&whole[..], b"!"].concat(), "bytes");
        for other in [CountsFile::new(folder.path(), [8; 32], &shape(2, 3)), {
            // The second file has as many counts as the first, but another shape.
            CountsFile::new(folder.path(), [7; 32], &shape(3, 2))
        }] {
            other.write(&SlabCounts { uses: vec![vec![1.0; other.experts]; other.layers] }).expect("it is written");
            refused(&fs::read(other.path()).expect("a file"), "another model's");
        }
    }

    #[test]
    fn what_is_no_file_is_refused_before_it_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = CountsFile::new(folder.path(), [7; 32], &shape(1, 1));
        fs::create_dir(file.path()).expect("a folder");
        assert!(file.read().is_err());
        fs::remove_dir(file.path()).expect("an empty folder");
        // A sparse file of one tebibyte takes no room on disk, but would take it in memory.
        fs::File::create(file.path()).and_then(|file| file.set_len(1 << 40)).expect("a long file");
        assert!(file.read().expect_err("it is refused").to_string().contains("1099511627776 bytes"));
    }
}

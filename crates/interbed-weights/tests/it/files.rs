//! Files for the tests: built byte by byte, so that every fault can be put into them.

use std::path::Path;
use std::sync::Arc;

use interbed_io::{ExactFile, IoError, RandomAccessFile};

/// Returns the bytes of a safetensors file with this header and `data_len` bytes of tensors, which count up modulo 251.
pub fn safetensors(header: &str, data_len: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend(pattern(data_len));
    bytes
}

/// Returns `len` bytes that tell where they were.
pub fn pattern(len: usize) -> impl Iterator<Item = u8> {
    (0..len).map(|index| (index % 251) as u8)
}

pub fn write(dir: &Path, name: &str, bytes: &[u8]) {
    std::fs::write(dir.join(name), bytes).unwrap();
}

/// A file in memory, which may claim another length than it has, or fail from some byte on.
pub struct MemoryFile {
    pub bytes: Vec<u8>,
    pub claimed_len: u64,
    pub fails_from: Option<u64>,
}

impl MemoryFile {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { claimed_len: bytes.len() as u64, bytes, fails_from: None }
    }

    pub fn shared(self) -> Arc<dyn RandomAccessFile> {
        Arc::new(self)
    }
}

impl RandomAccessFile for MemoryFile {
    fn path(&self) -> &Path {
        Path::new("memory.safetensors")
    }

    fn len(&self) -> u64 {
        self.claimed_len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), IoError> {
        let (path, wanted) = (self.path().to_owned(), buf.len());
        let end = offset.checked_add(wanted as u64).expect("callers check sizes before they read");
        if self.fails_from.is_some_and(|from| end > from) {
            let source = std::io::Error::other("the disk is on fire");
            return Err(IoError::Read { path, offset, wanted, got: 0, source });
        }
        let start = usize::try_from(offset).unwrap().min(self.bytes.len());
        let got = (self.bytes.len() - start).min(wanted);
        buf[..got].copy_from_slice(&self.bytes[start..start + got]);
        if got < wanted {
            return Err(IoError::Ended { path, offset, wanted, got, len_at_open: self.claimed_len });
        }
        Ok(())
    }
}

pub fn open(path: &Path) -> Arc<dyn RandomAccessFile> {
    Arc::new(ExactFile::open(path).unwrap())
}

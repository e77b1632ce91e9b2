//! Opens packed stores, and reads their small files.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use interbed_io::{IoError, RandomAccessFile};

use super::checksum::Checksum;
use super::error::StoreProblem;
use super::format::{Head, HeadFault, Manifest, PAGE_BYTES, is_store, read_head};
use crate::error::WeightError;
use crate::gguf::{GgufHeader, read_gguf};
use crate::safetensors::{ElementType, TensorRecord};

/// An open packed store. Opening a store reads and checks only its header and manifest.
#[derive(Clone)]
pub struct Store {
    file: Arc<dyn RandomAccessFile>,
    manifest: Arc<Manifest>,
    total_bytes: u64,
}

impl Store {
    /// Returns whether `file` begins with the magic number of a packed store, finished or not. A file that is too short
    /// for a magic number is not a store.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn is_at(file: &dyn RandomAccessFile) -> Result<bool, WeightError> {
        if file.len() < PAGE_BYTES {
            // A file cut off within its header still counts as a store, so that the error says "truncated".
            let mut begin = vec![0; file.len().min(8) as usize];
            file.read_exact_at(&mut begin, 0)?;
            return Ok(is_store(&begin));
        }
        let mut begin = [0; 8];
        file.read_exact_at(&mut begin, 0)?;
        Ok(is_store(&begin))
    }

    /// Reads and checks the header and manifest of a store. The bytes of groups are not read; `interbed verify` checks
    /// them.
    ///
    /// # Errors
    /// Fails with [`WeightError::Store`], which says what is wrong, if `file` is not a complete store, and with
    /// [`WeightError::Io`] if it cannot be read.
    pub fn open(file: Arc<dyn RandomAccessFile>) -> Result<Self, WeightError> {
        let refused = |problem| WeightError::Store { file: file.path().to_owned(), problem: Box::new(problem) };
        let Head { manifest, total_bytes } = read_head(file.as_ref()).map_err(|fault| match fault {
            HeadFault::Io(error) => WeightError::Io(error),
            HeadFault::Problem(problem) => refused(problem),
        })?;
        // A device may be larger than the store on it.
        let is_device = std::fs::metadata(file.path()).is_ok_and(|metadata| metadata.file_type().is_block_device());
        if !is_device && file.len() > total_bytes {
            return Err(refused(StoreProblem::TooLong { expected: total_bytes, found: file.len() }));
        }
        Ok(Self { file, manifest: Arc::new(manifest), total_bytes })
    }

    /// Returns the manifest, which says what the store holds, and where.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the size of the store in bytes. The device that holds the store may be larger.
    pub fn bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Returns the file or the device that holds the store.
    pub fn file(&self) -> &Arc<dyn RandomAccessFile> {
        &self.file
    }

    /// Returns the content of the small file `name`; `None` if the store has no such file.
    ///
    /// # Errors
    /// Fails with [`StoreProblem::RegionChecksum`] if the small file is damaged. Fails if it cannot be read.
    pub fn read_file(&self, name: &str) -> Result<Option<Vec<u8>>, WeightError> {
        let Some(file) = self.manifest.files.iter().find(|file| file.name == name) else { return Ok(None) };
        // Offset and length were checked against the store's size and the limit of small files.
        let mut content = vec![0; file.bytes.next_multiple_of(PAGE_BYTES) as usize];
        self.file.read_exact_at(&mut content, file.offset)?;
        let found = Checksum::of(&content);
        if found != file.checksum {
            let problem = StoreProblem::RegionChecksum {
                region: name.to_owned(),
                offset: file.offset,
                end: file.offset + content.len() as u64,
                expected: file.checksum,
                found,
            };
            return Err(WeightError::Store { file: self.file.path().to_owned(), problem: Box::new(problem) });
        }
        content.truncate(file.bytes as usize);
        Ok(Some(content))
    }

    /// Returns the header of a GGUF file that is stored as the small file `name`; `None` if the store has no such file.
    pub(crate) fn read_gguf(&self, name: &str) -> Result<Option<GgufHeader>, WeightError> {
        let Some(content) = self.read_file(name)? else { return Ok(None) };
        read_gguf(&InMemory { path: self.file.path(), content }).map(Some)
    }

    /// Returns the tensors of the store, in the order of their bytes.
    pub(crate) fn tensors(&self) -> Vec<TensorRecord> {
        let tensors = self.manifest.groups.iter().flat_map(|group| &group.tensors);
        let record = |tensor: &super::StoredTensor| TensorRecord {
            name: tensor.name.clone(),
            offset: tensor.offset,
            bytes: tensor.bytes,
            // Type and dimensions were checked together with the manifest.
            shape: tensor.shape.iter().map(|&dim| dim as usize).collect(),
            element_type: match tensor.known_dtype() {
                Ok(dtype) => ElementType::Known(dtype),
                Err(_) => ElementType::Other(tensor.dtype.clone()),
            },
        };
        tensors.map(record).collect()
    }
}

/// A file whose bytes are in memory.
pub(super) struct InMemory<'a> {
    pub(super) path: &'a Path,
    pub(super) content: Vec<u8>,
}

impl RandomAccessFile for InMemory<'_> {
    fn path(&self) -> &Path {
        self.path
    }

    fn len(&self) -> u64 {
        self.content.len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), IoError> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.content.get(offset..)).unwrap_or_default();
        let (path, wanted, got) = (self.path.to_owned(), buf.len(), rest.len().min(buf.len()));
        if got < wanted {
            return Err(IoError::Ended { path, offset, wanted, got, len_at_open: self.len() });
        }
        buf.copy_from_slice(&rest[..wanted]);
        Ok(())
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("file", &self.file.path()).field("bytes", &self.total_bytes).finish()
    }
}

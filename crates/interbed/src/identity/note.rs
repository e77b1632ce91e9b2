//! The file that notes a model's identity for later processes.
//!
//! ```text
//! "interbed identity 1\n"     20 bytes, with the version
//! claim                       32 bytes: what checksums said that came with the files; zeros if there were none
//! identity                    32 bytes
//! state of each file          48 bytes: length, inode, times
//! BLAKE3 of all before        32 bytes
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use interbed_io::{AtomicWriter, ExactFile, RandomAccessFile};

use crate::fingerprint::Fingerprint;
use crate::user_folders;

const MAGIC: &[u8; 20] = b"interbed identity 1\n";
const DIGEST_BYTES: usize = 32;

/// The identity of a model's weights, and the state of the model's files for which the identity is valid.
pub struct Note {
    pub claim: Option<[u8; DIGEST_BYTES]>,
    pub identity: [u8; DIGEST_BYTES],
    pub state: Vec<u8>,
}

/// The path of a note, and the current state of the model's files.
pub struct NoteFile {
    path: PathBuf,
    state: Vec<u8>,
}

impl NoteFile {
    /// Returns the note file in `folder` for a model with these `files`. `layout` is a hash of the places and types of
    /// the model's tensors. The note file need not exist. Returns `None` if changes to the model's files could not be
    /// detected.
    pub fn of(folder: &Path, files: &[Arc<dyn RandomAccessFile>], layout: [u8; DIGEST_BYTES]) -> Option<Self> {
        let (mut name, mut state) = (Fingerprint::default(), Vec::new());
        name.field("layout", &layout);
        for file in files {
            let identity = file.identity()?;
            identity.changed_at()?;
            state.extend(identity.to_bytes());
            name.field("file", std::fs::canonicalize(file.path()).ok()?.as_os_str().as_encoded_bytes());
        }
        let digits: String = name.digest()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        Some(Self { path: folder.join(digits + ".identity"), state })
    }

    /// Returns a description of the model's files, such as their lengths and times, which changes if a file changes.
    pub fn state(&self) -> &[u8] {
        &self.state
    }

    /// Reads the note. Returns `None` if it is missing or damaged.
    pub fn read(&self) -> Option<Note> {
        let file = ExactFile::open(&self.path).ok()?;
        let (begin, end) = (MAGIC.len() + 2 * DIGEST_BYTES, MAGIC.len() + 2 * DIGEST_BYTES + self.state.len());
        if file.len() != (end + DIGEST_BYTES) as u64 {
            return None;
        }
        let mut bytes = vec![0; end + DIGEST_BYTES];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let (content, hash) = bytes.split_at(end);
        if blake3::hash(content).as_bytes() != hash {
            return None;
        }
        let rest = content.strip_prefix(MAGIC)?;
        let (claim, rest) = rest.split_first_chunk()?;
        let (identity, _) = rest.split_first_chunk()?;
        let claim = Some(*claim).filter(|claim| *claim != [0; DIGEST_BYTES]);
        Some(Note { claim, identity: *identity, state: content[begin..].to_vec() })
    }

    /// Writes the note, in place of an older one.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write(&self, note: &Note) -> Result<()> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(note.claim.unwrap_or_default());
        bytes.extend(note.identity);
        bytes.extend(&note.state);
        let hash = blake3::hash(&bytes);
        bytes.extend(hash.as_bytes());
        user_folders::create_private(&self.path)?;
        let mut file = AtomicWriter::create(&self.path)?;
        file.append(&bytes)?;
        Ok(file.commit()?)
    }
}

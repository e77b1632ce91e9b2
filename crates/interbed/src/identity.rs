//! The identity of a model's weights: a hash of their content.
//!
//! The content is hashed while the weights are first read, or the identity is derived from checksums that came with
//! the files. A note keeps the identity for later processes, together with the state of the files. Only length, times
//! and inode of a file decide whether the note still holds. Checksums that came with files are trusted for the files
//! as they were first seen: if a file has changed since and its checksums have not, its content is hashed.

mod note;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use interbed_hub::BlobId;
use interbed_io::{ExactFile, IoError, RandomAccessFile};
use interbed_weights::{Catalog, ContentHash, GroupSpec};

use crate::fingerprint::Fingerprint;
use crate::user_folders;
use note::{Note, NoteFile};

/// The name of the folder for notes, in the user's cache folder.
const FOLDER: &str = "identity";

/// The maximum granularity of a file system's times. If a file changed less than this before it was read, no note is
/// written, because another change might leave its time unchanged.
const COARSEST_TIME: Duration = Duration::from_secs(2);

/// The time without reads after which the disk counts as idle. On a disk that is never idle, a piece is read after each
/// `PIECE_EACH`.
const IDLE: Duration = Duration::from_millis(100);
const PIECE_EACH: Duration = Duration::from_millis(100);

/// The interval between checks whether the disk is idle.
const LOOK_EACH: Duration = Duration::from_millis(10);

/// The maximum number of tries to read a piece, and the pause between two tries.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// The identity of the weights of an open model, as far as it is known.
#[derive(Clone)]
pub struct WeightsIdentity {
    state: State,
    files: Vec<Arc<dyn RandomAccessFile>>,
    note: Option<Arc<NoteFile>>,
    claim: Option<[u8; 32]>,
}

#[derive(Clone)]
enum State {
    /// The identity is known from a note or from checksums.
    Known([u8; 32]),
    /// The content is hashed while it is read. The time is when hashing began.
    Read(Arc<ContentHash>, SystemTime),
}

impl WeightsIdentity {
    /// Finds the identity of the weights that `specs` name, in a note that an earlier process has written, or from
    /// checksums that came with the files. If neither gives the identity, the weights are hashed as they are read.
    pub fn begin(catalog: &mut Catalog, specs: &[GroupSpec]) -> Self {
        Self::begin_in(user_folders::cache().map(|folder| folder.join(FOLDER)).as_deref(), catalog, specs)
    }

    /// Does the work of [`begin`](Self::begin), with notes in `folder`.
    fn begin_in(folder: Option<&std::path::Path>, catalog: &mut Catalog, specs: &[GroupSpec]) -> Self {
        let files = catalog.stored_files().to_vec();
        let claim = claim(catalog, specs);
        let note = folder.and_then(|folder| NoteFile::of(folder, &files, layout(catalog, specs))).map(Arc::new);
        let noted = note.as_ref().and_then(|note| note.read());
        let state = note.as_ref().map(|note| note.state());
        let known = match noted {
            Some(noted) if Some(noted.state.as_slice()) == state => Some(noted.identity),
            Some(noted) if claim.is_some() && noted.claim == claim => None,
            _ => claim.map(of_claim),
        };
        let state = match known {
            Some(identity) => State::Known(identity),
            None => State::Read(catalog.hash_content(specs), SystemTime::now()),
        };
        let this = Self { state, files, note, claim };
        if let (State::Known(identity), true) = (&this.state, claim.is_some()) {
            this.write_note(*identity);
        }
        this
    }

    /// Returns the identity, if it is known by now.
    ///
    /// # Errors
    /// Fails if the files have changed since they were opened.
    pub fn known(&self) -> Result<Option<[u8; 32]>, IoError> {
        let (identity, began) = match &self.state {
            State::Known(identity) => (*identity, None),
            State::Read(hash, began) => match of_content(hash) {
                Some(identity) => (identity, Some(began)),
                None => return Ok(None),
            },
        };
        check_unchanged(&self.files)?;
        let newest = self.files.iter().filter_map(|file| file.identity()?.changed_at()).max();
        if let (Some(began), Some(newest)) = (began, newest)
            && newest.checked_add(COARSEST_TIME).is_some_and(|settled| settled <= *began)
        {
            self.write_note(identity);
        }
        Ok(Some(identity))
    }

    /// Waits until the identity is known. Meanwhile, this function reads the weights that have not been read yet, but
    /// slowly while other threads read weights.
    ///
    /// # Errors
    /// Fails if five reads in a row failed, or the files have changed since they were opened.
    pub fn complete(&self) -> Result<[u8; 32]> {
        let (mut buffer, mut failures, mut last) = (Vec::new(), 0, Instant::now());
        loop {
            if let Some(identity) = self.known()? {
                return Ok(identity);
            }
            let State::Read(hash, _) = &self.state else { continue };
            // Other threads are reading the rest, or the disk is busy.
            if hash.idle_for() < IDLE && last.elapsed() < PIECE_EACH {
                std::thread::sleep(LOOK_EACH);
                continue;
            }
            last = Instant::now();
            match hash.read_next(&mut buffer) {
                Ok(true) => failures = 0,
                Ok(false) => std::thread::sleep(LOOK_EACH),
                Err(error) if failures + 1 == ATTEMPTS => return Err(error.into()),
                Err(_) => {
                    failures += 1;
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Hashes the rest of the weights without waiting for other readers of the disk, and returns the identity.
    ///
    /// # Errors
    /// Fails if a read failed, or the files have changed since they were opened.
    pub fn complete_now(&self) -> Result<[u8; 32]> {
        let mut buffer = Vec::new();
        if let State::Read(hash, _) = &self.state {
            while hash.read_next(&mut buffer)? {}
        }
        self.known()?.context("nothing is left to be hashed, but the hash is not known")
    }

    fn write_note(&self, identity: [u8; 32]) {
        let Some(file) = &self.note else { return };
        let note = Note { claim: self.claim, identity, state: file.state().to_vec() };
        if let Err(error) = file.write(&note) {
            tracing::debug!("what identifies the model is not noted, and found out again: {error:#}");
        }
    }
}

/// Checks that `files` have not changed since they were opened.
fn check_unchanged(files: &[Arc<dyn RandomAccessFile>]) -> Result<(), IoError> {
    for file in files {
        let Some(opened) = file.identity() else { continue };
        let now = ExactFile::open(file.path())?;
        if let Some(change) = now.identity().and_then(|now| opened.change_to(now)) {
            return Err(IoError::Changed { path: file.path().to_owned(), change });
        }
    }
    Ok(())
}

/// Returns the identity that follows from the content, or `None` until all of it has been hashed.
fn of_content(hash: &ContentHash) -> Option<[u8; 32]> {
    let mut fingerprint = Fingerprint::default();
    for (name, described, sum) in hash.tensors()? {
        fingerprint.field("tensor", name.as_bytes());
        fingerprint.field("type", described.as_bytes());
        fingerprint.field("content", &sum.to_le_bytes());
    }
    Some(fingerprint.digest())
}

/// Returns the identity that follows from checksums.
fn of_claim(claim: [u8; 32]) -> [u8; 32] {
    let mut fingerprint = Fingerprint::default();
    fingerprint.field("checksums", &claim);
    fingerprint.digest()
}

/// Returns a hash of the checksums that came with the files: a packed store has a checksum for each group, and files in
/// the Hub cache are named by their SHA-256. Returns `None` if a file has no checksum.
fn claim(catalog: &Catalog, specs: &[GroupSpec]) -> Option<[u8; 32]> {
    let mut fingerprint = Fingerprint::default();
    if let Some(store) = catalog.store() {
        for group in &store.manifest().groups {
            fingerprint.field("group", group.name.as_bytes());
            fingerprint.field("checksum", &group.checksum.0.to_le_bytes());
        }
    } else {
        for file in catalog.stored_files() {
            let BlobId::Sha256(digits) = BlobId::of_link(file.path())? else { return None };
            fingerprint.field("file", digits.as_bytes());
        }
    }
    fingerprint.field("layout", &layout(catalog, specs));
    Some(fingerprint.digest())
}

/// Returns a hash of the places and types of the tensors that `specs` name.
fn layout(catalog: &Catalog, specs: &[GroupSpec]) -> [u8; 32] {
    let mut fingerprint = Fingerprint::default();
    for tensor in specs.iter().flat_map(|group| &group.tensors) {
        fingerprint.field("tensor", tensor.name.as_bytes());
        fingerprint.field("place", format!("{:?}", catalog.get(&tensor.name)).as_bytes());
    }
    fingerprint.digest()
}

#[cfg(test)]
mod tests;

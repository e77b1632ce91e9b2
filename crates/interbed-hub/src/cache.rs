//! Manages the cache of downloaded models, in the layout of `huggingface_hub`. Contents are named by their digests, and
//! links lead to them by commit and path.
//!
//! ```text
//! models--OWNER--NAME/blobs/DIGEST               the content
//! models--OWNER--NAME/blobs/DIGEST.incomplete    the first bytes of an unfinished download; the file's length is its
//! progress
//! models--OWNER--NAME/refs/REVISION              the commit, as text
//! models--OWNER--NAME/snapshots/COMMIT/PATH      a relative link to ../../blobs/DIGEST
//! .locks/models--OWNER--NAME/DIGEST.lock         locked during a download
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::answers::TreeFile;
use crate::digest::BlobId;
use crate::error::HubProblem;
use crate::name::{HubName, is_commit, is_revision};

/// Deepest nesting of folders in a snapshot that is searched.
const DEPTH_MAX: usize = 6;
/// Maximum number of files of a snapshot that are listed.
const FILES_MAX: usize = 100_000;

/// Largest file other than weights, in bytes.
pub(crate) const SMALL_BYTES_MAX: u64 = 256 << 20;

/// A cache of models from the Hub, in the layout of `huggingface_hub`.
#[derive(Debug, Clone)]
pub struct HubCache {
    root: PathBuf,
}

/// One commit of a model in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedModel {
    /// Name of the model as `org/name`.
    pub name: String,
    /// Commit hash, or an empty text if the cache only has unfinished downloads of the model.
    pub commit: String,
    /// Revisions (branches or tags) that pointed to this commit when they were last resolved.
    pub revisions: Vec<String>,
    /// Folder with the files of this commit.
    pub path: PathBuf,
    /// Folder with all files of the model in the cache, for all commits.
    pub folder: PathBuf,
    /// Number of files of this commit.
    pub files: usize,
    /// Total size of the files of this commit in bytes.
    pub bytes: u64,
    /// Total size of the model's unfinished downloads in bytes, for all commits.
    pub unfinished: u64,
    /// Paths of files in this commit whose content is missing from the cache.
    pub broken: Vec<String>,
}

impl HubCache {
    /// Returns the cache in the folder `root`, which need not exist.
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Returns the folder of the cache.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the folder of a model.
    pub fn folder(&self, name: &HubName) -> PathBuf {
        self.root.join(folder_name(name))
    }

    /// Returns the path at which the cache stores the content of a file once it is complete.
    pub fn blob(&self, name: &HubName, blob: &BlobId) -> PathBuf {
        self.folder(name).join("blobs").join(blob.digits())
    }

    /// Returns the path at which the cache stores the content of a file during its download.
    pub fn incomplete(&self, name: &HubName, blob: &BlobId) -> PathBuf {
        self.folder(name).join("blobs").join(format!("{}.incomplete", blob.digits()))
    }

    /// Returns the path of the lock file that is locked while the content of a file is downloaded.
    pub fn lock(&self, name: &HubName, blob: &BlobId) -> PathBuf {
        self.root.join(".locks").join(folder_name(name)).join(format!("{}.lock", blob.digits()))
    }

    /// Returns the folder with the files of a commit.
    pub fn snapshot(&self, name: &HubName, commit: &str) -> PathBuf {
        self.folder(name).join("snapshots").join(commit)
    }

    /// Returns the commit that a revision pointed to when it was last resolved. Returns `None` if the cache does not
    /// have the revision.
    pub fn commit(&self, name: &HubName, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return self.snapshot(name, revision).is_dir().then(|| revision.to_owned());
        }
        let path = self.folder(name).join("refs").join(revision);
        let text =
            fs::metadata(&path).ok().filter(|found| found.len() < 256).and_then(|_| fs::read_to_string(&path).ok())?;
        let commit = text.trim();
        is_commit(commit).then(|| commit.to_owned())
    }

    /// Records the commit that a revision points to.
    ///
    /// # Errors
    /// Fails if the cache cannot be written.
    pub fn set_commit(&self, name: &HubName, revision: &str, commit: &str) -> Result<(), HubProblem> {
        if is_commit(revision) || self.commit(name, revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.folder(name).join("refs").join(revision);
        create_folder_of(&path)?;
        let new = temporary(&path);
        fs::write(&new, commit).map_err(HubProblem::file("write", &new))?;
        fs::rename(&new, &path).map_err(HubProblem::file("write", &path))
    }

    /// Links the path of a file in a commit to the content of that file. The cache must already have the content.
    ///
    /// # Errors
    /// Fails if the cache cannot be written.
    pub fn link(&self, name: &HubName, commit: &str, file: &TreeFile) -> Result<(), HubProblem> {
        let path = self.snapshot(name, commit).join(&file.path);
        create_folder_of(&path)?;
        let up = "../".repeat(2 + file.path.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{}", file.blob.digits()));
        if fs::read_link(&path).is_ok_and(|found| found == target) {
            return Ok(());
        }
        let new = temporary(&path);
        let _ = fs::remove_file(&new);
        if std::os::unix::fs::symlink(&target, &new).is_err() {
            // A file system without links gets a copy, which is what other programs do, too.
            let blob = self.blob(name, &file.blob);
            fs::copy(&blob, &new).map_err(HubProblem::file("copy", &blob))?;
        }
        fs::rename(&new, &path).map_err(HubProblem::file("create", &path))
    }

    /// Returns the files of a commit in the cache. The first value has the size in bytes for each path. The second
    /// value lists the paths of files whose content is missing from the cache.
    pub fn files(&self, name: &HubName, commit: &str) -> (BTreeMap<String, u64>, Vec<String>) {
        let (mut files, mut broken) = (BTreeMap::new(), Vec::new());
        let root = self.snapshot(name, commit);
        walk(&root, "", DEPTH_MAX, &mut |path, found| match found {
            Some(metadata) => {
                files.insert(path, metadata.len());
            }
            None => broken.push(path),
        });
        (files, broken)
    }

    /// Lists all models in the cache, sorted by name and commit.
    ///
    /// # Errors
    /// Fails if the cache exists and cannot be read.
    pub fn list(&self) -> Result<Vec<CachedModel>, HubProblem> {
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(HubProblem::file("read", &self.root)(error)),
        };
        let mut models = Vec::new();
        for entry in entries.flatten() {
            let text = entry.file_name().to_string_lossy().into_owned();
            let named = text.strip_prefix("models--").and_then(|rest| HubName::read(&rest.replacen("--", "/", 1)));
            if let Some(name) = named.filter(|_| entry.path().is_dir()) {
                models.extend(self.of_model(&name));
            }
        }
        models.sort_by(|a: &CachedModel, b| (&a.name, &a.commit).cmp(&(&b.name, &b.commit)));
        Ok(models)
    }

    fn of_model(&self, name: &HubName) -> Vec<CachedModel> {
        let folder = self.folder(name);
        let mut refs: BTreeMap<String, Vec<String>> = BTreeMap::new();
        walk(&folder.join("refs"), "", DEPTH_MAX, &mut |revision, _| {
            if let Some(commit) = is_revision(&revision).then(|| self.commit(name, &revision)).flatten() {
                refs.entry(commit).or_default().push(revision);
            }
        });
        let mut unfinished = 0;
        walk(&folder.join("blobs"), "", 1, &mut |blob, found| {
            if blob.ends_with(".incomplete") {
                unfinished += found.map_or(0, |found| found.len());
            }
        });
        let commits = fs::read_dir(folder.join("snapshots")).into_iter().flatten().flatten();
        let mut models: Vec<CachedModel> = commits
            .filter_map(|entry| {
                let commit = entry.file_name().into_string().ok().filter(|commit| is_commit(commit))?;
                let (mut files, mut bytes, mut broken) = (0, 0, Vec::new());
                let mut seen = BTreeSet::new();
                walk(&entry.path(), "", DEPTH_MAX, &mut |path, found| match found {
                    Some(found) => {
                        files += 1;
                        // Two paths may link to one content, whose bytes count once.
                        bytes += if seen.insert((found.dev(), found.ino())) { found.len() } else { 0 };
                    }
                    None => broken.push(path),
                });
                let revisions = refs.remove(&commit).unwrap_or_default();
                let (name, path, folder) = (name.repository(), entry.path(), folder.clone());
                Some(CachedModel { name, commit, revisions, path, folder, files, bytes, unfinished, broken })
            })
            .collect();
        if models.is_empty() && unfinished > 0 {
            let (name, path) = (name.repository(), folder.clone());
            let (commit, revisions, broken) = (String::new(), Vec::new(), Vec::new());
            models.push(CachedModel { name, commit, revisions, path, folder, files: 0, bytes: 0, unfinished, broken });
        }
        models
    }
}

/// Creates the folder that contains `path`, with its parents.
pub(crate) fn create_folder_of(path: &Path) -> Result<(), HubProblem> {
    let Some(folder) = path.parent() else { return Ok(()) };
    fs::create_dir_all(folder).map_err(HubProblem::file("create", folder))
}

/// Returns whether the file at `path` has the size of `file`.
pub(crate) fn is_as_long(path: &Path, file: &TreeFile) -> bool {
    fs::metadata(path).is_ok_and(|found| found.len() == file.size)
}

/// Returns whether the file at `path` has the content of `file`. The digests of small files are compared, because a
/// crash of the machine may leave a file of the right size with wrong content. Only the sizes of large files are
/// compared.
pub(crate) fn is_whole(path: &Path, file: &TreeFile) -> bool {
    is_as_long(path, file)
        && (file.size > SMALL_BYTES_MAX || file.blob.digest_of(path).is_ok_and(|found| found == file.blob))
}

/// Returns a name beside `path` that no other process uses. The name is random, because processes in different
/// containers that share a cache may have the same process id.
fn temporary(path: &Path) -> PathBuf {
    path.with_file_name(format!(".{:016x}.new", RandomState::new().build_hasher().finish()))
}

fn folder_name(name: &HubName) -> String {
    format!("models--{}--{}", name.owner, name.model)
}

/// Calls `found` for every file below a folder, with the path relative to the folder and the metadata. The metadata is
/// `None` for a dangling link.
fn walk(folder: &Path, prefix: &str, depth: usize, found: &mut dyn FnMut(String, Option<fs::Metadata>)) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().take(FILES_MAX) {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        match fs::metadata(entry.path()) {
            Ok(metadata) if metadata.is_dir() => {
                // Links to folders are not followed, because they could form a cycle.
                if depth > 1 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    walk(&entry.path(), &path, depth - 1, found);
                }
            }
            Ok(metadata) => found(path, Some(metadata)),
            Err(_) => found(path, None),
        }
    }
}

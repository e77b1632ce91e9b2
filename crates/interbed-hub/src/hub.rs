//! Resolves a model's name to files, which are in the cache or are downloaded.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use interbed_io::{ExactFile, IoError, RandomAccessFile, disk_bytes_free};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::answers::TreeFile;
use crate::cache::{HubCache, SMALL_BYTES_MAX, is_as_long, is_whole};
use crate::choice::{ChoiceProblem, FileChoice, FileWish, INDEX, SINGLE, choose, shards_of};
use crate::digest::BlobId;
use crate::download::{CONNECTIONS, Download};
use crate::error::{HubError, HubProblem};
use crate::listing::{commit_of, explain, tree_of};
use crate::name::HubName;
use crate::patience::HubPatience;
use crate::remote_file::RemoteFile;
use crate::settings::HubSettings;
use crate::web::Web;

/// Threads for network requests.
const WORKERS: usize = 2;
/// Small files that are downloaded at a time.
const SMALL_AT_A_TIME: usize = 4;
/// The file that describes the model that weights belong to.
const CONFIG: &str = "config.json";
/// Longest header of a safetensors file that is read ahead, in bytes.
const HEADER_BYTES_MAX: u64 = 32 << 20;
/// Maximum size of all headers of a model that are read ahead, in bytes.
const HEADERS_BYTES_MAX: u64 = 512 << 20;
/// Bytes of the disk that are left free.
const ROOM_LEFT: u64 = 64 << 20;

/// A client of the Hub with a local cache. In offline mode, it uses only the cache.
pub struct Hub {
    cache: HubCache,
    /// The client of the Hub; `None` if only the cache may be used.
    web: Option<Arc<Web>>,
    runtime: Arc<Runtime>,
}

impl Hub {
    /// Creates a client with default timeouts. Sends no request.
    ///
    /// # Errors
    /// Fails if the HTTP client cannot be set up or the system cannot start threads.
    pub fn open(settings: &HubSettings) -> Result<Self, HubProblem> {
        Self::open_with(settings, HubPatience::default())
    }

    /// Creates a client with the given timeouts. Sends no request.
    ///
    /// # Errors
    /// Fails if the HTTP client cannot be set up or the system cannot start threads.
    pub fn open_with(settings: &HubSettings, patience: HubPatience) -> Result<Self, HubProblem> {
        let cache = HubCache::new(settings.cache.clone());
        let web = match settings.offline {
            true => None,
            false => Some(Arc::new(Web::new(&settings.endpoint, settings.token.as_deref(), patience)?)),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build();
        let runtime = Arc::new(runtime.map_err(HubProblem::file("start threads for", &settings.cache))?);
        Ok(Self { cache, web, runtime })
    }

    /// Returns the cache of downloaded files.
    pub fn cache(&self) -> &HubCache {
        &self.cache
    }

    /// Looks up a model on the Hub and chooses which of its files to use. In offline mode, or if the Hub is
    /// unavailable, looks up the model in the cache instead. Downloads no file except the safetensors index, and only
    /// if the model needs the index and the cache lacks it.
    ///
    /// # Errors
    /// Fails if the model, revision or quantization does not exist, if access is denied, or if a response is invalid.
    /// In offline mode, or if the Hub is unavailable, fails if the cache lacks the model or a cached file is damaged.
    pub fn find(&self, name: &HubName) -> Result<HubModel<'_>, HubError> {
        let error = |problem| HubError { model: name.repository(), problem };
        let cached = || {
            let found = self.find_cached(name)?;
            check_undamaged(&found.folder(), &found.choice.small)?;
            Ok(found)
        };
        let Some(web) = &self.web else { return cached().map_err(error) };
        match self.find_on(web, name) {
            Err(problem) if problem.is_unavailable() => {
                let Ok(cached) = cached() else { return Err(error(problem)) };
                tracing::warn!("{problem}; taking {} as it is in the cache", name.repository());
                Ok(cached)
            }
            found => found.map_err(error),
        }
    }

    /// Looks up a model in the cache only. Does not verify the digests of its files.
    ///
    /// # Errors
    /// Fails if the model is not in the cache, or if its safetensors index cannot be read.
    pub fn find_here(&self, name: &HubName) -> Result<HubModel<'_>, HubError> {
        self.find_cached(name).map_err(|problem| HubError { model: name.repository(), problem })
    }

    fn find_on(&self, web: &Arc<Web>, name: &HubName) -> Result<HubModel<'_>, HubProblem> {
        let commit = self.runtime.block_on(commit_of(web, name))?;
        let tree = self.runtime.block_on(tree_of(web, name, &commit))?;
        let paths: Vec<&str> = tree.iter().map(|file| file.path.as_str()).collect();
        let mut choice = choose(&paths, FileWish { tag: name.tag.as_deref(), shards: None })?;
        let file = |path: &str| tree.iter().find(|file| file.path == path).cloned();
        if !choice.is_gguf && !paths.contains(&CONFIG) {
            return Err(ChoiceProblem::NoConfig.into());
        }
        if let Some(index) = choice.unread_index.take().as_deref().and_then(file) {
            let shards = self.shards_on(web, name, &commit, &index)?;
            choice = choose(&paths, FileWish { tag: None, shards: Some(&shards) })?;
        }
        let files: Vec<TreeFile> = choice.small.iter().chain(&choice.weights).filter_map(|path| file(path)).collect();
        let snapshot = self.cache.snapshot(name, &commit);
        let is_here = |file: &TreeFile| match choice.small.contains(&file.path) {
            true => is_whole(&snapshot.join(&file.path), file),
            false => is_as_long(&snapshot.join(&file.path), file),
        };
        let missing = files.iter().filter(|file| !is_here(file)).cloned().collect();
        Ok(HubModel { hub: self, name: name.clone(), commit, choice, files, missing })
    }

    /// Returns the files that the index of the weights names. Downloads the index only if the snapshot lacks it,
    /// because a cache that has the index may be read-only.
    fn shards_on(
        &self,
        web: &Arc<Web>,
        name: &HubName,
        commit: &str,
        index: &TreeFile,
    ) -> Result<BTreeSet<String>, HubProblem> {
        check_small(index)?;
        let path = self.cache.snapshot(name, commit).join(&index.path);
        let download = Download { web, runtime: &self.runtime, cache: &self.cache, name, commit };
        if !is_whole(&path, index) {
            download.fetch(index, &|_| ()).map_err(|problem| explain(web, name, &index.path, problem))?;
        }
        read_index(&path, |message| HubProblem::BadAnswer { address: download.source(index).address(), message })
    }

    /// Looks up a model in the cache.
    fn find_cached(&self, name: &HubName) -> Result<HubModel<'_>, HubProblem> {
        let lacks = |missing: String| HubProblem::NotCached { missing, cache: self.cache.root().to_owned() };
        let revision = name.revision();
        if !self.cache.folder(name).is_dir() {
            return Err(lacks("it is".into()));
        }
        let commit = self.cache.commit(name, revision).ok_or_else(|| lacks(format!("its revision {revision} is")))?;
        let (found, broken) = self.cache.files(name, &commit);
        // Links to deleted contents count, so that the choice is the same as with the Hub.
        let paths: Vec<&str> = found.keys().chain(&broken).map(String::as_str).collect();
        let check_there = |chosen: &[String]| {
            let gone: Vec<&str> = chosen.iter().filter(|path| broken.contains(path)).map(String::as_str).collect();
            if gone.is_empty() { Ok(()) } else { Err(lacks(format!("the contents of {} are", gone.join(", ")))) }
        };
        let lacking = |problem| match problem {
            ChoiceProblem::Missing { missing, by } => lacks(format!("{missing}, which {by} names, is")),
            ChoiceProblem::NoWeights { .. } => lacks("its weights are".into()),
            ChoiceProblem::NoSuchTag { tag, available } if available.is_empty() => {
                lacks(format!("a GGUF file for {tag:?} is"))
            }
            ChoiceProblem::NoSuchTag { tag, available } => {
                lacks(format!("a GGUF file for {tag:?} is, but for {},", available.join(", ")))
            }
            ChoiceProblem::NoConfig => lacks(format!("its {CONFIG} is")),
        };
        let mut choice = choose(&paths, FileWish { tag: name.tag.as_deref(), shards: None }).map_err(lacking)?;
        check_there(&choice.small)?;
        if let Some(index) = choice.unread_index.take() {
            let path = self.cache.snapshot(name, &commit).join(index);
            let shards = read_index(&path, |message| HubProblem::DamagedInCache { path: path.clone(), message })?;
            choice = choose(&paths, FileWish { tag: None, shards: Some(&shards) }).map_err(lacking)?;
        }
        check_there(&choice.weights)?;
        if !choice.is_gguf && !found.contains_key(CONFIG) {
            return Err(lacking(ChoiceProblem::NoConfig));
        }
        Ok(HubModel { hub: self, name: name.clone(), commit, choice, files: Vec::new(), missing: Vec::new() })
    }
}

/// A model on the Hub or in the cache, with its chosen files.
pub struct HubModel<'a> {
    hub: &'a Hub,
    /// The name by which the model was requested.
    pub name: HubName,
    /// The commit that the revision points to.
    pub commit: String,
    choice: FileChoice,
    /// The chosen files; empty if the model was found in the cache only.
    files: Vec<TreeFile>,
    /// The chosen files that the snapshot lacks.
    missing: Vec<TreeFile>,
}

impl HubModel<'_> {
    /// Returns the path from which the model can be opened once it is downloaded. This is the first file of a GGUF
    /// model, or the folder of any other model.
    pub fn path(&self) -> PathBuf {
        match self.choice.weights.first().filter(|_| self.choice.is_gguf) {
            Some(first) => self.folder().join(first),
            None => self.folder(),
        }
    }

    /// Returns the folder of the model's files in the cache.
    pub fn folder(&self) -> PathBuf {
        self.hub.cache.snapshot(&self.name, &self.commit)
    }

    /// Returns whether the weights are GGUF.
    pub fn is_gguf(&self) -> bool {
        self.choice.is_gguf
    }

    /// Returns the path that the safetensors index has in the cache, even if the index is not downloaded yet. Returns
    /// `None` if the model has no index or its only weight file is `model.safetensors`.
    pub fn index(&self) -> Option<PathBuf> {
        let takes_index = !self.choice.is_gguf && self.choice.weights != [SINGLE];
        let has_index = self.choice.small.iter().any(|path| path == INDEX);
        (takes_index && has_index).then(|| self.folder().join(INDEX))
    }

    /// Returns whether all chosen files are in the cache. Always returns `true` if the model was looked up only in the
    /// cache.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// Returns the total size of the chosen files in bytes. Returns 0 if the model was looked up only in the cache.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// Returns the number of chosen files. Returns 0 if the model was looked up only in the cache.
    pub fn num_files(&self) -> usize {
        self.files.len()
    }

    /// Returns the number of bytes that still have to be downloaded.
    pub fn bytes_missing(&self) -> u64 {
        let (cache, name) = (&self.hub.cache, &self.name);
        let len = |path: PathBuf| fs::metadata(path).map_or(0, |found| found.len());
        let missing = self.missing.iter().map(|file| match len(cache.blob(name, &file.blob)) {
            found if found == file.size => 0,
            _ => file.size - len(cache.incomplete(name, &file.blob)).min(file.size),
        });
        missing.sum()
    }

    /// Returns the number of free bytes on the disk of the cache; `None` if it is unknown.
    pub fn bytes_free(&self) -> Option<u64> {
        let there = self.hub.cache.root().ancestors().find(|folder| folder.is_dir())?;
        disk_bytes_free(there).ok()
    }

    /// Checks that the disk will have at least 64 MiB free after the missing files are downloaded. Succeeds if nothing
    /// is missing or the free space is unknown.
    ///
    /// # Errors
    /// Fails with [`HubProblem::NoRoom`] if the disk has too little free space.
    pub fn check_room(&self) -> Result<(), HubError> {
        let (needed, folder) = (self.bytes_missing(), self.hub.cache.root().to_owned());
        match self.bytes_free() {
            Some(free) if needed > 0 && needed.saturating_add(ROOM_LEFT) > free => {
                Err(self.error(HubProblem::NoRoom { needed, free, folder }))
            }
            _ => Ok(()),
        }
    }

    /// Opens the weight files in shard order, so that their headers can be read. A file that is not in the cache is
    /// read from the Hub, without downloading it as a whole.
    ///
    /// # Errors
    /// Fails if the network fails, access is denied, or the cache cannot be read.
    pub fn headers(&self) -> Result<Vec<Arc<dyn RandomAccessFile>>, HubError> {
        let (mut files, mut remote): (Vec<Arc<dyn RandomAccessFile>>, Vec<Arc<RemoteFile>>) = Default::default();
        for path in &self.choice.weights {
            let lies = self.folder().join(path);
            let missing = self.missing.iter().find(|file| file.path == *path);
            match (missing, self.hub.web.as_ref()) {
                (Some(file), Some(web)) => {
                    let source = self.download(web).source(file);
                    let file = Arc::new(RemoteFile::new(source, self.hub.runtime.clone(), lies));
                    remote.push(file.clone());
                    files.push(file);
                }
                _ => {
                    let file = ExactFile::open(&lies).map_err(|error| self.error(unreadable(error, &lies)))?;
                    files.push(Arc::new(file));
                }
            }
        }
        // A refusal is reported here, where it can be explained, and not only when a header is parsed.
        let read = self.hub.runtime.block_on(read_headers(remote, self.choice.is_gguf));
        read.map_err(|(path, problem)| self.explain(&path, problem))?;
        Ok(files)
    }

    /// Downloads the missing files except for the weights.
    ///
    /// # Errors
    /// Fails for the reasons for which [`fetch`](Self::fetch) fails.
    pub fn fetch_small(&self) -> Result<(), HubError> {
        let is_small = |file: &&TreeFile| self.choice.small.contains(&file.path);
        self.fetch_beside(&self.missing.iter().filter(is_small).collect::<Vec<_>>(), &|_| ())
    }

    /// Downloads only `config.json`, if it is missing. Does nothing for a GGUF model.
    ///
    /// # Errors
    /// Fails for the reasons for which [`fetch`](Self::fetch) fails.
    pub fn fetch_config(&self) -> Result<(), HubError> {
        let is_config = |file: &&TreeFile| !self.choice.is_gguf && file.path == CONFIG;
        self.fetch_beside(&self.missing.iter().filter(is_config).collect::<Vec<_>>(), &|_| ())
    }

    /// Downloads all missing files and verifies their digests. Reports progress by calling `tell` with the number of
    /// bytes by which the progress has increased since the last call. The first call reports the size of the files that
    /// are already in the cache. A negative number means that downloaded bytes were discarded.
    ///
    /// # Errors
    /// Fails if the network fails, access is denied, the disk is full, or a digest differs. A file with a wrong digest
    /// is deleted. All other downloaded bytes are kept, so that the next attempt can resume.
    pub fn fetch(&self, tell: &(dyn Fn(i64) + Sync)) -> Result<(), HubError> {
        let is_there = |file: &&TreeFile| !self.missing.contains(file);
        tell(self.files.iter().filter(is_there).map(|file| file.size).sum::<u64>() as i64);
        let (small, weights): (Vec<&TreeFile>, Vec<&TreeFile>) =
            self.missing.iter().partition(|file| self.choice.small.contains(&file.path));
        self.fetch_beside(&small, tell)?;
        if let Some(web) = &self.hub.web {
            let download = self.download(web);
            for file in weights {
                download.fetch(file, tell).map_err(|problem| self.explain(&file.path, problem))?;
            }
        }
        self.settle();
        Ok(())
    }

    /// Records in the cache which commit the revision refers to, because offline lookups need this record.
    /// [`fetch`](Self::fetch) calls this method. Call it directly if all files are already in the cache. If the record
    /// cannot be written, for instance to a read-only cache, a warning is logged.
    pub fn settle(&self) {
        if self.files.is_empty() {
            return;
        }
        let revision = self.name.revision();
        if let Err(problem) = self.hub.cache.set_commit(&self.name, revision, &self.commit) {
            tracing::warn!("{problem}; offline, {} will not be found at {revision}", self.name.repository());
        }
    }

    /// Downloads files other than weights, several at a time.
    fn fetch_beside(&self, files: &[&TreeFile], tell: &(dyn Fn(i64) + Sync)) -> Result<(), HubError> {
        for file in files {
            check_small(file).map_err(|problem| self.error(problem))?;
        }
        let Some(web) = &self.hub.web else { return Ok(()) };
        let (next, download) = (AtomicUsize::new(0), self.download(web));
        let work = || -> Result<(), HubError> {
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                download.fetch(file, tell).map_err(|problem| self.explain(&file.path, problem))?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..SMALL_AT_A_TIME.min(files.len())).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| match worker.join() {
                Ok(outcome) => outcome,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    fn download<'b>(&'b self, web: &'b Arc<Web>) -> Download<'b> {
        let hub = self.hub;
        Download { web, runtime: &hub.runtime, cache: &hub.cache, name: &self.name, commit: &self.commit }
    }

    fn explain(&self, what: &str, problem: HubProblem) -> HubError {
        match &self.hub.web {
            Some(web) => self.error(explain(web, &self.name, what, problem)),
            None => self.error(problem),
        }
    }

    fn error(&self, problem: HubProblem) -> HubError {
        HubError { model: self.name.repository(), problem }
    }
}

/// Reads the headers of safetensors files, or the beginnings of GGUF files, several at a time, up to a limit of memory.
/// An error comes with the path of its file.
async fn read_headers(files: Vec<Arc<RemoteFile>>, is_gguf: bool) -> Result<(), (String, HubProblem)> {
    let mut read = 0;
    for some in files.chunks(CONNECTIONS) {
        let mut tasks = JoinSet::new();
        for file in some {
            let file = file.clone();
            tasks.spawn(async move {
                let read = match is_gguf {
                    true => file.read_beginning().await,
                    false => file.read_safetensors_header(HEADER_BYTES_MAX).await,
                };
                read.map_err(|problem| (file.path_there().to_owned(), problem))
            });
        }
        while let Some(outcome) = tasks.join_next().await {
            match outcome {
                Ok(outcome) => read += outcome?,
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            }
        }
        if read > HEADERS_BYTES_MAX {
            // Further headers are read when they are requested.
            break;
        }
    }
    Ok(())
}

fn check_small(file: &TreeFile) -> Result<(), HubProblem> {
    if file.size <= SMALL_BYTES_MAX {
        return Ok(());
    }
    let message = format!("it says {} bytes, but at most {SMALL_BYTES_MAX} are accepted beside weights", file.size);
    Err(HubProblem::BadAnswer { address: file.path.clone(), message })
}

/// Verifies the digests of files other than weights. The snapshot's links give the expected digests.
fn check_undamaged(snapshot: &Path, small: &[String]) -> Result<(), HubProblem> {
    for path in small {
        let link = snapshot.join(path);
        let Some(blob) = BlobId::of_link(&link) else { continue };
        let found = blob.digest_of(&link).map_err(HubProblem::file("read", &link))?;
        if found != blob {
            let message = format!("its digest is {}, expected {}", found.digits(), blob.digits());
            return Err(HubProblem::DamagedInCache { path: fs::canonicalize(&link).unwrap_or(link), message });
        }
    }
    Ok(())
}

/// Reads the index at `path` and returns the files that it names. `bad` converts the error if the file is not an index.
fn read_index(path: &Path, bad: impl FnOnce(String) -> HubProblem) -> Result<BTreeSet<String>, HubProblem> {
    let mut text = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(SMALL_BYTES_MAX).read_to_end(&mut text));
    read.map_err(HubProblem::file("read", path))?;
    shards_of(&text).map_err(bad)
}

fn unreadable(error: IoError, path: &Path) -> HubProblem {
    let source = match error {
        IoError::Open { source, .. } => source,
        error => std::io::Error::other(error.to_string()),
    };
    HubProblem::file("open", path)(source)
}

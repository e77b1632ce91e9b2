//! Downloads contents. Several ranges are requested at a time and written in order, so that the length of an unfinished
//! file is its progress, whenever the process ends. The digest is computed along the way.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::answers::TreeFile;
use crate::cache::{HubCache, create_folder_of, is_whole};
use crate::digest::BlobHasher;
use crate::error::HubProblem;
use crate::lock::lock;
use crate::name::HubName;
use crate::ranges::{RANGE_BYTES, ranges};
use crate::source::FileSource;
use crate::web::Web;

/// The number of ranges of one file that are in flight at a time. Ranges that arrive out of order wait in memory.
pub(crate) const CONNECTIONS: usize = 8;
/// Bytes of the first range, whose response shows whether the server supports ranges.
const FIRST_BYTES: u64 = 1 << 20;
/// Bytes of an unfinished file that are read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// A callback for progress in bytes. The number is negative if downloaded bytes had to be discarded.
pub(crate) type Tell<'a> = &'a (dyn Fn(i64) + Sync);

/// The context for downloading the files of one commit.
pub(crate) struct Download<'a> {
    pub(crate) web: &'a Arc<Web>,
    pub(crate) runtime: &'a Runtime,
    pub(crate) cache: &'a HubCache,
    pub(crate) name: &'a HubName,
    pub(crate) commit: &'a str,
}

impl Download<'_> {
    /// Downloads a file to the cache, unless it is there, and links it into the snapshot.
    pub(crate) fn fetch(&self, file: &TreeFile, tell: Tell<'_>) -> Result<(), HubProblem> {
        let blob = self.cache.blob(self.name, &file.blob);
        create_folder_of(&blob)?;
        let busy = || tracing::warn!("waiting for another program, which fetches {}", file.path);
        let _held = lock(&self.cache.lock(self.name, &file.blob), busy)?;
        if is_whole(&blob, file) {
            tell(file.size as i64);
            return self.cache.link(self.name, self.commit, file);
        }
        if let Ok(found) = fs::metadata(&blob) {
            // The damaged file stays until its replacement is downloaded and verified, because the listing itself may
            // be wrong.
            let (shown, found, size) = (blob.display(), found.len(), file.size);
            let how = if found == size { "its digest is another".into() } else { format!("{found} bytes, not {size}") };
            tracing::warn!("{} is damaged ({shown}: {how}); it is fetched again", file.path);
        }
        let incomplete = self.cache.incomplete(self.name, &file.blob);
        let source = Arc::new(self.source(file));
        if let Err(Wrong { found, resumed }) = self.attempt(file, &source, &incomplete, tell)? {
            fs::remove_file(&incomplete).map_err(HubProblem::file("remove", &incomplete))?;
            tell(-(file.size as i64));
            let expected = file.blob.digits().to_owned();
            let damaged = |found| HubProblem::Damaged { file: file.path.clone(), expected, found };
            if !resumed {
                return Err(damaged(found));
            }
            // The unfinished file of an earlier process may be damaged, for instance after a crash of the machine.
            tracing::warn!(
                "{}: what was here of it does not fit the rest; it is fetched from its beginning",
                file.path
            );
            if let Err(Wrong { found, .. }) = self.attempt(file, &source, &incomplete, tell)? {
                fs::remove_file(&incomplete).map_err(HubProblem::file("remove", &incomplete))?;
                return Err(damaged(found));
            }
        }
        fs::rename(&incomplete, &blob).map_err(HubProblem::file("create", &blob))?;
        self.cache.link(self.name, self.commit, file)
    }

    /// Returns the file on the Hub, as a source of ranges.
    pub(crate) fn source(&self, file: &TreeFile) -> FileSource {
        let parts = [&self.name.owner, &self.name.model, "resolve", self.commit];
        let url = self.web.url(parts.into_iter().chain(file.path.split('/')));
        FileSource::new(self.web.clone(), url, file.path.clone(), file.size)
    }

    /// Continues an unfinished download to the end of the file and verifies the digest.
    fn attempt(
        &self,
        file: &TreeFile,
        source: &Arc<FileSource>,
        path: &PathBuf,
        tell: Tell<'_>,
    ) -> Result<Result<(), Wrong>, HubProblem> {
        let mut open = OpenOptions::new().read(true).append(true).create(true).open(path);
        let open = open.as_mut().map_err(|error| HubProblem::file("open", path)(std::io::Error::from(error.kind())))?;
        let mut sink = Sink { file: open, path, at: 0, hasher: file.blob.hasher(file.size), tell };
        let resumed = sink.take_in_what_is_there(file.size)?;
        self.runtime.block_on(pour(source, &mut sink, file.size))?;
        sink.file.sync_data().map_err(HubProblem::file("write", path))?;
        let found = sink.hasher.finish();
        Ok(if found == file.blob { Ok(()) } else { Err(Wrong { found: found.digits().to_owned(), resumed }) })
    }
}

/// The result of a download whose digest differs from the expected one.
struct Wrong {
    found: String,
    /// Whether the download continued an unfinished file.
    resumed: bool,
}

/// Writes and hashes downloaded bytes in order.
struct Sink<'a> {
    file: &'a mut File,
    path: &'a PathBuf,
    at: u64,
    hasher: BlobHasher,
    tell: Tell<'a>,
}

impl Sink<'_> {
    fn take(&mut self, bytes: &[u8]) -> Result<(), HubProblem> {
        self.file.write_all(bytes).map_err(HubProblem::file("write", self.path))?;
        self.count(bytes);
        Ok(())
    }

    fn count(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.at += bytes.len() as u64;
        (self.tell)(bytes.len() as i64);
    }

    /// Hashes the bytes that an earlier process has downloaded. Returns whether there were any. A file longer than
    /// expected is discarded.
    fn take_in_what_is_there(&mut self, size: u64) -> Result<bool, HubProblem> {
        let found = self.file.metadata().map_err(HubProblem::file("read", self.path))?.len();
        if found > size {
            self.file.set_len(0).map_err(HubProblem::file("write", self.path))?;
            return Ok(false);
        }
        let mut buffer = vec![0; CHUNK_BYTES];
        while self.at < found {
            match self.file.read(&mut buffer).map_err(HubProblem::file("read", self.path))? {
                0 => break,
                count => self.count(&buffer[..count]),
            }
        }
        Ok(found > 0)
    }
}

/// Downloads everything from the sink's position on.
async fn pour(source: &Arc<FileSource>, sink: &mut Sink<'_>, size: u64) -> Result<(), HubProblem> {
    let first = sink.at..sink.at.saturating_add(FIRST_BYTES).min(size);
    source.pour(first, |bytes| sink.take(bytes)).await?;
    if source.ignores_ranges() {
        tracing::info!("{}: the server knows no ranges; it is fetched in one piece", source.path);
        return source.pour(sink.at..size, |bytes| sink.take(bytes)).await;
    }
    let mut upcoming = ranges(sink.at, size, RANGE_BYTES);
    // If one task fails, the set is dropped, which cancels the others.
    let mut tasks = JoinSet::new();
    let mut queue = VecDeque::new();
    loop {
        while queue.len() < CONNECTIONS
            && let Some(range) = upcoming.next()
        {
            let (send, receive) = mpsc::unbounded_channel();
            let source = source.clone();
            tasks.spawn(async move {
                let outcome = source.pour(range, |bytes| {
                    // The receiver is gone if another range has failed.
                    let _ = send.send(Ok(bytes.to_vec()));
                    Ok(())
                });
                if let Err(problem) = outcome.await {
                    let _ = send.send(Err(problem));
                }
            });
            queue.push_back(receive);
        }
        let Some(mut head) = queue.pop_front() else { break };
        while let Some(bytes) = head.recv().await {
            sink.take(&bytes?)?;
        }
        while tasks.try_join_next().is_some() {}
    }
    if sink.at == size {
        return Ok(());
    }
    let message = format!("{} of {size} bytes of {} came", sink.at, source.path);
    Err(HubProblem::BadAnswer { address: source.address(), message })
}

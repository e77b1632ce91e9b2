//! A local Hub for tests of this and other crates. It implements the calls that Interbed uses, redirects large files to
//! a second server, and can misbehave as real servers do.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::digest::BlobId;

/// Hash of the only commit in every repository.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Bytes that are sent at a time.
const CHUNK_BYTES: u64 = 64 << 10;
/// The length of the block that a generated content repeats. It divides no range's length.
const PATTERN_BYTES: u64 = (1 << 20) - 17;

/// The content of a file in a repository.
#[derive(Debug, Clone)]
pub enum FileContent {
    /// Bytes in memory.
    Bytes(Vec<u8>),
    /// The content of a local file.
    File(PathBuf),
    /// Generated pseudo-random content of the given length in bytes.
    Made(u64),
}

impl FileContent {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(path) => std::fs::metadata(path).map_or(0, |found| found.len()),
            Self::Made(len) => *len,
        }
    }

    fn read(&self, at: u64, buffer: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => buffer.copy_from_slice(&bytes[at as usize..at as usize + buffer.len()]),
            Self::File(path) => {
                let file = File::open(path).expect("the file is there");
                file.read_exact_at(buffer, at).expect("the file is as long as it was");
            }
            Self::Made(_) => {
                for (index, byte) in buffer.iter_mut().enumerate() {
                    let place = (at + index as u64) % PATTERN_BYTES;
                    *byte = (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
                }
            }
        }
    }
}

/// Faults that the local Hub injects.
#[derive(Debug, Clone, Default)]
pub struct Mischief {
    /// Number of file responses that are cut off after `cut_after` bytes.
    pub cuts: u32,
    /// Number of bytes after which a response is cut off.
    pub cut_after: u64,
    /// Whether to send the whole file in response to a request for a range.
    pub ignores_ranges: bool,
    /// Number of requests whose connections are closed without a response.
    pub drops: u32,
    /// Number of requests that receive a response with `busy_status`.
    pub busy: u32,
    /// HTTP status of the responses that `busy` counts.
    pub busy_status: u16,
    /// `Retry-After` header, in seconds, of the responses that `busy` counts.
    pub retry_after: u32,
    /// Access token that requests for files must contain; `None` accepts all requests.
    pub token: Option<String>,
    /// `X-Error-Code` header of the response to a request without the required token.
    pub error_code: &'static str,
    /// Path of a file that is sent with one wrong byte.
    pub damages: Option<String>,
    /// Path of a file, and the number of bytes by which the listing overstates its size.
    pub lengthens: Option<(String, u64)>,
    /// Bandwidth of each connection in bytes per second; `None` means no limit.
    pub bytes_per_second: Option<u64>,
    /// Whether each address of a large file is valid for one request only.
    pub signs_for_one: bool,
    /// Number of entries on a page of the file listing; 0 puts all entries on one page.
    pub page_files: usize,
    /// Response body that replaces the file listing.
    pub tree: Option<String>,
    /// Commit hash that the Hub reports for every revision; `None` means [`COMMIT`].
    pub sha: Option<String>,
}

/// A request that the local Hub received.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Whether the request went to the second server, which sends large files.
    pub on_storage: bool,
    /// Path and query of the request.
    pub target: String,
    /// The `Range` header.
    pub range: Option<String>,
    /// The `Authorization` header.
    pub authorization: Option<String>,
    /// Number of bytes of the file that were sent in response.
    pub sent: u64,
}

/// A local Hub for tests. It runs until the process ends.
pub struct LocalHub {
    hub: SocketAddr,
    inside: Arc<Inside>,
}

struct Inside {
    storage: SocketAddr,
    files: Mutex<BTreeMap<String, BTreeMap<String, Kept>>>,
    mischief: Mutex<Mischief>,
    seen: Mutex<Vec<Seen>>,
    used: Mutex<Vec<String>>,
    gone: AtomicBool,
}

/// A request with the faults that apply to it.
struct Asked<'a> {
    seen: &'a Seen,
    /// Index of the request in the list of requests.
    index: usize,
    mischief: &'a Mischief,
}

#[derive(Debug, Clone)]
struct Kept {
    content: FileContent,
    blob: BlobId,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LocalHub {
    /// Starts a Hub without models, on a free port.
    pub fn start() -> Self {
        Self::start_on("127.0.0.1:0")
    }

    /// Starts a Hub without models that listens on `address`, for example `127.0.0.1:0`.
    pub fn start_on(address: &str) -> Self {
        let hub = TcpListener::bind(address).expect("a port");
        let storage = TcpListener::bind("127.0.0.1:0").expect("a port");
        let inside = Arc::new(Inside {
            storage: storage.local_addr().expect("an address"),
            files: Mutex::default(),
            mischief: Mutex::default(),
            seen: Mutex::default(),
            used: Mutex::default(),
            gone: AtomicBool::new(false),
        });
        let address = hub.local_addr().expect("an address");
        for (listener, on_storage) in [(hub, false), (storage, true)] {
            let inside = inside.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let inside = inside.clone();
                    // An error means that the client has closed the connection.
                    std::thread::spawn(move || drop(inside.serve(stream, on_storage)));
                }
            });
        }
        Self { hub: address, inside }
    }

    /// Returns the Hub's address, for HF_ENDPOINT.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.hub)
    }

    /// Adds a file to a repository, or replaces the file at `path`. If `is_large` is true, the Hub redirects requests
    /// for the file to a second server.
    pub fn add(&self, repository: &str, path: &str, content: FileContent, is_large: bool) {
        let kind = if is_large { BlobId::Sha256(String::new()) } else { BlobId::GitSha1(String::new()) };
        let (mut hasher, mut at, len) = (kind.hasher(content.len()), 0, content.len());
        let mut buffer = vec![0; 1 << 20];
        while at < len {
            let count = (len - at).min(buffer.len() as u64);
            content.read(at, &mut buffer[..count as usize]);
            hasher.update(&buffer[..count as usize]);
            at += count;
        }
        let kept = Kept { content, blob: hasher.finish() };
        locked(&self.inside.files).entry(repository.to_owned()).or_default().insert(path.to_owned(), kept);
    }

    /// Adds the files of a local folder to a repository. Safetensors and GGUF files count as large.
    pub fn add_folder(&self, repository: &str, folder: &Path) {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_large = name.ends_with(".safetensors") || name.ends_with(".gguf");
            self.add(repository, &name, FileContent::File(entry.path()), is_large);
        }
    }

    /// Returns the hexadecimal digest of a file in a repository.
    pub fn digest(&self, repository: &str, path: &str) -> String {
        locked(&self.inside.files)[repository][path].blob.digits().to_owned()
    }

    /// Replaces the faults that the Hub injects.
    pub fn does(&self, mischief: Mischief) {
        *locked(&self.inside.mischief) = mischief;
    }

    /// From now on, closes each connection without sending a response.
    pub fn goes_away(&self) {
        self.inside.gone.store(true, Ordering::Relaxed);
    }

    /// Returns all requests since the start or the last call of [`forget`](Self::forget).
    pub fn seen(&self) -> Vec<Seen> {
        locked(&self.inside.seen).clone()
    }

    /// Clears the list of requests that [`seen`](Self::seen) returns.
    pub fn forget(&self) {
        locked(&self.inside.seen).clear();
    }

    /// Returns the sum of [`Seen::sent`] for those requests in [`seen`](Self::seen) whose [`Seen::target`] contains
    /// `part`.
    pub fn sent(&self, part: &str) -> u64 {
        self.seen().iter().filter(|seen| seen.target.contains(part)).map(|seen| seen.sent).sum()
    }
}

impl Inside {
    fn serve(&self, stream: TcpStream, on_storage: bool) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut stream = stream;
        loop {
            let mut line = String::new();
            if reader.by_ref().take(8192).read_line(&mut line)? == 0 || self.gone.load(Ordering::Relaxed) {
                return Ok(());
            }
            let target = line.split(' ').nth(1).unwrap_or("/").to_owned();
            let mut headers = BTreeMap::new();
            loop {
                let mut line = String::new();
                reader.by_ref().take(8192).read_line(&mut line)?;
                let Some((name, value)) = line.trim_end().split_once(':') else { break };
                headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
            }
            let seen = Seen {
                on_storage,
                target: target.clone(),
                range: headers.get("range").cloned(),
                authorization: headers.get("authorization").cloned(),
                sent: 0,
            };
            let index = {
                let mut all = locked(&self.seen);
                all.push(seen.clone());
                all.len() - 1
            };
            if !self.answer(&mut stream, &seen, index)? {
                return Ok(());
            }
        }
    }

    /// Responds to a request. Returns whether the connection stays open.
    fn answer(&self, stream: &mut TcpStream, seen: &Seen, index: usize) -> std::io::Result<bool> {
        let mischief = &locked(&self.mischief).clone();
        if mischief.drops > 0 {
            locked(&self.mischief).drops -= 1;
            return Ok(false);
        }
        if mischief.busy > 0 {
            locked(&self.mischief).busy -= 1;
            let status = format!("{} Busy", mischief.busy_status);
            let after = mischief.retry_after.to_string();
            return text(stream, &status, &[("Retry-After", &after)], "busy").map(|()| true);
        }
        let asked = Asked { seen, index, mischief };
        let path = seen.target.split('?').next().unwrap_or("");
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        match parts.as_slice() {
            ["blob", digest] if seen.on_storage => self.storage(stream, &asked, digest),
            ["api", "models", owner, model, call @ ..] => {
                self.api(stream, &asked, &format!("{owner}/{model}"), call).map(|()| true)
            }
            [owner, model, "resolve", COMMIT, path @ ..] => {
                self.resolve(stream, &asked, &format!("{owner}/{model}"), &path.join("/"))
            }
            _ => text(stream, "404 Not Found", &[], "").map(|()| true),
        }
    }

    /// Sends a large file.
    fn storage(&self, stream: &mut TcpStream, asked: &Asked<'_>, digest: &str) -> std::io::Result<bool> {
        if asked.mischief.signs_for_one {
            let mut used = locked(&self.used);
            if used.contains(&asked.seen.target) {
                drop(used);
                return text(stream, "403 Forbidden", &[], "expired").map(|()| true);
            }
            used.push(asked.seen.target.clone());
        }
        let found = {
            let files = locked(&self.files);
            let mut all = files.values().flatten();
            all.find(|(_, kept)| kept.blob.digits() == digest).map(|(path, kept)| (path.clone(), kept.clone()))
        };
        let Some((path, kept)) = found else { return text(stream, "404 Not Found", &[], "").map(|()| true) };
        self.file(stream, asked, &path, &kept)
    }

    /// Responds to a call of the API.
    fn api(&self, stream: &mut TcpStream, asked: &Asked<'_>, repository: &str, call: &[&str]) -> std::io::Result<()> {
        let Asked { seen, mischief, .. } = asked;
        let is_there = locked(&self.files).contains_key(repository);
        let code = |code: &'static str| [("X-Error-Code", code)];
        if !is_there {
            return text(stream, "401 Unauthorized", &code("RepoNotFound"), "");
        }
        match call {
            ["refs"] => {
                let body = r#"{"branches": [{"name": "main"}, {"name": "refs/pr/1"}], "tags": [{"name": "v1"}]}"#;
                text(stream, "200 OK", &[], body)
            }
            ["revision", "main" | "v1" | COMMIT | "refs%2Fpr%2F1"] => {
                let sha = mischief.sha.as_deref().unwrap_or(COMMIT);
                text(stream, "200 OK", &[], &format!(r#"{{"id": "{repository}", "sha": "{sha}"}}"#))
            }
            ["revision", ..] => text(stream, "404 Not Found", &code("RevisionNotFound"), "Invalid rev id"),
            ["tree", COMMIT] => {
                let from = seen.target.split("cursor=").nth(1).and_then(|from| from.parse().ok()).unwrap_or(0);
                let (tree, more) = self.tree(repository, mischief, from);
                let next = from + mischief.page_files;
                let path = format!("/api/models/{repository}/tree/{COMMIT}");
                let link = format!("<{path}?recursive=true&cursor={next}>; rel=\"next\"");
                let headers: &[(&str, &str)] = if more { &[("Link", &link)] } else { &[] };
                text(stream, "200 OK", headers, mischief.tree.as_deref().unwrap_or(&tree))
            }
            _ => text(stream, "404 Not Found", &[], ""),
        }
    }

    /// Sends a small file, or redirects to a large one.
    fn resolve(
        &self,
        stream: &mut TcpStream,
        asked: &Asked<'_>,
        repository: &str,
        path: &str,
    ) -> std::io::Result<bool> {
        let Asked { seen, index, mischief } = asked;
        if let Some(token) = &mischief.token
            && seen.authorization.as_deref() != Some(&format!("Bearer {token}"))
        {
            let code = [("X-Error-Code", mischief.error_code)];
            return text(stream, "401 Unauthorized", &code, "").map(|()| true);
        }
        let found = locked(&self.files).get(repository).and_then(|files| files.get(path).cloned());
        let Some(kept) = found else {
            return text(stream, "404 Not Found", &[("X-Error-Code", "EntryNotFound")], "").map(|()| true);
        };
        if let BlobId::Sha256(digest) = &kept.blob {
            let to = format!("http://{}/blob/{digest}?signature=secret{index}", self.storage);
            return text(stream, "302 Found", &[("Location", &to)], "").map(|()| true);
        }
        self.file(stream, asked, path, &kept)
    }

    /// Returns the page of the listing that begins with file number `from`, and whether more pages follow.
    fn tree(&self, repository: &str, mischief: &Mischief, from: usize) -> (String, bool) {
        let files = locked(&self.files);
        let entries = files[repository].iter().map(|(path, kept)| {
            let more = mischief.lengthens.as_ref().filter(|(longer, _)| longer == path).map_or(0, |(_, more)| *more);
            let (size, digits) = (kept.content.len() + more, kept.blob.digits());
            let lfs = match &kept.blob {
                BlobId::Sha256(_) => format!(r#", "lfs": {{"oid": "{digits}", "size": {size}, "pointerSize": 134}}"#),
                BlobId::GitSha1(_) => String::new(),
            };
            let oid = &digits[..40];
            format!(r#"{{"type": "file", "oid": "{oid}", "size": {size}, "path": "{path}"{lfs}}}"#)
        });
        let folder = format!(r#"{{"type": "directory", "oid": "{}", "size": 0, "path": "folder"}}"#, &COMMIT);
        let all: Vec<String> = entries.chain([folder]).collect();
        let end = if mischief.page_files == 0 { all.len() } else { (from + mischief.page_files).min(all.len()) };
        (format!("[{}]", all[from.min(end)..end].join(", ")), end < all.len())
    }

    fn file(&self, stream: &mut TcpStream, asked: &Asked<'_>, path: &str, kept: &Kept) -> std::io::Result<bool> {
        let &Asked { seen, index, mischief } = asked;
        let len = kept.content.len();
        let range = seen.range.as_deref().filter(|_| !mischief.ignores_ranges).and_then(|range| {
            let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
            Some((first.parse::<u64>().ok()?, last.parse::<u64>().map_or(len, |last| last + 1).min(len)))
        });
        let (start, end) = range.unwrap_or((0, len));
        if start >= end && len > 0 {
            return text(stream, "416 Range Not Satisfiable", &[], "").map(|()| true);
        }
        let status = if range.is_some() { "206 Partial FileContent" } else { "200 OK" };
        let mut head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", end - start);
        if range.is_some() {
            head.push_str(&format!("Content-Range: bytes {start}-{}/{len}\r\n", end - 1));
        }
        stream.write_all(format!("{head}\r\n").as_bytes())?;
        let cut = {
            let mut mischief = locked(&self.mischief);
            let cuts = mischief.cuts > 0 && end - start > mischief.cut_after;
            mischief.cuts -= u32::from(cuts);
            cuts.then_some(mischief.cut_after)
        };
        let (mut at, end) = (start, cut.map_or(end, |after| start + after));
        let mut buffer = vec![0; CHUNK_BYTES as usize];
        while at < end {
            let count = (end - at).min(CHUNK_BYTES);
            let bytes = &mut buffer[..count as usize];
            kept.content.read(at, bytes);
            if mischief.damages.as_deref() == Some(path) && (at..at + count).contains(&(len / 2)) {
                bytes[(len / 2 - at) as usize] ^= 1;
            }
            stream.write_all(bytes)?;
            at += count;
            locked(&self.seen).get_mut(index).into_iter().for_each(|seen| seen.sent += count);
            if let Some(rate) = mischief.bytes_per_second {
                std::thread::sleep(Duration::from_secs_f64(count as f64 / rate as f64));
            }
        }
        Ok(cut.is_none())
    }
}

fn text(stream: &mut TcpStream, status: &str, headers: &[(&str, &str)], body: &str) -> std::io::Result<()> {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    stream.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}\r\n{body}").as_bytes())
}

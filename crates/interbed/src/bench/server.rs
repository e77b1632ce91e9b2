//! A process of `interbed serve` that a benchmark starts, sends requests to, and kills.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use interbed_io::{AlignedBuffer, DirectRead, EngineKind, PrivateFolder, SegmentFile, sequential_bandwidth};
use serde_json::{Value, json};

use crate::bundled::bundled_model;

/// The maximum time until a server is ready, or has written a prompt to disk.
const PATIENCE: Duration = Duration::from_secs(600);

/// The number of reads at a time and bytes of each read for measuring the disk.
const DEPTH: usize = 4;
const CHUNK: usize = 4 << 20;

/// The number of bytes of each read. These reads are like those of streamed KV, with [`PIECES_AHEAD`] reads at a time
/// and [`RING`] bytes of buffers.
const PIECE: usize = 256 << 10;
const PIECES_AHEAD: usize = 8;
const RING: usize = 16 << 20;

/// Made up prompts have a multiple of this many tokens, plus one. The number is a multiple of every block size.
const BLOCK: usize = 256;

/// A running `interbed serve` process. Dropping the value kills it.
pub struct Server {
    child: Child,
    address: String,
    model: String,
    /// The text that the server printed at its start.
    said: String,
}

/// The times of a streamed answer.
pub struct TimedAnswer {
    /// The time from the request to the first token.
    pub first_token: Duration,
    /// The times between successive tokens, in seconds.
    pub gaps: Vec<f64>,
    /// The number of prompt tokens that were found in the cache.
    pub cached_tokens: u64,
    /// The text of the answer.
    pub text: String,
}

/// Returns the speed, in bytes per second, of long direct reads from the segment files in `store`. The data that was
/// read is not used. `written` is the number of bytes that have been written to the segments.
pub fn disk_rate(store: &Path, written: u64) -> Result<f64> {
    let (mut bytes, mut seconds) = (0.0, 0.0);
    for (file, len) in segments(store, written)? {
        let file: Arc<dyn DirectRead> = Arc::new(file);
        let rate = sequential_bandwidth(&file, 0..len, EngineKind::Pread, DEPTH, CHUNK)?;
        bytes += len as f64;
        seconds += len as f64 / rate;
    }
    Ok(bytes / seconds)
}

/// Reads the segment files in `store` in the way that streamed KV is read, and returns the speed in bytes per second.
/// The reads are small, the buffers have the same total size as for streamed KV, and each byte that was read is used.
/// `written` is the number of bytes that have been written to the segments. The speed can be lower than [`disk_rate`]:
/// on machines where a processor copies the disk's data, such as virtual machines, reading into a buffer takes longer
/// if the buffer's previous content was used.
pub fn used_rate(store: &Path, written: u64) -> Result<f64> {
    let files = segments(store, written)?;
    let pieces = |(file, len)| (0..len / PIECE as u64).map(move |at| (file, at * PIECE as u64));
    let places: Vec<_> = files.iter().map(|(file, len)| (file, *len)).flat_map(pieces).collect();
    let (next, began) = (AtomicUsize::new(0), Instant::now());
    std::thread::scope(|scope| {
        let read = || -> Result<()> {
            let mut ring = AlignedBuffer::new_zeroed(RING / PIECES_AHEAD).context("no memory for a buffer")?;
            let mut sum = 0u64;
            for turn in 0.. {
                let Some((file, offset)) = places.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                let at = turn * PIECE % ring.as_slice().len();
                let piece = &mut ring.as_mut()[at..at + PIECE];
                file.read_aligned_at(piece, *offset, PIECE)?;
                let numbers = piece.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
                sum = numbers.fold(sum, u64::wrapping_add);
            }
            std::hint::black_box(sum);
            Ok(())
        };
        let readers: Vec<_> = (0..PIECES_AHEAD).map(|_| scope.spawn(read)).collect();
        readers.into_iter().try_for_each(|reader| reader.join().unwrap_or_else(|_| bail!("a reader has failed")))
    })?;
    Ok((places.len() * PIECE) as f64 / began.elapsed().as_secs_f64())
}

/// Returns the segments of a store that hold its first `written` bytes, and the number of these bytes in each. Parts
/// that were never written are left out, because a disk reads them at no cost.
fn segments(store: &Path, mut written: u64) -> Result<Vec<(SegmentFile, u64)>> {
    let folder = PrivateFolder::open(store)?;
    let mut names = folder.names()?;
    names.retain(|name| name.starts_with("segment-"));
    names.sort();
    let mut files = Vec::new();
    for name in names {
        let file = SegmentFile::open(&folder, &name)?;
        let len = file.len().min(written);
        written -= len;
        files.extend((len >= PIECE as u64).then_some((file, len)));
    }
    if files.is_empty() { bail!("too little was stored in {}", store.display()) } else { Ok(files) }
}

/// Returns the path of `interbed`: this program, or the one beside `interbed-lab`.
fn program() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let name = own.file_name().and_then(|name| name.to_str()?.strip_suffix("-lab"));
    Ok(name.map_or(own.clone(), |name| own.with_file_name(name)))
}

impl Server {
    /// Starts a server for `model`, or for the bundled model if `model` is `None`. The command-line options are
    /// `options` and then `more`.
    pub fn start(model: Option<&PathBuf>, options: &[&str], more: &[String]) -> Result<Self> {
        Self::start_in(&[], model, options, more)
    }

    /// Starts a server like [`start`](Self::start), with additional environment variables. Other users of the machine
    /// cannot see the variables.
    pub fn start_in(
        variables: &[(&str, &String)],
        model: Option<&PathBuf>,
        options: &[&str],
        more: &[String],
    ) -> Result<Self> {
        let mut command = Command::new(program()?);
        // Without a model, a server offers all models of this machine.
        let model = model.cloned().map_or_else(bundled_model, Ok)?;
        command.arg("serve").arg(model).args(["--port", "0", "--swap-space", "0", "--no-expert-counts"]);
        command.args(options).args(more);
        command.envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start a server")?;
        let mut lines = BufReader::new(child.stderr.take().context("a server has no stderr")?).lines();
        let mut said = String::new();
        let address = loop {
            let Some(line) = lines.next() else {
                let _ = child.wait();
                bail!("the server ended at once; it said:\n{said}");
            };
            let line = line.context("cannot read what the server says")?;
            if let Some((_, rest)) = line.split_once("on http://") {
                break rest.trim_end_matches("/v1").to_owned();
            }
            said.push_str(&line);
            said.push('\n');
        };
        // The server's later output is read and dropped, or else the pipe would fill up and block the server.
        std::thread::spawn(move || lines.for_each(drop));
        let mut server = Self { child, address, model: String::new(), said };
        let models: Value = serde_json::from_str(&server.get("/v1/models")?).context("no list of models")?;
        server.model = models["data"][0]["id"].as_str().context("the server has no model")?.to_owned();
        Ok(server)
    }

    /// Returns the maximum number of tokens of a prompt and its answer.
    pub fn context(&self) -> Result<usize> {
        let models: Value = serde_json::from_str(&self.get("/v1/models")?).context("no list of models")?;
        let length = models["data"][0]["max_model_len"].as_u64().context("the server does not tell its context")?;
        Ok(usize::try_from(length)?)
    }

    /// Makes up a prompt of whole blocks and one more token, which must be computed in any case. The prompt has at most
    /// `tokens` tokens, rounded down, and leaves room for an answer of `answer` tokens. Other seeds give other prompts.
    pub fn prompt(&self, tokens: usize, answer: usize, seed: usize) -> Result<Vec<usize>> {
        let most = tokens.min(self.context()?.saturating_sub(answer + 1));
        Ok((0..most / BLOCK * BLOCK + 1).map(|at| (at * at * 31 + (at + seed) * 7919) % 199 + 5).collect())
    }

    /// Returns the value of the metric `name` from `/metrics`.
    pub fn metric(&self, name: &str) -> Result<f64> {
        let page = self.get("/metrics")?;
        let line = page.lines().find(|line| line.split(['{', ' ']).next() == Some(name));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.with_context(|| format!("the server does not tell {name}"))
    }

    fn get(&self, path: &str) -> Result<String> {
        let mut stream = self.request("GET", path, "")?;
        let mut all = String::new();
        stream.read_to_string(&mut all)?;
        let (_, body) = all.split_once("\r\n\r\n").context("the server's answer has no body")?;
        Ok(body.to_owned())
    }

    fn request(&self, method: &str, path: &str, body: &str) -> Result<BufReader<TcpStream>> {
        let mut stream = TcpStream::connect(&self.address).context("cannot reach the server")?;
        let (address, length) = (&self.address, body.len());
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )?;
        Ok(BufReader::new(stream))
    }

    /// Requests a completion of `prompt` with `tokens` tokens, and measures its times.
    pub fn complete(&self, prompt: &[usize], tokens: usize) -> Result<TimedAnswer> {
        let body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
            "stream": true, "stream_options": {"include_usage": true},
        });
        let began = Instant::now();
        TimedAnswer::read(self.request("POST", "/v1/completions", &body.to_string())?, began, tokens)
    }
}

impl TimedAnswer {
    /// Reads the answer to a request of `tokens` tokens that was sent at `began`, and measures its times.
    fn read(stream: impl BufRead, began: Instant, tokens: usize) -> Result<Self> {
        let (mut first, mut last, mut gaps, mut cached_tokens) = (None, began, Vec::new(), 0);
        let mut text = String::new();
        let mut other = String::new();
        for line in stream.lines() {
            let line = line?;
            let Some(data) = line.strip_prefix("data: ") else {
                other.push_str(&line);
                continue;
            };
            let Ok(event) = serde_json::from_str::<Value>(data) else { continue };
            let now = Instant::now();
            if let Some(choice) = event["choices"].get(0) {
                let said = choice["text"].as_str().unwrap_or_default();
                // While the server computes the prompt, it sends idle events, which have neither text nor a reason.
                if said.is_empty() && choice["finish_reason"].is_null() {
                    continue;
                }
                text.push_str(said);
                match first {
                    None => first = Some(now - began),
                    Some(_) => gaps.push((now - last).as_secs_f64()),
                }
                last = now;
            }
            cached_tokens = event["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(cached_tokens);
        }
        let first_token = first.with_context(|| format!("the server gave no token: {other}"))?;
        // The last chunk may contain only the reason why the answer ended.
        gaps.truncate(tokens.saturating_sub(1).max(1));
        if gaps.is_empty() {
            gaps.push(0.0);
        }
        Ok(Self { first_token, gaps, cached_tokens, text })
    }
}

impl Server {
    /// Waits until all KV that is kept on disk has been written durably.
    pub fn settle(&self) -> Result<()> {
        let began = Instant::now();
        while self.metric("interbed:kv_disk_queued_blocks")? > 0.0
            || self.metric("interbed:kv_disk_durable_blocks_total")? < self.metric("interbed:kv_disk_blocks")?
        {
            if began.elapsed() > PATIENCE {
                bail!("the prompt was not brought to the disk within {PATIENCE:?}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Finds the line that begins with `name` in the server's startup output, and returns the rest of the line.
    pub fn said(&self, name: &str) -> Option<&str> {
        self.said.lines().find_map(|line| line.trim_start().strip_prefix(name)).map(str::trim)
    }

    /// Returns the server's peak resident memory in bytes, as counted by the kernel.
    pub fn peak_memory(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("the kernel does not tell")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process is killed without a chance to clean up, as by `kill -9`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Cursor};

    use super::*;

    #[test]
    fn what_a_server_sends_while_it_computes_is_no_token() {
        let event = |choice: Value| format!("data: {}\n\n", json!({"choices": [choice]}));
        let idle = event(json!({"text": "", "finish_reason": null}));
        let token = |text: &str| event(json!({"text": text, "finish_reason": null}));
        let end = event(json!({"text": "", "finish_reason": "length"}));
        let usage = json!({"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 7}}});
        let read = |events: &[&str], tokens| {
            let text = format!("HTTP/1.0 200 OK\r\n\r\n{}data: {usage}\n\ndata: [DONE]\n\n", events.concat());
            TimedAnswer::read(BufReader::new(Cursor::new(text)), Instant::now(), tokens)
        };
        let answer = read(&[&idle, &idle, &token("a"), &idle, &token("b"), &token("c"), &end], 3).unwrap();
        assert_eq!((answer.text.as_str(), answer.gaps.len(), answer.cached_tokens), ("abc", 2, 7));
        // A token may have no text of its own, and then the end is all that is seen of it.
        assert_eq!(read(&[&idle, &end], 1).unwrap().gaps, [0.0]);
        assert!(read(&[&idle], 1).is_err_and(|error| error.to_string().contains("no token")));
    }
}

//! `strata bench kv-tiers`: KV on disk, beside what the disk allows.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};
use strata_device::Bytes;
use strata_io::{DirectRead, EngineKind, SegmentFile, sequential_bandwidth};

use super::median;
use crate::progress;

/// How long a server may take to be ready, or to bring a prompt to the disk.
const PATIENCE: Duration = Duration::from_secs(600);

/// Reads of the disk's measurement: so many at a time, so many bytes each.
const DEPTH: usize = 4;
const CHUNK: usize = 4 << 20;

/// Tokens of which prompts have whole numbers, but for one: a multiple of every block size.
const BLOCK: usize = 256;

/// Tokens that are generated to measure a decode step.
const STEPS: usize = 9;

/// Sequences that decode beside spilling, and tokens of each.
const SEQUENCES: usize = 4;
const ANSWER: usize = 256;

/// Measure KV on disk: a prompt that was seen, after `kill -9` and a new start, and decode beside spilling
///
/// Servers are started as `strata serve` is, killed, and started again. The time to the first token of the prompt is
/// compared with the time in which plain direct reads bring the same bytes from the same files, measured right before,
/// and one decode step; and with the prefill that it replaces. Then two servers, one with `--kv-disk-mode mirror` and
/// one without KV on disk, decode in turns. Medians of ratios count. Run nothing else meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    strata bench kv-tiers models/1b --kv-disk /var/tmp/kv --memory 8G\n  \
    strata bench kv-tiers models/1b --prompt-tokens 2048 --json\n  \
    strata bench kv-tiers models/1b -- --kv-dtype q8         # options of strata serve")]
pub struct KvTiersArgs {
    /// A Hugging Face directory, a GGUF file or a packed store; without it the model that ships with Strata
    #[arg(value_name = "MODEL", env = "STRATA_MODEL")]
    pub model: Option<PathBuf>,

    /// A directory on the disk that is measured, in which a new one is made and removed; by default that for temporary
    /// files
    #[arg(long, value_name = "DIR")]
    pub kv_disk: Option<PathBuf>,

    /// Tokens of the prompt, rounded down to a multiple of 256, and one more
    #[arg(long, value_name = "TOKENS", default_value = "8192")]
    pub prompt_tokens: NonZeroUsize,

    /// Measurements of each kind; the median counts
    #[arg(long, value_name = "N", default_value = "5")]
    pub repeat: NonZeroUsize,

    /// Memory of each server
    #[arg(long, value_name = "SIZE", default_value = "6G")]
    pub memory: Bytes,

    /// One JSON object a line on stdout instead of the table
    #[arg(long)]
    pub json: bool,

    /// Options of `strata serve`
    #[arg(last = true, value_name = "OPTIONS")]
    pub server: Vec<String>,
}

/// A running `strata serve`. Dropping it kills it.
struct Server {
    child: Child,
    address: String,
    model: String,
}

/// What a streamed answer took.
struct Answer {
    first_token: Duration,
    /// From one token to the next.
    gaps: Vec<f64>,
    cached_tokens: u64,
}

/// Runs `strata bench kv-tiers`.
pub fn run(args: KvTiersArgs) -> Result<()> {
    let parent = args.kv_disk.clone().unwrap_or_else(std::env::temp_dir);
    let directory = parent.join(format!("strata-bench-kv-{}", std::process::id()));
    let measured = measure(&args, &directory);
    // Whatever happened, nothing is left behind.
    let _ = std::fs::remove_dir_all(&directory);
    let (restart, beside) = measured?;
    if args.json {
        println!("{restart}");
        println!("{beside}");
        return Ok(());
    }
    let number = |of: &Value, name: &str| of[name].as_f64().unwrap_or(f64::NAN);
    println!("a prompt of {} tokens, {} of KV", restart["prompt_tokens"], Bytes(number(&restart, "bytes") as u64));
    println!("  prefill                      {:>9.3} s", number(&restart, "prefill_s"));
    println!("  first token after a restart  {:>9.3} s", number(&restart, "first_token_s"));
    println!("  bound                        {:>9.3} s", number(&restart, "bound_s"));
    println!("  first token over bound       {:>9.2}", number(&restart, "over_bound"));
    println!("  prefill over first token     {:>9.1}", number(&restart, "prefill_over_first_token"));
    println!("decode of {SEQUENCES} sequences, {ANSWER} tokens each");
    println!("  without KV on disk           {:>9.1} tokens/s", number(&beside, "plain_tokens_per_s"));
    println!("  beside spilling              {:>9.1} tokens/s", number(&beside, "mirror_tokens_per_s"));
    println!("  beside spilling over without {:>9.3}", number(&beside, "mirror_over_plain"));
    Ok(())
}

fn measure(args: &KvTiersArgs, directory: &Path) -> Result<(Value, Value)> {
    let bar = progress::steps("measuring", 2 * args.repeat.get() as u64 + 1);
    let store = directory.join("restart");
    let eager = ["--kv-disk-mode", "eager"];
    let server = Server::start(args, Some(&store), &eager)?;
    let most = args.prompt_tokens.get().min(server.context()?.saturating_sub(STEPS + 1));
    // Whole blocks and one token more, which has to be computed in any case: a decode step.
    let length = most / BLOCK * BLOCK + 1;
    let prompt: Vec<usize> = (0..length).map(|at| (at * at * 31 + at * 7919) % 199 + 5).collect();
    let prefill = server.complete(&prompt, 1)?.first_token.as_secs_f64();
    let began = Instant::now();
    while server.metric("strata:kv_disk_queued_blocks")? > 0.0
        || server.metric("strata:kv_disk_durable_blocks_total")? < server.metric("strata:kv_disk_blocks")?
    {
        if began.elapsed() > PATIENCE {
            bail!("the prompt was not brought to the disk within {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(server);
    bar.inc(1);

    let (mut firsts, mut bounds, mut ratios, mut bytes) = (Vec::new(), Vec::new(), Vec::new(), 0.0);
    for _ in 0..args.repeat.get() {
        let server = Server::start(args, Some(&store), &eager)?;
        let rate = disk_rate(&store)?;
        let answer = server.complete(&prompt, STEPS)?;
        bytes = server.metric("strata:kv_disk_read_bytes_total")?;
        let found = answer.cached_tokens as usize;
        if found + 1 < length {
            bail!("only {found} of {length} tokens were found on disk");
        }
        let bound = bytes / rate + median(answer.gaps);
        firsts.push(answer.first_token.as_secs_f64());
        bounds.push(bound);
        ratios.push(answer.first_token.as_secs_f64() / bound);
        bar.inc(1);
    }
    let first = median(firsts.clone());
    let restart = json!({
        "name": "kv_tiers.restart", "prompt_tokens": length, "bytes": bytes, "prefill_s": prefill,
        "first_token_s": first, "bound_s": median(bounds.clone()), "over_bound": median(ratios.clone()),
        "prefill_over_first_token": prefill / first,
    });

    let mirror = Server::start(args, Some(&directory.join("mirror")), &["--kv-disk-mode", "mirror"])?;
    let plain = Server::start(args, None, &[])?;
    let (mut plains, mut mirrors, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..args.repeat.get() {
        // Which goes first takes turns as well.
        let (one, other) = if round % 2 == 0 { (&plain, &mirror) } else { (&mirror, &plain) };
        let (first, second) = (one.decode(2 * round)?, other.decode(2 * round)?);
        let (without, with) = if round % 2 == 0 { (first, second) } else { (second, first) };
        plains.push(without);
        mirrors.push(with);
        ratios.push(with / without);
        bar.inc(1);
    }
    let spilled = mirror.metric("strata:kv_disk_written_bytes_total")?;
    bar.finish_and_clear();
    let beside = json!({
        "name": "kv_tiers.beside_spilling", "sequences": SEQUENCES, "tokens": ANSWER, "spilled_bytes": spilled,
        "plain_tokens_per_s": median(plains.clone()), "mirror_tokens_per_s": median(mirrors.clone()),
        "mirror_over_plain": median(ratios.clone()),
    });
    Ok((restart, beside))
}

/// Bytes a second at which plain direct reads go through the store's segments.
fn disk_rate(store: &Path) -> Result<f64> {
    let (mut bytes, mut seconds) = (0.0, 0.0);
    for entry in std::fs::read_dir(store).context("cannot read the store's directory")? {
        let path = entry?.path();
        let is_segment = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("segment-"));
        if is_segment {
            let file: Arc<dyn DirectRead> = Arc::new(SegmentFile::open(&path)?);
            let len = file.len();
            let rate = sequential_bandwidth(&file, 0..len, EngineKind::Pread, DEPTH, CHUNK)?;
            bytes += len as f64;
            seconds += len as f64 / rate;
        }
    }
    if bytes == 0.0 { bail!("nothing was stored in {}", store.display()) } else { Ok(bytes / seconds) }
}

impl Server {
    fn start(args: &KvTiersArgs, store: Option<&Path>, options: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
        command.arg("serve").args(&args.model).args(["--port", "0", "--swap-space", "0"]);
        command.args(["--memory", &args.memory.0.to_string()]);
        if let Some(store) = store {
            command.arg("--kv-disk").arg(store).args(["--kv-disk-size", "8G"]).args(options);
        }
        command.args(&args.server).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
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
        // What it says later must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let mut server = Self { child, address, model: String::new() };
        let models: Value = serde_json::from_str(&server.get("/v1/models")?).context("no list of models")?;
        server.model = models["data"][0]["id"].as_str().context("the server has no model")?.to_owned();
        Ok(server)
    }

    /// Tokens of the longest prompt with its answer.
    fn context(&self) -> Result<usize> {
        let models: Value = serde_json::from_str(&self.get("/v1/models")?).context("no list of models")?;
        let length = models["data"][0]["max_model_len"].as_u64().context("the server does not tell its context")?;
        Ok(usize::try_from(length)?)
    }

    /// A figure of `/metrics`.
    fn metric(&self, name: &str) -> Result<f64> {
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

    /// Has `prompt` continued by `tokens` tokens.
    fn complete(&self, prompt: &[usize], tokens: usize) -> Result<Answer> {
        let body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
            "stream": true, "stream_options": {"include_usage": true},
        });
        let began = Instant::now();
        let stream = self.request("POST", "/v1/completions", &body.to_string())?;
        let (mut first, mut last, mut gaps, mut cached_tokens) = (None, began, Vec::new(), 0);
        let mut other = String::new();
        for line in stream.lines() {
            let line = line?;
            let Some(data) = line.strip_prefix("data: ") else {
                other.push_str(&line);
                continue;
            };
            let Ok(event) = serde_json::from_str::<Value>(data) else { continue };
            let now = Instant::now();
            if event["choices"].get(0).is_some() {
                match first {
                    None => first = Some(now - began),
                    Some(_) => gaps.push((now - last).as_secs_f64()),
                }
                last = now;
            }
            cached_tokens = event["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(cached_tokens);
        }
        let first_token = first.with_context(|| format!("the server gave no token: {other}"))?;
        // The last piece may carry only the reason of the end.
        gaps.truncate(tokens.saturating_sub(1).max(1));
        if gaps.is_empty() {
            gaps.push(0.0);
        }
        Ok(Answer { first_token, gaps, cached_tokens })
    }

    /// Tokens a second of several sequences that decode together; prompts follow from `seed`.
    fn decode(&self, seed: usize) -> Result<f64> {
        let began = Instant::now();
        std::thread::scope(|scope| -> Result<()> {
            let ask = |index: usize| {
                let prompt: Vec<_> = (0..16).map(|at| (1000 * seed + 100 * index + at * at) % 199 + 5).collect();
                scope.spawn(move || self.complete(&prompt, ANSWER))
            };
            let asked: Vec<_> = (0..SEQUENCES).map(ask).collect();
            for answer in asked {
                answer.join().map_err(|_| anyhow::anyhow!("a client has failed"))??;
            }
            Ok(())
        })?;
        Ok((SEQUENCES * ANSWER) as f64 / began.elapsed().as_secs_f64())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // As `kill -9` would.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

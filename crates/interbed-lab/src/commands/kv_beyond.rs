//! The command `interbed-lab kv-beyond` compares a context whose KV does not fit into memory with what the disk allows.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use interbed::failure::Advised;
use interbed::median;
use interbed::model_dir::ModelDir;
use interbed::progress;
use interbed::server::{Server, disk_rate, used_rate};
use interbed_device::Bytes;
use serde_json::{Value, json};

/// The number of tokens of prompt and answer, unless the command line gives one.
const CONTEXT: usize = 32_768;

/// The number of tokens at the end of the prompt that need not come from disk. The measurement fails if more of the
/// prompt was not found there.
const STRETCH: usize = 1024;

/// Measure a context whose KV memory does not hold: it is on disk, and streams through a small buffer in each pass
///
/// A server with ample memory computes a prompt, continues it, and is killed; its KV is on disk. One with --kv-memory
/// goes on from there. Both must give the same text. The time of a token is compared with the time in which plain
/// direct reads bring the same bytes from the same files, measured right before, and with that in which they come in
/// pieces and are looked at; and the most memory that the kernel has seen with what the server's budget comes to. Run
/// nothing else meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed-lab kv-beyond models/1b --kv-disk /var/tmp/kv --memory 8G\n  \
    interbed-lab kv-beyond models/1b --context 16384 --kv-memory 128M --json")]
pub struct KvBeyondArgs {
    /// A model whose context is longer than --kv-memory holds: a directory, a GGUF file or a packed store
    #[arg(value_name = "MODEL", env = "INTERBED_MODEL")]
    pub model: Option<PathBuf>,

    /// A directory on the disk that is measured, in which a new one is made and removed; by default that for temporary
    /// files
    #[arg(long, value_name = "DIR")]
    pub kv_disk: Option<PathBuf>,

    /// Tokens of prompt and answer; without it 32768, or as many as the model's context has
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<NonZeroUsize>,

    /// Tokens of the answer
    #[arg(long, value_name = "TOKENS", default_value = "32")]
    pub answer: NonZeroUsize,

    /// Memory for KV, with the buffers through which it streams
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    pub kv_memory: Bytes,

    /// Memory of each server
    #[arg(long, value_name = "SIZE", default_value = "6G")]
    pub memory: Bytes,

    /// Measurements; the median counts
    #[arg(long, value_name = "N", default_value = "3")]
    pub repeat: NonZeroUsize,

    /// One JSON object on stdout instead of the table
    #[arg(long)]
    pub json: bool,

    /// Options of `interbed serve`
    #[arg(last = true, value_name = "OPTIONS")]
    pub server: Vec<String>,
}

/// Runs `interbed-lab kv-beyond`.
pub fn run(args: KvBeyondArgs) -> Result<()> {
    let parent = args.kv_disk.clone().unwrap_or_else(std::env::temp_dir);
    let directory = parent.join(format!("interbed-bench-beyond-{}", std::process::id()));
    let measured = measure(&args, &directory);
    // The directory is removed whether the measurement succeeded or not.
    let _ = std::fs::remove_dir_all(&directory);
    let measured = measured?;
    if args.json {
        println!("{measured}");
        return Ok(());
    }
    let number = |name: &str| measured[name].as_f64().unwrap_or(f64::NAN);
    let bytes = |name: &str| Bytes(number(name) as u64);
    let context = &measured["context"];
    println!("a context of {context} tokens, the same text with all KV in memory and with {}", args.kv_memory);
    println!("  a token, all in memory       {:>9.3} s", number("ample_token_s"));
    println!("  a token                      {:>9.3} s", number("token_s"));
    println!("  bound, {:>9} of KV read {:>9.3} s", bytes("read_bytes").to_string(), number("bound_s"));
    println!("  a token over bound           {:>9.2}", number("over_bound"));
    println!("  a token over reading and using the bytes, {:>5.3} s {:>4.2}", number("use_s"), number("over_use"));
    println!("  peak memory, of a budget of  {:>9} {:>9}", bytes("peak_bytes"), bytes("budget_bytes"));
    Ok(())
}

/// Returns the number of tokens of prompt and answer.
fn context(args: &KvBeyondArgs) -> Result<usize> {
    let dir = ModelDir::open(args.model.as_deref())?;
    let context = args.context.map_or(CONTEXT.min(dir.config.blueprint.context), NonZeroUsize::get);
    if context <= 2 * STRETCH {
        return Err(Advised::input(
            format!(
                "{context} tokens of {} are too few: KV that memory does not hold comes from disk in parts of \
                 {STRETCH} tokens",
                dir.name()
            ),
            "give a MODEL with a longer context, or a longer --context",
        ));
    }
    Ok(context)
}

fn measure(args: &KvBeyondArgs, directory: &Path) -> Result<Value> {
    let answer = args.answer.get().max(4);
    let length = context(args)?.saturating_sub(answer).max(1);
    let bar = progress::steps("measuring", args.repeat.get() as u64 + 1);
    let prompt: Vec<usize> = (0..length).map(|at| (at * at * 31 + at * 7919) % 199 + 5).collect();
    let store = directory.display().to_string();
    let (memory, context) = (args.memory.0.to_string(), (length + answer).to_string());
    let common = ["--memory", &memory, "--max-model-len", &context, "--kv-disk", &store, "--kv-disk-size", "8G"];
    let server = Server::start(args.model.as_ref(), &common, &args.server)?;
    let ample = server.complete(&prompt, answer)?;
    server.settle()?;
    let written = server.metric("interbed:kv_disk_written_bytes_total")? as u64;
    drop(server);
    bar.inc(1);

    let (mut times, mut bounds, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let (mut uses, mut over_use) = (Vec::new(), Vec::new());
    let (mut bytes, mut peak, mut budget) = (0.0, 0, 0);
    let kv_memory = args.kv_memory.0.to_string();
    for _ in 0..args.repeat.get() {
        let options = [&common[..], &["--kv-memory", &kv_memory]].concat();
        let server = Server::start(args.model.as_ref(), &options, &args.server)?;
        let (rate, used) = (disk_rate(directory, written)?, used_rate(directory, written)?);
        let tight = server.complete(&prompt, answer)?;
        if tight.text != ample.text {
            bail!("with {} the answer is {:?}, with ample memory {:?}", args.kv_memory, tight.text, ample.text);
        }
        let found = tight.cached_tokens as usize;
        if found + STRETCH < length {
            bail!("only {found} of {length} tokens were found on disk");
        }
        // One pass computes the tokens that were not found and gives the first token; each other token takes one pass.
        // The blocks that were fetched into memory once are too few to matter.
        bytes = server.metric("interbed:kv_disk_read_bytes_total")? / answer as f64;
        let token = median(tight.gaps);
        times.push(token);
        bounds.push(bytes / rate);
        ratios.push(token / (bytes / rate));
        uses.push(bytes / used);
        over_use.push(token / (bytes / used));
        peak = server.peak_memory()?.max(peak);
        let unused = server.said("unused").and_then(|unused| unused.parse::<Bytes>().ok());
        budget = args.memory.0 - unused.context("the server does not tell what it leaves unused")?.0;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(json!({
        "name": "kv_beyond", "context": length + answer, "kv_memory": args.kv_memory.0, "read_bytes": bytes,
        "ample_token_s": median(ample.gaps), "token_s": median(times), "bound_s": median(bounds),
        "over_bound": median(ratios), "use_s": median(uses), "over_use": median(over_use),
        "peak_bytes": peak, "budget_bytes": budget,
    }))
}

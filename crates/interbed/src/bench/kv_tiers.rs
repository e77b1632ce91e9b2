//! `interbed bench kv-tiers`: measures KV on disk, compared with what the disk allows.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use interbed_device::Bytes;
use serde_json::{Value, json};

use super::median;
use super::server::{Server, disk_rate};
use crate::progress;

/// Prompts have a multiple of this many tokens, plus one. The number is a multiple of every block size.
const BLOCK: usize = 256;

/// The number of tokens that are generated to measure a decode step.
const STEPS: usize = 9;

/// The number of sequences that decode while KV is written to disk.
const SEQUENCES: usize = 4;
/// The number of tokens that each of these sequences generates.
const ANSWER: usize = 256;

/// Measure KV on disk: the first token of a known prompt after a restart, and decode while KV is written
///
/// The benchmark starts `interbed serve`, kills it as `kill -9` does, and starts it again. It compares the time to the
/// first token of a prompt whose KV is on disk with two other times. The first is a bound: the time of reading the same
/// bytes from the same files by plain direct reads, measured right before, plus the time of one decode step. The second
/// is the time of computing the whole prompt.
///
/// Then two servers decode in turns, one with `--kv-disk-mode mirror` and one without KV on disk. Reported ratios are
/// medians over the repetitions. Run nothing else on the machine meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed bench kv-tiers models/1b --kv-disk /var/tmp/kv --memory 8G\n  \
    interbed bench kv-tiers models/1b --prompt-tokens 2048 --json\n  \
    interbed bench kv-tiers models/1b -- --kv-dtype q8         # options of interbed serve")]
pub struct KvTiersArgs {
    /// A Hugging Face directory, a GGUF file or a packed store. The default is the model that ships with Interbed.
    #[arg(value_name = "MODEL", env = "INTERBED_MODEL")]
    pub model: Option<PathBuf>,

    /// A directory on the disk to measure. The benchmark creates a directory there, and removes it at the end. The
    /// default is the directory for temporary files.
    #[arg(long, value_name = "DIR")]
    pub kv_disk: Option<PathBuf>,

    /// The number of tokens of the prompt, which is rounded down to a multiple of 256 and then increased by 1
    #[arg(long, value_name = "TOKENS", default_value = "8192")]
    pub prompt_tokens: NonZeroUsize,

    /// The number of measurements of each kind, whose median is reported
    #[arg(long, value_name = "N", default_value = "5")]
    pub repeat: NonZeroUsize,

    /// The memory of each server
    #[arg(long, value_name = "SIZE", default_value = "6G")]
    pub memory: Bytes,

    /// Print one JSON object per line instead of the table
    #[arg(long)]
    pub json: bool,

    /// Additional options for `interbed serve`
    #[arg(last = true, value_name = "OPTIONS")]
    pub server: Vec<String>,
}

/// Runs `interbed bench kv-tiers`.
pub fn run(args: KvTiersArgs) -> Result<()> {
    let parent = args.kv_disk.clone().unwrap_or_else(std::env::temp_dir);
    let directory = parent.join(format!("interbed-bench-kv-{}", std::process::id()));
    let measured = measure(&args, &directory);
    // The directory is removed in any case, after success or failure.
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
    let server = start(args, Some(&store), &eager)?;
    let most = args.prompt_tokens.get().min(server.context()?.saturating_sub(STEPS + 1));
    // The prompt consists of whole blocks and one more token, which must be computed in any case, in one decode step.
    let length = most / BLOCK * BLOCK + 1;
    let prompt: Vec<usize> = (0..length).map(|at| (at * at * 31 + at * 7919) % 199 + 5).collect();
    let prefill = server.complete(&prompt, 1)?.first_token.as_secs_f64();
    server.settle()?;
    let written = server.metric("interbed:kv_disk_written_bytes_total")? as u64;
    drop(server);
    bar.inc(1);

    let (mut firsts, mut bounds, mut ratios, mut bytes) = (Vec::new(), Vec::new(), Vec::new(), 0.0);
    for _ in 0..args.repeat.get() {
        let server = start(args, Some(&store), &eager)?;
        let rate = disk_rate(&store, written)?;
        let answer = server.complete(&prompt, STEPS)?;
        bytes = server.metric("interbed:kv_disk_read_bytes_total")?;
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

    let mirror = start(args, Some(&directory.join("mirror")), &["--kv-disk-mode", "mirror"])?;
    let plain = start(args, None, &[])?;
    let (mut plains, mut mirrors, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..args.repeat.get() {
        // The two servers also take turns at going first.
        let (one, other) = if round % 2 == 0 { (&plain, &mirror) } else { (&mirror, &plain) };
        let (first, second) = (decode(one, 2 * round)?, decode(other, 2 * round)?);
        let (without, with) = if round % 2 == 0 { (first, second) } else { (second, first) };
        plains.push(without);
        mirrors.push(with);
        ratios.push(with / without);
        bar.inc(1);
    }
    let spilled = mirror.metric("interbed:kv_disk_written_bytes_total")?;
    bar.finish_and_clear();
    let beside = json!({
        "name": "kv_tiers.beside_spilling", "sequences": SEQUENCES, "tokens": ANSWER, "spilled_bytes": spilled,
        "plain_tokens_per_s": median(plains.clone()), "mirror_tokens_per_s": median(mirrors.clone()),
        "mirror_over_plain": median(ratios.clone()),
    });
    Ok((restart, beside))
}

fn start(args: &KvTiersArgs, store: Option<&Path>, options: &[&str]) -> Result<Server> {
    let (memory, store) = (args.memory.0.to_string(), store.map(|store| store.display().to_string()));
    let mut all = vec!["--memory", &memory];
    if let Some(store) = &store {
        all.extend(["--kv-disk", store, "--kv-disk-size", "8G"]);
    }
    all.extend(options);
    Server::start(args.model.as_ref(), &all, &args.server)
}

/// Returns the tokens per second of several sequences that decode together. `seed` determines their prompts.
fn decode(server: &Server, seed: usize) -> Result<f64> {
    let began = Instant::now();
    std::thread::scope(|scope| -> Result<()> {
        let ask = |index: usize| {
            let prompt: Vec<_> = (0..16).map(|at| (1000 * seed + 100 * index + at * at) % 199 + 5).collect();
            scope.spawn(move || server.complete(&prompt, ANSWER))
        };
        let asked: Vec<_> = (0..SEQUENCES).map(ask).collect();
        for answer in asked {
            answer.join().map_err(|_| anyhow::anyhow!("a client has failed"))??;
        }
        Ok(())
    })?;
    Ok((SEQUENCES * ANSWER) as f64 / began.elapsed().as_secs_f64())
}

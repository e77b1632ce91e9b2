//! `interbed bench kv-tiers`: measures KV on disk, compared with what the disk allows.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use interbed_device::Bytes;
use serde_json::json;

use super::median;
use super::pair::Pair;
use super::report::Report;
use super::server::{Server, disk_rate};
use crate::progress;

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
    measured?.print(args.json);
    Ok(())
}

fn measure(args: &KvTiersArgs, directory: &Path) -> Result<Report> {
    let (bar, mut report) = (progress::steps("measuring", 2 * args.repeat.get() as u64 + 1), Report::default());
    let store = directory.join("restart");
    let eager = ["--kv-disk-mode", "eager"];
    let server = start(args, Some(&store), &eager)?;
    // All but one token, which is computed in one decode step, are found.
    let prompt = server.prompt(args.prompt_tokens.get(), STEPS, 0)?;
    let prefill = server.complete(&prompt, 1)?.first_token.as_secs_f64();
    server.settle()?;
    let written = server.metric("interbed:kv_disk_written_bytes_total")? as u64;
    drop(server);
    bar.inc(1);

    let mut bytes = 0.0;
    let restart = Pair::measured(args.repeat.get(), &bar, |_| {
        let server = start(args, Some(&store), &eager)?;
        let rate = disk_rate(&store, written)?;
        let answer = server.complete(&prompt, STEPS)?;
        bytes = server.metric("interbed:kv_disk_read_bytes_total")?;
        let found = answer.cached_tokens as usize;
        if found + 1 < prompt.len() {
            bail!("only {found} of {} tokens were found on disk", prompt.len());
        }
        Ok([bytes / rate + median(answer.gaps), answer.first_token.as_secs_f64()])
    })?;
    let Pair { first: bound, second: first, ratio: over_bound, .. } = restart;
    report.line(format_args!("a prompt of {} tokens, {} of KV", prompt.len(), Bytes(bytes as u64)));
    report.line(format_args!("  prefill                      {prefill:>9.3} s"));
    report.line(format_args!("  first token after a restart  {first:>9.3} s"));
    report.line(format_args!("  bound                        {bound:>9.3} s"));
    report.line(format_args!("  first token over bound       {over_bound:>9.2}"));
    report.line(format_args!("  prefill over first token     {:>9.1}", prefill / first));
    report.figure(json!({
        "name": "kv_tiers.restart", "prompt_tokens": prompt.len(), "bytes": bytes, "prefill_s": prefill,
        "first_token_s": first, "bound_s": bound, "over_bound": over_bound, "prefill_over_first_token": prefill / first,
    }));

    let mirror = start(args, Some(&directory.join("mirror")), &["--kv-disk-mode", "mirror"])?;
    let plain = start(args, None, &[])?;
    let beside = Pair::measured(args.repeat.get(), &bar, |round| {
        // The two servers also take turns at going first.
        let (one, other) = if round % 2 == 0 { (&plain, &mirror) } else { (&mirror, &plain) };
        let (first, second) = (decode(one, 2 * round)?, decode(other, 2 * round)?);
        Ok(if round % 2 == 0 { [first, second] } else { [second, first] })
    })?;
    let spilled = mirror.metric("interbed:kv_disk_written_bytes_total")?;
    bar.finish_and_clear();
    report.line(format_args!("decode of {SEQUENCES} sequences, {ANSWER} tokens each"));
    report.line(format_args!("  without KV on disk           {:>9.1} tokens/s", beside.first));
    report.line(format_args!("  beside spilling              {:>9.1} tokens/s", beside.second));
    report.line(format_args!("  beside spilling over without {:>9.3}", beside.ratio));
    report.figure(json!({
        "name": "kv_tiers.beside_spilling", "sequences": SEQUENCES, "tokens": ANSWER, "spilled_bytes": spilled,
        "plain_tokens_per_s": beside.first, "mirror_tokens_per_s": beside.second, "mirror_over_plain": beside.ratio,
    }));
    Ok(report)
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

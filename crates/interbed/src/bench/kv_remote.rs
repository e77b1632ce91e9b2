//! `interbed bench kv-remote`: measures a prompt whose KV another server has computed.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use interbed_device::Bytes;
use serde_json::json;

use super::pair::Pair;
use super::report::Report;
use super::server::Server;
use crate::progress;

/// The maximum time until the last blocks have been written.
const PATIENCE: Duration = Duration::from_secs(120);

/// Measure KV in a shared store: a prompt that another server has computed
///
/// A server computes a prompt, and its KV goes to the store; it ends, and others are started one after the other, which
/// find it there. The time to their first token is compared with the prefill that it replaces, and with the rate at
/// which the store was read. Run nothing else meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed bench kv-remote models/1b redis://127.0.0.1:6379\n  \
    interbed bench kv-remote models/1b s3://my-bucket --prompt-tokens 2048 --json\n  \
    interbed bench kv-remote models/1b redis://cache -- --kv-dtype q8     # options of interbed serve")]
pub struct KvRemoteArgs {
    /// A Hugging Face directory, a GGUF file or a packed store
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    /// The store, as for `interbed serve --kv-remote`
    #[arg(value_name = "ADDRESS")]
    pub address: String,

    /// Tokens of the prompt, rounded down to a multiple of 256, and one more
    #[arg(long, value_name = "TOKENS", default_value = "8192")]
    pub prompt_tokens: NonZeroUsize,

    /// Servers that find it; the median counts
    #[arg(long, value_name = "N", default_value = "3")]
    pub repeat: NonZeroUsize,

    /// Memory of each server
    #[arg(long, value_name = "SIZE", default_value = "6G")]
    pub memory: Bytes,

    /// One JSON object on stdout instead of the table
    #[arg(long)]
    pub json: bool,

    /// Options of `interbed serve`
    #[arg(last = true, value_name = "OPTIONS")]
    pub server: Vec<String>,
}

/// Runs `interbed bench kv-remote`.
pub fn run(args: KvRemoteArgs) -> Result<()> {
    let bar = progress::steps("measuring", args.repeat.get() as u64 + 1);
    let memory = args.memory.0.to_string();
    let start = || {
        let options = ["--memory", &memory, "--kv-remote-ttl", "1h"];
        Server::start_in(&[("INTERBED_KV_REMOTE", &args.address)], Some(&args.model), &options, &args.server)
    };
    let server = start()?;
    // The prompt differs from those of earlier measurements, whose KV may still be in the store.
    let prompt = server.prompt(args.prompt_tokens.get(), 1, std::process::id() as usize)?;
    let computed = server.complete(&prompt, 1)?;
    if computed.cached_tokens > 0 {
        bail!("{} tokens of the prompt were there before; run it again", computed.cached_tokens);
    }
    let began = Instant::now();
    while server.metric("interbed:kv_remote_queued_blocks")? > 0.0
        || server.metric("interbed:kv_remote_stored_blocks_total")? == 0.0
    {
        let failed = server.metric("interbed:kv_remote_write_errors_total")?;
        if failed > 0.0 || began.elapsed() > PATIENCE {
            bail!("the store did not take the prompt ({failed} writes failed); see that it is there and has room");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(server);
    bar.inc(1);

    let mut bytes = 0.0;
    let Pair { first, second: rate, .. } = Pair::measured(args.repeat.get(), &bar, |_| {
        let server = start()?;
        let answer = server.complete(&prompt, 1)?;
        let found = answer.cached_tokens as usize;
        if found + 1 < prompt.len() {
            bail!("only {found} of {} tokens were found in the store; has it room for them?", prompt.len());
        }
        bytes = server.metric("interbed:kv_remote_read_bytes_total")?;
        Ok([answer.first_token.as_secs_f64(), server.metric("interbed:kv_remote_read_rate")?])
    })?;
    bar.finish_and_clear();
    let (prefill, mut report) = (computed.first_token.as_secs_f64(), Report::default());
    report.line(format_args!("a prompt of {} tokens, {} of KV", prompt.len(), Bytes(bytes as u64)));
    report.line(format_args!("  prefill                      {prefill:>9.3} s"));
    report.line(format_args!("  first token from the store   {first:>9.3} s, read at {}/s", Bytes(rate as u64)));
    report.line(format_args!("  prefill over first token     {:>9.1}", prefill / first));
    report.figure(json!({
        "name": "kv_remote", "prompt_tokens": prompt.len(), "bytes": bytes, "prefill_s": prefill,
        "first_token_s": first, "bytes_per_s": rate, "prefill_over_first_token": prefill / first,
    }));
    report.print(args.json);
    Ok(())
}

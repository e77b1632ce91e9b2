//! `strata replay`: the block manager over a trace of requests, without a model.

use std::io::{BufWriter, Write, stdout};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use strata_device::Bytes;
use strata_kv::{BLOCKS_MAX, EvictionKind};
use strata_sim::eviction;
use strata_sim::replay::{self, LOAD_BLOCKS_MAX, Pace, ReplayRequest, TOKENS_MAX};

use crate::options::count;
use crate::progress::Bars;

/// Largest `--repeat`.
const REPEAT_MAX: usize = 1000;

/// Replay a trace of requests through the block manager, without a model
///
/// Shows how much of the prompts each eviction policy finds in caches of several sizes, what the load takes in blocks
/// and in pre-allocated memory, and how long the manager's operations take.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    strata replay conversation_trace.jsonl                                # Mooncake's format: hit rates and load\n  \
    strata replay conversation_trace.jsonl --blocks 500,2000,8000 --svg hits.svg\n  \
    strata replay conversation_trace.jsonl --policy lru --json            # one figure a line\n  \
    strata replay AzureLLMInferenceTrace_conv.csv --block-bytes 2M        # Azure's format: the load\n\n\
    The first trace lies in FAST25-release/traces of github.com/kvcache-ai/Mooncake, the other in\n\
    data of github.com/Azure/AzurePublicDataset. docs/replay.md says what is counted how.")]
pub struct ReplayArgs {
    /// Mooncake's JSON lines (timestamp, input_length, output_length, hash_ids), or Azure's CSV (TIMESTAMP,
    /// ContextTokens, GeneratedTokens), which has no hashes and so gives no hit rates
    pub trace: PathBuf,

    /// Cache sizes, in blocks of the trace
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "1000,3000,10000,30000",
          value_parser = count::<{ u32::MAX as usize }>)]
    pub blocks: Vec<NonZeroUsize>,

    /// Tiers of KV, the topmost first, in blocks of the trace: what each would have found, and what would have been
    /// written to it, with and without a gate before the last, which is a disk. Nothing else is replayed then
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = count::<{ BLOCKS_MAX }>,
          num_args = 1..=8)]
    pub tiers: Vec<NonZeroUsize>,

    /// Eviction policies; without it all of them. `strata serve` uses adaptive
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = eviction::policy)]
    pub policy: Vec<EvictionKind>,

    /// Say why requests missed: all together for each policy and size, and the worst of them; with --json, each request
    #[arg(long)]
    pub explain: bool,

    /// Tokens of a block in the load: a power of two from 1 to 256
    #[arg(long, value_name = "TOKENS", default_value = "16")]
    pub block_size: usize,

    /// Bytes of such a block, to tell the load in bytes: as `strata info` says those of a token, that times
    /// --block-size
    #[arg(long, value_name = "SIZE")]
    pub block_bytes: Option<Bytes>,

    /// Tokens of a prompt that are computed in a second, each prompt for itself
    #[arg(long, value_name = "TOKENS/S", default_value = "10000", value_parser = rate)]
    pub prefill_rate: f64,

    /// Tokens of an answer that a sequence is given in a second
    #[arg(long, value_name = "TOKENS/S", default_value = "30", value_parser = rate)]
    pub decode_rate: f64,

    /// Blocks that the load is to live in; without it, as many as it takes at its peak
    #[arg(long, value_name = "N", value_parser = count::<LOAD_BLOCKS_MAX>)]
    pub load_blocks: Option<NonZeroUsize>,

    /// Tokens of a sequence that pre-allocation has to be ready for; without it, those of the longest request
    #[arg(long, value_name = "TOKENS", value_parser = count::<TOKENS_MAX>)]
    pub max_model_len: Option<NonZeroUsize>,

    /// Times that everything is measured; the quickest is told, as others may use the machine meanwhile
    #[arg(long, value_name = "N", default_value = "5", value_parser = count::<REPEAT_MAX>)]
    pub repeat: NonZeroUsize,

    /// Write a plot of hit rate over cache size
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// One JSON object a line instead of the tables
    #[arg(long)]
    pub json: bool,
}

/// Runs `strata replay`.
///
/// # Errors
/// A trace that cannot be read or believed, options that contradict it, a picture that cannot be written.
pub fn run(args: ReplayArgs) -> Result<()> {
    let request = ReplayRequest {
        trace: args.trace,
        blocks: args.blocks,
        tiers: args.tiers,
        policies: args.policy,
        explain: args.explain,
        block_size: args.block_size,
        block_bytes: args.block_bytes,
        pace: Pace { prefill_rate: args.prefill_rate, decode_rate: args.decode_rate },
        load_blocks: args.load_blocks,
        longest: args.max_model_len,
        repeat: args.repeat,
        picture: args.svg,
        json: args.json,
    };
    let mut out = BufWriter::new(stdout().lock());
    replay::run(request, &mut out, &mut Bars::default())?;
    out.flush()?;
    Ok(())
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.trim().parse::<f64>().ok().filter(|rate| (0.1..=1e6).contains(rate));
    rate.ok_or_else(|| "expected a number of tokens a second, from 0.1 to 1e6".to_owned())
}

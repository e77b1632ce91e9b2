//! `strata replay`: the block manager over a trace of requests, without a model (K7, K9).

mod azure;
mod comparison;
mod explain;
mod hit_rates;
mod hits;
mod json;
mod load;
mod mooncake;
mod offline;
mod operations;
mod plot;
mod reader;
mod report;
mod room;
mod trace;

use std::fs::{self, File};
use std::io::{self, BufWriter, Write, stdout};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use strata_device::Bytes;
use strata_kv::{EvictionKind, KvConfig};

use crate::failure::Advised;
use crate::options::count;
use crate::progress;
use comparison::{Comparison, LOAD_BLOCKS_MAX, Question};
use explain::{Case, Listener};
use hit_rates::HitRates;
use load::Pace;
use operations::Operation;
use reader::TOKENS_MAX;
use trace::Trace;

/// Largest `--repeat`.
const REPEAT_MAX: usize = 1000;

/// Most cache sizes of one run.
const SIZES_MAX: usize = 256;

/// Replay a trace of requests through the block manager, without a model
///
/// Shows how much of the prompts each eviction policy finds in caches of several sizes, what the load takes in blocks and
/// in pre-allocated memory, and how long the manager's operations take.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    strata replay conversation_trace.jsonl                                # Mooncake's format: hit rates and load\n  \
    strata replay conversation_trace.jsonl --blocks 500,2000,8000 --svg hits.svg\n  \
    strata replay conversation_trace.jsonl --policy lru --json            # one figure a line\n  \
    strata replay AzureLLMInferenceTrace_conv.csv --block-bytes 2M        # Azure's format: the load\n\n\
    The first trace lies in FAST25-release/traces of github.com/kvcache-ai/Mooncake, the other in\n\
    data of github.com/Azure/AzurePublicDataset. docs/replay.md says what is counted how.")]
pub struct ReplayArgs {
    /// Mooncake's JSON lines (timestamp, input_length, output_length, hash_ids), or Azure's CSV (TIMESTAMP, ContextTokens,
    /// GeneratedTokens), which has no hashes and so gives no hit rates
    pub trace: PathBuf,

    /// Cache sizes, in blocks of the trace
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "1000,3000,10000,30000",
          value_parser = count::<{ u32::MAX as usize }>)]
    pub blocks: Vec<NonZeroUsize>,

    /// Eviction policies; without it all of them. `strata serve` uses adaptive
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub policy: Vec<EvictionKind>,

    /// Say why requests missed: all together for each policy and size, and the worst of them; with --json, each request
    #[arg(long)]
    pub explain: bool,

    /// Tokens of a block in the load: a power of two from 1 to 256
    #[arg(long, value_name = "TOKENS", default_value = "16")]
    pub block_size: usize,

    /// Bytes of such a block, to tell the load in bytes: as `strata info` says those of a token, that times --block-size
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

/// All that was found.
pub struct Found {
    /// The trace's file name.
    pub name: String,
    pub trace: Trace,
    /// None without hashes.
    pub hits: Option<HitRates>,
    pub load: Comparison,
    pub operations: Vec<(EvictionKind, Vec<Operation>)>,
    /// Bytes of a block in the load.
    pub block_bytes: Option<Bytes>,
}

/// Runs `strata replay`.
///
/// # Errors
/// A trace that cannot be read or believed, options that contradict it, a picture that cannot be written.
pub fn run(args: ReplayArgs) -> Result<()> {
    KvConfig { block_size: args.block_size, ..KvConfig::default() }.check()?;
    let sizes = sizes(&args.blocks)?;
    let trace = read(&args.trace)?;
    // Opened before anything is computed, so that no result is lost for it.
    let picture = args.svg.as_deref().map(|path| Picture::open(path, &trace)).transpose()?;
    let mut out = BufWriter::new(stdout().lock());
    let tell = |kind: EvictionKind, blocks: usize, case: &Case| match args.json {
        true => Ok(out.write_all(json::case_line(kind, blocks, case).as_bytes())?),
        false => Ok(()),
    };
    let found = Found::find(&args, trace, &sizes, tell)?;
    out.write_all(if args.json { found.json_lines() } else { found.report() }.as_bytes())?;
    out.flush()?;
    if let (Some(picture), Some(hits)) = (picture, &found.hits) {
        picture.write(&plot::svg(&found.name, &hits.sizes, &hits.lines(&found.trace)))?;
    }
    Ok(())
}

impl Found {
    fn find(
        args: &ReplayArgs,
        trace: Trace,
        sizes: &[usize],
        mut tell: impl FnMut(EvictionKind, usize, &Case) -> Result<()>,
    ) -> Result<Self> {
        let asked = |kind: &EvictionKind| args.policy.is_empty() || args.policy.contains(kind);
        let kinds: Vec<EvictionKind> = EvictionKind::ALL.into_iter().filter(asked).collect();
        let question = Question {
            pace: Pace { prefill_rate: args.prefill_rate, decode_rate: args.decode_rate },
            block_size: args.block_size,
            blocks: args.load_blocks.map(NonZeroUsize::get),
            longest: args.max_model_len.map(NonZeroUsize::get),
        };
        // Refused now rather than after the hit rates.
        question.ample_blocks(&trace)?;
        let hits = if trace.has_hashes() {
            let runs = 1 + (kinds.len() + 2) * sizes.len();
            let bar = progress::steps("replaying", runs as u64);
            let explain = args.explain.then_some(&mut tell as &mut Listener<'_>);
            let hits = HitRates::find(&trace, &kinds, sizes, explain, args.repeat.get(), || bar.inc(1));
            bar.finish_and_clear();
            Some(hits?)
        } else {
            None
        };
        let bar = progress::steps("loading", (question.replays() * trace.requests().len()) as u64);
        let load = question.answer(&trace, || bar.inc(1));
        bar.finish_and_clear();
        let bar = progress::steps("measuring", kinds.len() as u64);
        let operations = kinds.iter().map(|&kind| {
            let operations = operations::measure(&trace, kind, args.block_size, args.repeat.get())?;
            bar.inc(1);
            Ok((kind, operations))
        });
        let operations = operations.collect::<Result<_>>();
        bar.finish_and_clear();
        let name = args.trace.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Ok(Self { name, trace, hits, load: load?, operations: operations?, block_bytes: args.block_bytes })
    }
}

fn read(path: &Path) -> Result<Trace> {
    let bar = progress::bytes("reading", fs::metadata(path).map_or(0, |metadata| metadata.len()));
    let trace = reader::read(path, |bytes| bar.inc(bytes));
    bar.finish_and_clear();
    trace.map_err(|error| Advised::input(error.to_string(), error.hint()))
}

/// The file of `--svg`.
struct Picture<'p> {
    path: &'p Path,
    file: File,
}

impl<'p> Picture<'p> {
    fn open(path: &'p Path, trace: &Trace) -> Result<Self> {
        if !trace.has_hashes() {
            let problem = "--svg shows hit rates, and the trace has no hash_ids";
            return Err(Advised::input(problem, "give a trace with hash_ids"));
        }
        let file = File::create(path).map_err(|error| Self::refused(path, error))?;
        Ok(Self { path, file })
    }

    fn write(mut self, svg: &str) -> Result<()> {
        self.file.write_all(svg.as_bytes()).map_err(|error| Self::refused(self.path, error))
    }

    fn refused(path: &Path, error: io::Error) -> anyhow::Error {
        Advised::system(format!("cannot write {}", path.display()), "name a file that can be written", error)
    }
}

fn sizes(asked: &[NonZeroUsize]) -> Result<Vec<usize>> {
    if asked.len() > SIZES_MAX {
        return Err(Advised::input(
            format!("--blocks names {} sizes", asked.len()),
            format!("name at most {SIZES_MAX} in one run"),
        ));
    }
    let mut sizes: Vec<usize> = asked.iter().map(|size| size.get()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes)
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.trim().parse::<f64>().ok().filter(|rate| (0.1..=1e6).contains(rate));
    rate.ok_or_else(|| "expected a number of tokens a second, from 0.1 to 1e6".to_owned())
}

//! `interbed bench`: measures how fast a model runs on this machine, compared with what the machine allows.

mod experts;
mod experts_report;
mod kv_remote;
mod kv_tiers;
mod limits;
mod on_gpu;
mod report;
pub mod server;
mod stream;
mod stream_report;
mod work;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use interbed_device::Bytes;
use interbed_engine::{ModelRunner, Runner};
use interbed_kernels::Unit;
use interbed_model::{BatchSequence, LogitRows, SequenceBlocks};
use serde_json::json;

use crate::audience::{Audience, Surroundings};
use crate::device_option::DeviceOption;
use crate::footprint::Footprint;
use crate::gpu;
use crate::hub;
use crate::load::{Runnable, load_weights};
use crate::model_dir::ModelDir;
use crate::options::{ComputeOptions, LimitOptions};
use crate::progress;
use limits::{Bound, MachineLimits};
use report::{Figure, Report};
use work::{ModelWork, Work};

/// Measure prefill and decode, beside the bound that memory and arithmetic set on this machine
///
/// The limits are measured in the same run, beside every pass: a read sweep over memory much larger than the caches,
/// and register-only loops of the unit that multiplies this model's weights. Run nothing else meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed bench                                        # the bundled model\n  \
    interbed bench models/1b --batch 1,8,32               # decode at several batch sizes\n  \
    interbed bench models/1b --prompt-tokens 128,512      # prompts of several lengths\n  \
    interbed bench models/1b --prompt-tokens 512 --json   # one JSON object a line, for scripts\n  \
    interbed bench models/1b --device vulkan:0            # on a GPU, beside what its memory and link allow\n  \
    interbed bench stream models/8b --memory 6G           # a model that is larger than memory")]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct BenchArgs {
    /// Measure something else
    #[command(subcommand)]
    pub what: Option<What>,

    /// A Hugging Face directory, a GGUF file or a packed store; without it the model that ships with Interbed
    #[arg(value_name = "MODEL", env = "INTERBED_MODEL")]
    pub model: Option<PathBuf>,

    /// Sequences that decode together, several to compare
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "1,8")]
    pub batch: Vec<NonZeroUsize>,

    /// Tokens of each sequence before decode is measured
    #[arg(long, value_name = "TOKENS", default_value = "32")]
    pub context: NonZeroUsize,

    /// Tokens of the prompt whose prefill is measured, several to compare
    #[arg(long, value_name = "TOKENS,...", value_delimiter = ',', default_value = "512")]
    pub prompt_tokens: Vec<NonZeroUsize>,

    /// Passes of each measurement, at most 5 of a prefill; the median counts
    #[arg(long, value_name = "N", default_value = "15")]
    pub repeat: NonZeroUsize,

    /// Memory that the read sweeps walk through, besides --memory: much more than the caches hold
    #[arg(long, value_name = "SIZE", default_value = "2G")]
    pub sweep: Bytes,

    /// One JSON object a line on stdout instead of the table
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub limits: LimitOptions,

    #[command(flatten)]
    pub compute: ComputeOptions,
}

/// Other things to measure.
#[derive(Debug, Subcommand)]
pub enum What {
    Stream(Box<stream::StreamArgs>),
    Experts(Box<experts::ExpertsArgs>),
    KvTiers(kv_tiers::KvTiersArgs),
    KvRemote(kv_remote::KvRemoteArgs),
}

impl BenchArgs {
    /// Returns what is measured on a GPU.
    fn on_gpu(&self) -> on_gpu::GpuMeasurements<'static> {
        on_gpu::GpuMeasurements {
            batch: self.batch.iter().map(|batch| batch.get()).collect(),
            context: self.context.get(),
            prompt_tokens: self.prompt_tokens.iter().map(|tokens| tokens.get()).collect(),
            repeat: self.repeat.get(),
            policies: None,
            timeline: None,
            json: self.json,
        }
    }

    fn prefill_repeat(&self) -> usize {
        self.repeat.get().min(5)
    }

    /// Returns the number of positions that a decoding sequence reaches: its context, a warm-up pass and the measured
    /// passes. Returns `None` if the sum overflows.
    fn decode_len(&self) -> Option<usize> {
        self.context.get().checked_add(self.repeat.get())?.checked_add(1)
    }
}

/// Runs `interbed bench`.
pub fn run(args: BenchArgs) -> Result<()> {
    match args.what {
        Some(What::Stream(args)) => return stream::run(*args),
        Some(What::Experts(args)) => return experts::run(*args),
        Some(What::KvTiers(args)) => return kv_tiers::run(args),
        Some(What::KvRemote(args)) => return kv_remote::run(args),
        None => {}
    }
    let path = hub::local(args.model.as_deref(), &args.limits, Audience::Nobody)?;
    let dir = ModelDir::open(path.as_deref())?;
    let surroundings = Surroundings { footprint: Footprint::of(None), audience: Audience::Nobody };
    let largest = args.batch.iter().map(|batch| batch.get()).max().unwrap_or(0);
    if largest > args.limits.max_num_seqs.get() {
        bail!("--batch {largest} needs --max-num-seqs {largest} or more");
    }
    let asked = LimitOptions { compute: args.compute.clone(), ..args.limits.clone() };
    let device = gpu::settled(&dir, &asked);
    if device != DeviceOption::Cpu {
        let wanted = args.on_gpu();
        let limits = LimitOptions { compute: ComputeOptions { device, ..args.compute }, ..args.limits };
        return on_gpu::run(&dir, &limits, &wanted);
    }
    let Runnable { runner, plan, batched_tokens: chunk, .. } = load_weights(&dir, &args.limits, &surroundings)?;
    let (block_size, capacity) = (runner.device.kv().layout().block_size(), plan.num_blocks);
    let longest_prompt = args.prompt_tokens.iter().map(|tokens| tokens.get()).max().unwrap_or(0);
    let fits = args.decode_len().is_some_and(|decode| {
        decode.max(longest_prompt) <= plan.max_model_len
            && largest.saturating_mul(decode.div_ceil(block_size)) <= capacity
    });
    if !fits {
        bail!(
            "KV memory holds {} tokens, {} a sequence, which is too little for this measurement; give more --memory, \
             or \
             measure a smaller --batch, --context, --repeat or --prompt-tokens",
            capacity * block_size,
            plan.max_model_len
        );
    }
    let work = ModelWork::of(&dir, &args.limits);
    let limits =
        MachineLimits::new(runner.device.cpu(), Unit::of(runner.device.cpu().level, work.weights), args.sweep)?;
    let mut bench = Bench { runner, limits, block_size, chunk, vocab: dir.config.blueprint.vocab_size };

    let bar = progress::steps("measuring", (args.batch.len() + args.prompt_tokens.len()) as u64);
    let mut figures = Vec::new();
    for batch in args.batch.iter().map(|batch| batch.get()) {
        let moved = work.decode(batch, args.context.get() + 1 + args.repeat.get() / 2);
        let measured = bench.decode(batch, args.context.get(), args.repeat.get(), moved)?;
        figures.push(Figure {
            name: "decode.tokens_per_s",
            tokens: batch,
            params: json!({"batch": batch, "context": args.context}),
            measured,
            work: moved,
        });
        bar.inc(1);
    }
    for tokens in args.prompt_tokens.iter().map(|tokens| tokens.get()) {
        let moved = work.prefill(tokens, chunk);
        let measured = bench.prefill(tokens, args.prefill_repeat(), moved)?;
        figures.push(Figure {
            name: "prefill.tokens_per_s",
            tokens,
            params: json!({"prompt_tokens": tokens}),
            measured,
            work: moved,
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    let (cpu, machine) = (bench.runner.device.cpu(), bench.limits.summary());
    let report = Report { model: dir.name(), work, level: cpu.level, threads: cpu.pool.threads(), machine, figures };
    print!("{}", if args.json { report.json_lines() } else { report.table() });
    Ok(())
}

/// The measurements of one amount of work.
struct Measured {
    /// The median of the times of the passes.
    seconds: f64,
    /// The median of the ratios of bound to measured time. Each bound is measured right before its pass.
    share_of_bound: f64,
    bound: Bound,
}

struct Bench {
    runner: ModelRunner,
    limits: MachineLimits,
    block_size: usize,
    /// The maximum number of tokens of a prompt that one pass computes.
    chunk: usize,
    vocab: usize,
}

impl Bench {
    /// Measures passes that each decode one token of each of `batch` sequences.
    fn decode(&mut self, batch: usize, context: usize, repeat: usize, work: Work) -> Result<Measured> {
        let each = (context + repeat + 1).div_ceil(self.block_size);
        let tables: Vec<Vec<u32>> =
            (0..batch).map(|i| (i * each..(i + 1) * each).map(|block| block as u32).collect()).collect();
        for table in &tables {
            for start in (0..context).step_by(self.chunk) {
                self.pass(std::slice::from_ref(table), start, self.chunk.min(context - start), LogitRows::None)?;
            }
        }
        // An unmeasured pass warms up the caches.
        self.pass(&tables, context, 1, LogitRows::Last)?;
        self.measure(repeat, work, |bench, i| bench.pass(&tables, context + 1 + i, 1, LogitRows::Last))
    }

    /// Measures the computation of a prompt in chunks, with the logits of its last token.
    fn prefill(&mut self, tokens: usize, repeat: usize, work: Work) -> Result<Measured> {
        let tables = [(0..tokens.div_ceil(self.block_size)).map(|block| block as u32).collect()];
        // An unmeasured prompt warms up the caches.
        self.prompt(&tables, tokens)?;
        self.measure(repeat, work, |bench, _| bench.prompt(&tables, tokens))
    }

    /// Computes a prompt once, and returns the time of all its chunks.
    fn prompt(&mut self, tables: &[Vec<u32>], tokens: usize) -> Result<Duration> {
        let mut time = Duration::ZERO;
        for start in (0..tokens).step_by(self.chunk) {
            let count = self.chunk.min(tokens - start);
            let logits = if start + count == tokens { LogitRows::Last } else { LogitRows::None };
            time += self.pass(tables, start, count, logits)?;
        }
        Ok(time)
    }

    /// Measures `pass` repeatedly. The speed of a shared machine varies, so the machine's limits are measured anew
    /// before every pass, and the median of the ratios counts.
    fn measure(
        &mut self,
        repeat: usize,
        work: Work,
        mut pass: impl FnMut(&mut Self, usize) -> Result<Duration>,
    ) -> Result<Measured> {
        let (mut times, mut shares, mut bounds) = (Vec::new(), Vec::new(), Vec::new());
        for i in 0..repeat {
            let bound = self.limits.bound(self.runner.device.cpu(), work);
            let seconds = pass(self, i)?.as_secs_f64();
            times.push(seconds);
            shares.push(bound.seconds / seconds);
            bounds.push(bound);
        }
        Ok(Measured { seconds: median(times), share_of_bound: median(shares), bound: Bound::median(bounds) })
    }

    /// Computes `count` tokens of each sequence from position `start` on, and returns the time.
    fn pass(&mut self, tables: &[Vec<u32>], start: usize, count: usize, logits: LogitRows) -> Result<Duration> {
        timed_pass(&mut self.runner, self.vocab, tables, start, count, logits)
    }
}

/// Returns the time of one pass that computes `count` tokens of each sequence from position `start` on.
fn timed_pass(
    runner: &mut dyn Runner,
    vocab: usize,
    tables: &[Vec<u32>],
    start: usize,
    count: usize,
    logits: LogitRows,
) -> Result<Duration> {
    let tokens: Vec<u32> = (0..count).map(|i| ((start + i) * 7919 % vocab) as u32).collect();
    let batch: Vec<_> = tables
        .iter()
        .map(|table| BatchSequence {
            tokens: &tokens,
            first_position: start,
            prompt_len: start + count,
            below: 0,
            blocks: SequenceBlocks::Listed(table),
            logits,
        })
        .collect();
    timed(runner, &batch)
}

/// Returns the time of one pass over `batch`.
fn timed(runner: &mut dyn Runner, batch: &[BatchSequence<'_>]) -> Result<Duration> {
    let begin = Instant::now();
    runner
        .forward(batch, &mut |_, logits| {
            std::hint::black_box(&logits);
        })
        .map_err(anyhow::Error::msg)?;
    Ok(begin.elapsed())
}

/// Returns the median of `values`, which must not be empty: for an even number of values, the mean of the two in the
/// middle.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let upper = values.len() / 2;
    if values.len() % 2 == 1 { values[upper] } else { (values[upper - 1] + values[upper]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::limits::{Bound, Limit};
    use super::median;

    #[test]
    fn the_median_is_halfway_between_the_two_in_the_middle() {
        assert_eq!(median(vec![3.0]), 3.0);
        assert_eq!(median(vec![9.0, 1.0, 4.0]), 4.0);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
        assert_eq!(median(vec![8.0, 1.0, 100.0, 4.0]), 6.0);
    }

    #[test]
    fn the_median_of_bounds_is_one_of_them() {
        let bounds = |all: &[f64]| {
            Bound::median(all.iter().map(|&seconds| Bound { seconds, limit: Limit::Memory }).collect()).seconds
        };
        assert_eq!(bounds(&[3.0]), 3.0);
        assert_eq!(bounds(&[9.0, 1.0, 4.0]), 4.0);
        assert_eq!(bounds(&[8.0, 1.0, 100.0, 4.0]), 4.0);
    }
}

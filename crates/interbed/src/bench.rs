//! `interbed bench`: measures how fast a model runs on this machine, compared with what the machine allows.

mod experts;
mod experts_report;
mod kv_remote;
mod kv_tiers;
mod limits;
mod on_gpu;
mod passes;
mod report;
pub mod server;
mod stream;
mod stream_report;
mod work;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use interbed_device::Bytes;
use interbed_kernels::Unit;

use crate::audience::{Audience, Surroundings};
use crate::device_option::DeviceOption;
use crate::gpu;
use crate::hub;
use crate::load::load_onto;
use crate::model_dir::ModelDir;
use crate::options::{ComputeOptions, LimitOptions};
use crate::place::Processor;
use crate::progress;
use limits::{Bound, MachineLimits};
use on_gpu::GpuMeasurements;
use passes::{MeasuredPasses, Measurement, Sizes};
use report::{Figure, Report};
use work::ModelWork;

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

    /// Length of the prompt whose prefill is measured, in tokens; several lengths to compare
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

/// Runs `interbed bench`.
pub fn run(args: BenchArgs) -> Result<()> {
    match args.what {
        Some(What::Stream(args)) => return stream::run(*args),
        Some(What::Experts(args)) => return experts::run(*args),
        Some(What::KvTiers(args)) => return kv_tiers::run(args),
        Some(What::KvRemote(args)) => return kv_remote::run(args),
        None => {}
    }
    let (dir, limits) = open(args.model.as_deref(), args.limits, args.compute, &args.batch)?;
    let sizes = Sizes {
        batch: args.batch.iter().map(|batch| batch.get()).collect(),
        context: args.context.get(),
        prompt_tokens: args.prompt_tokens.iter().map(|tokens| tokens.get()).collect(),
        repeat: args.repeat.get(),
        prefills: args.repeat.get().min(PREFILLS_MAX),
        warms_up: true,
    };
    if limits.compute.device != DeviceOption::Cpu {
        let wanted = GpuMeasurements { sizes, policies: None, timeline: None, json: args.json };
        return on_gpu::run(&dir, &limits, &wanted);
    }
    let mut runnable = load_onto(&Processor, &dir, &limits, &Surroundings::of_passes())?;
    sizes.check(&runnable.division, "--memory")?;
    let _streamed = runnable.streamed.take();
    let passes = MeasuredPasses::new(runnable, dir.config.blueprint.vocab_size)?;
    let work = ModelWork::of(&dir, &limits);
    let cpu = passes.processor();
    let limits = MachineLimits::new(cpu, Unit::of(cpu.level, work.weights), args.sweep)?;
    let mut bench = Bench { passes, limits };

    let bar = progress::steps("measuring", sizes.shapes().count() as u64);
    let mut figures = Vec::new();
    for shape in sizes.shapes() {
        let measurement = bench.passes.prepare(shape, &sizes, &work)?;
        let measured = bench.measure(&measurement)?;
        figures.push(Figure { measurement, measured });
        bar.inc(1);
    }
    bar.finish_and_clear();
    let (cpu, machine) = (bench.passes.processor(), bench.limits.summary());
    let report = Report { model: dir.name(), work, level: cpu.level, threads: cpu.pool.threads(), machine, figures };
    print!("{}", if args.json { report.json_lines() } else { report.to_string() });
    Ok(())
}

/// Opens a model that is measured with batches of these sizes, and settles which device computes.
///
/// # Errors
/// Fails if the model cannot be used, or a batch is larger than the limits allow.
fn open(
    model: Option<&Path>,
    limits: LimitOptions,
    compute: ComputeOptions,
    batch: &[NonZeroUsize],
) -> Result<(ModelDir, LimitOptions)> {
    let path = hub::local(model, &limits, Audience::Nobody)?;
    let dir = ModelDir::open(path.as_deref())?;
    let largest = batch.iter().max().map_or(0, |batch| batch.get());
    if largest > limits.max_num_seqs.get() {
        bail!("--batch {largest} needs --max-num-seqs {largest} or more");
    }
    let mut limits = LimitOptions { compute, ..limits };
    limits.compute.device = gpu::settled(&dir, &limits);
    Ok((dir, limits))
}

/// The maximum number of times that the prefill of a prompt is measured.
const PREFILLS_MAX: usize = 5;

/// The measurements of one amount of work.
struct Measured {
    /// The median of the times of the passes.
    seconds: f64,
    /// The median of the ratios of bound to measured time. Each bound is measured right before its pass.
    share_of_bound: f64,
    bound: Bound,
}

struct Bench {
    passes: MeasuredPasses,
    limits: MachineLimits,
}

impl Bench {
    /// Measures some work repeatedly. The speed of a shared machine varies, so the machine's limits are measured anew
    /// before every time, and the median of the ratios counts.
    fn measure(&mut self, of: &Measurement) -> Result<Measured> {
        let (mut times, mut shares, mut bounds) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..of.repeat {
            let bound = self.limits.bound(self.passes.processor(), of.work);
            let seconds = self.passes.run(of, number)?.as_secs_f64();
            times.push(seconds);
            shares.push(bound.seconds / seconds);
            bounds.push(bound);
        }
        Ok(Measured { seconds: median(times), share_of_bound: median(shares), bound: Bound::median(bounds) })
    }
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

//! `interbed bench`: measures how fast a model runs on this machine, compared with what the machine allows.

mod experts;
mod experts_report;
mod kv_remote;
mod kv_tiers;
mod limits;
mod on_cpu;
mod on_gpu;
mod pair;
mod pass_bench;
mod passes;
mod report;
pub mod server;
mod stream;
mod work;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use interbed_device::Bytes;

use crate::audience::Audience;
use crate::device_option::DeviceOption;
use crate::gpu;
use crate::hub;
use crate::model_dir::ModelDir;
use crate::options::{ComputeOptions, LimitOptions};
use pass_bench::PassBench;
use passes::Sizes;
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
        batch: args.batch,
        context: args.context.get(),
        prompt_tokens: args.prompt_tokens,
        repeat: args.repeat.get(),
        prefills: args.repeat.get().min(PREFILLS_MAX),
        warms_up: true,
    };
    let (work, device) = (ModelWork::of(&dir, &limits), limits.compute.device);
    let bench = PassBench { dir, limits, work, sizes, policies: None, timeline: None, json: args.json };
    if device == DeviceOption::Cpu { on_cpu::run(&bench, args.sweep) } else { on_gpu::run(&bench) }
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

/// Returns the median of `values`, which must not be empty: for an even number of values, the mean of the two in the
/// middle.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let upper = values.len() / 2;
    if values.len() % 2 == 1 { values[upper] } else { (values[upper - 1] + values[upper]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::limits::Bound;
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
        let bound = |&seconds: &f64| Bound::longest([("memory", seconds), ("arithmetic", 0.0)]);
        let bounds = |all: &[f64]| Bound::median(all.iter().map(bound).collect()).seconds;
        assert_eq!(bounds(&[3.0]), 3.0);
        assert_eq!(bounds(&[9.0, 1.0, 4.0]), 4.0);
        assert_eq!(bounds(&[8.0, 1.0, 100.0, 4.0]), 4.0);
    }
}

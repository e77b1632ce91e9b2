//! `interbed synth`: writes a model with random weights and the shape of a real model.

use std::io::Read;
use std::path::PathBuf;

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use interbed_device::Bytes;
use interbed_kernels::DType;
use interbed_model::synth::{SynthSpec, synthesize};
use interbed_model::{preset, preset_names};

use crate::report::report;

/// The maximum size, in bytes, of the file that `--config` names.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Write a model of random weights, with a usable tokenizer, for tests and benchmarks without a download
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed synth --like llama-3.2-1b /tmp/llama-1b\n  \
    interbed synth --like llama-3-70b --layers 8 --dtype f16 /data/llama-70b-8-layers\n  \
    interbed synth --like qwen3-8b --dtype q4_k /data/qwen3-8b-q4k\n  \
    interbed synth --like qwen3-30b-a3b --dtype q4_k --layers 12 /data/qwen3-mixture-q4k\n  \
    interbed synth --config path/to/config.json --seed 7 /tmp/mine\n\n\
    The result is a Hugging Face directory, or with a quantised type or --gguf a directory with model.gguf: `interbed \
    run`, `serve`, `bench` and `info` take it like any other. Matrices whose rows are not whole blocks of the type are \
    stored as q8_0 or f16, vectors as f32. The same seed gives the same bytes. Its output is babble, its speed and \
    memory are those of the real model.")]
pub struct SynthArgs {
    /// Directory to write; must be new or empty
    pub out: PathBuf,
    /// Take the shape of this model
    #[arg(long, value_name = "MODEL", default_value = "llama-3.2-1b", conflicts_with = "config",
          value_parser = PossibleValuesParser::new(preset_names().collect::<Vec<_>>()))]
    pub like: String,
    /// Take the shape from this config.json instead
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Store weights as this type instead of the model's own
    #[arg(long, value_enum)]
    pub dtype: Option<DTypeArg>,
    /// Make this many layers instead of the model's own number
    #[arg(long, value_name = "N")]
    pub layers: Option<usize>,
    /// Choose the weights: the same seed gives the same model
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// How unevenly the routers of a mixture choose experts: 0 for evenly, 1 for very unevenly
    #[arg(long, value_name = "POWER", default_value_t = 0.0, value_parser = skew)]
    pub router_skew: f32,
    /// Largest size of a weight file, such as 5G or 512M (1G = 1024 x 1024 x 1024 bytes)
    #[arg(long, value_name = "SIZE", default_value = "5G")]
    pub shard_size: Bytes,
    /// Write one GGUF file, even if the weights are not quantised
    #[arg(long)]
    pub gguf: bool,
}

/// The types that weights can be stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DTypeArg {
    /// 4 bytes a number
    F32,
    /// 2 bytes a number, more precise than bf16, but with a smaller range
    F16,
    /// 2 bytes a number, the type of most published models
    Bf16,
    /// 8.5 bits a number, in a GGUF file
    #[value(name = "q8_0")]
    Q8_0,
    /// 4.5 bits a number, in a GGUF file
    #[value(name = "q4_0")]
    Q4_0,
    /// 4.5 bits a number, with larger blocks than q4_0, in a GGUF file
    #[value(name = "q4_k")]
    Q4K,
    /// 4.25 bits a number in experts and 16 bits elsewhere, in a GGUF file
    #[value(name = "mxfp4")]
    Mxfp4,
}

impl From<DTypeArg> for DType {
    fn from(dtype: DTypeArg) -> Self {
        match dtype {
            DTypeArg::F32 => DType::F32,
            DTypeArg::F16 => DType::F16,
            DTypeArg::Bf16 => DType::BF16,
            DTypeArg::Q8_0 => DType::Q8_0,
            DTypeArg::Q4_0 => DType::Q4_0,
            DTypeArg::Q4K => DType::Q4K,
            DTypeArg::Mxfp4 => DType::Mxfp4,
        }
    }
}

/// Runs `interbed synth`: progress goes to stderr, the directory's path to stdout.
///
/// # Errors
/// Fails if the configuration is invalid, the directory is not empty, the disk is too small, or a write fails.
pub fn run(args: SynthArgs) -> anyhow::Result<()> {
    let config_json = match &args.config {
        Some(path) => read_config(path).with_context(|| format!("cannot read {}", path.display()))?,
        None => preset(&args.like).with_context(|| format!("unknown model {}", args.like))?,
    };
    let spec = SynthSpec {
        config_json,
        num_layers: args.layers,
        dtype: args.dtype.map(DType::from),
        seed: args.seed,
        router_skew: args.router_skew,
        shard_bytes: args.shard_size.0,
        gguf: args.gguf,
    };
    // The bar hides itself if stderr is not a terminal.
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    bar.set_style(ProgressStyle::with_template(
        "{msg} [{bar:30}] {binary_bytes}/{binary_total_bytes}, {binary_bytes_per_sec}, {eta} left",
    )?);
    bar.set_message("weights");
    let started = std::time::Instant::now();
    let outcome = synthesize(&spec, &args.out, &mut |done, total| {
        if bar.length() != Some(total) {
            bar.set_length(total);
        }
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let report = outcome?;
    report!(
        "made {:.2} billion parameters in {}: {} in {} files, {:.1} s",
        report.num_parameters as f64 / 1e9,
        report.dtype,
        Bytes(report.weight_bytes),
        report.files.len(),
        started.elapsed().as_secs_f64()
    );
    println!("{}", args.out.display());
    Ok(())
}

/// Parses `--router-skew`, a number from 0 to 4.
fn skew(text: &str) -> Result<f32, String> {
    let skew: f32 = text.parse().map_err(|_| "expected a number from 0 to 4".to_owned())?;
    (0.0..=4.0).contains(&skew).then_some(skew).ok_or_else(|| "expected a number from 0 to 4".to_owned())
}

fn read_config(path: &PathBuf) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(CONFIG_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

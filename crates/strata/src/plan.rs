//! `strata plan`: what lies where, what bounds it, and how fast it will be, before any weight is read (W11).

mod advice;
mod bound;
mod division;
mod json;
mod machine;
mod measure;
mod predict;
mod report;
mod settings;
mod shape;
mod subject;
mod words;
mod work;

use std::io::{Write, stdout};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use strata_device::Bytes;
use strata_kernels::DType;

use crate::needs::{self, BATCHED_TOKENS};
use crate::options::LimitOptions;
use crate::progress;
use crate::streaming::{BAND_LEAST, band_bytes};
use crate::synth::DTypeArg;
use advice::{Advice, Kv};
use bound::{Bound, Rates};
use division::{Division, Wishes};
use machine::{Machine, MachineOptions};
use predict::{Forecast, Kept, PolicyKind, Scene};
use settings::Settings;
use shape::{Cut, Shape};
use subject::Subject;
use work::Load;

/// Most sequences of one batch.
const BATCH_MAX: usize = 1 << 16;

/// Most batches that are predicted.
const BATCHES_MAX: usize = 16;

/// Units that a simulation keeps track of, at most; larger models are cut into larger bands for it.
const UNITS_MAX: u64 = 1 << 16;

/// Show what would lie where, what bounds the speed, and how fast it would be, on this machine or another
///
/// Nothing but headers is read, and no weights are needed. The window planners themselves run over simulated hardware.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    strata plan models/8b --memory 6G               # this machine, measured in about two seconds\n  \
    strata plan llama-3-70b --dtype q4_k            # a well-known model; no weights needed\n  \
    strata plan path/to/config.json --memory 32G\n  \
    strata plan llama-3-70b --disk-bw 4.45e9 --memory 125G --gpu-memory 16G --pcie-bw 4.15e10 --hbm-bw 9.6e11 \\\n      \
        --host-bw 60e9 --flops 2e12 --gpu-flops 1.1e14   # a machine that is elsewhere\n  \
    strata plan models/8b --json | jq .resident.decode\n\n\
    docs/plan.md shows plans of four machines and what they mean.")]
pub struct PlanArgs {
    /// A Hugging Face directory, a GGUF file, a packed store, a config.json (or a directory with nothing else), or the
    /// name of a well-known model, such as llama-3-8b. Without it: the small storyteller that ships with Strata
    #[arg(value_name = "MODEL", env = "STRATA_MODEL")]
    pub model: Option<PathBuf>,

    /// How weights are stored, where there are none to tell; without it as the configuration says
    #[arg(long, value_enum)]
    pub dtype: Option<DTypeArg>,

    #[command(flatten)]
    pub machine: MachineOptions,

    /// Sequences that decode together, several to compare
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "1,8,32,64")]
    pub batch: Vec<NonZeroUsize>,

    /// Tokens of the prompt; also those that each sequence has when it decodes
    #[arg(long, value_name = "TOKENS", default_value = "512")]
    pub prompt_tokens: NonZeroUsize,

    /// Tokens of KV cache to have room for; without it, as much as Strata would give
    #[arg(long, value_name = "TOKENS")]
    pub kv_tokens: Option<NonZeroUsize>,

    /// Host memory for weights, instead of all that --memory leaves
    #[arg(long, value_name = "SIZE")]
    pub host_weights: Option<Bytes>,

    /// GPU memory for weights, instead of all that --gpu-memory leaves
    #[arg(long, value_name = "SIZE", requires = "gpu_memory")]
    pub gpu_weights: Option<Bytes>,

    /// One JSON object instead of the tables
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub limits: LimitOptions,
}

/// All that was found.
pub struct Plan {
    pub subject: Subject,
    pub machine: Machine,
    pub division: Division,
    pub settings: Settings,
    /// The model as `resident` takes it.
    pub bands: Shape,
    pub kept: Kept,
    pub kv_token: u64,
    pub prompt_tokens: usize,
    /// Tokens of a pass, and why as many.
    pub chunk_tokens: usize,
    pub chunk_why: &'static str,
    /// The bound of one decoded token.
    pub bound: Bound,
    /// The same if each side computes what it holds.
    pub each_side: Option<Bound>,
    /// Under the policy `resident`.
    pub forecast: Forecast,
    /// Under the policy `ring`, or why it is not to be had.
    pub other: Result<Forecast, String>,
    pub advice: Vec<Advice>,
}

/// Runs `strata plan`.
///
/// # Errors
/// No such model, figures that contradict each other, a memory that is too small, a disk that cannot be measured.
pub fn run(args: PlanArgs) -> Result<()> {
    let plan = Plan::make(&args)?;
    let mut out = stdout().lock();
    if args.json {
        writeln!(out, "{:#}", plan.to_json())?;
    } else {
        write!(out, "{}", plan.report())?;
    }
    out.flush()?;
    Ok(())
}

impl Plan {
    fn make(args: &PlanArgs) -> Result<Self> {
        let batches = batches(&args.batch)?;
        let subject = Subject::find(args.model.as_deref(), args.dtype.map(DType::from))?;
        let (weights, limits) = (subject.needs()?, &args.limits);
        let needs = needs::memory_needs(&subject.config, &subject.name, &weights, limits)?;
        let prompt_tokens = args.prompt_tokens.get();
        if prompt_tokens > needs.max_model_len {
            bail!(
                "--prompt-tokens is {prompt_tokens}, but {} has a context of {}; ask for at most that",
                subject.name,
                needs.max_model_len
            );
        }
        let bar = progress::steps("measuring", 1);
        let machine =
            Machine::find(&args.machine, limits.memory, needs::threads(limits), &subject.files()?, subject.dtype)?;
        bar.finish_and_clear();
        let wishes = Wishes {
            memory: machine.memory.value as u64,
            gpu_memory: machine.gpu.as_ref().map(|gpu| gpu.memory.value as u64),
            kv_tokens: args.kv_tokens.map(|tokens| tokens.get() as u64),
            host_weights: args.host_weights.map(|bytes| bytes.0),
            gpu_weights: args.gpu_weights.map(|bytes| bytes.0),
        };
        let small = subject.cut(Cut::Bands(BAND_LEAST))?;
        let mut division = Division::of(&wishes, &small, &needs)?;
        let mut chunk_tokens = needs::batched_tokens(limits, BATCHED_TOKENS);
        let computing = Bytes(wishes.gpu_memory.unwrap_or(wishes.memory));
        if division.streams(&small)
            && let Some((longer, tokens)) = needs::longer_passes(&subject.config, &needs, computing, limits)
            && let Ok(longer) = Division::of(&wishes, &small, &longer)
        {
            (division, chunk_tokens) = (longer, tokens);
        }
        let chunk_why = match limits.max_num_batched_tokens {
            Some(_) => "given, --max-num-batched-tokens",
            None if chunk_tokens > BATCHED_TOKENS => "about as many as are computed while weights are read",
            None => "enough for arithmetic, with little scratch",
        };
        let smaller = division.device.iter().map(|device| device.units).fold(division.host.units, u64::min);
        let budget = Bytes(smaller + small.fixed_bytes());
        let least = |bytes| Ok(subject.cut(Cut::Bands(bytes))?.least_budget());
        let band_bytes = band_bytes(budget, machine.reading.chunk_bytes, &least)?;
        let units = weights.whole.0.div_ceil(band_bytes as u64).div_ceil(UNITS_MAX).max(1);
        let bands = subject.cut(Cut::Bands(band_bytes.saturating_mul(usize::try_from(units)?)))?;
        let ring = if division.device.is_some() { subject.cut(Cut::Groups)? } else { bands.clone() };
        let settings = Settings::derive(machine.reading, band_bytes, &division, &bands, &ring);
        let kv_token = needs::kv_layout(&subject.config, subject.dtype, limits).token_bytes() as u64;
        let scene = Scene {
            bands: &bands,
            ring: &ring,
            division: &division,
            settings: &settings,
            rates: rates(&machine),
            kv_token,
            prompt_tokens,
            chunk_tokens,
            batches: &batches,
        };
        let kept = scene.kept()?;
        let bar = progress::steps("simulating", 2 * scene.steps() as u64);
        let resident = scene.forecast(PolicyKind::Resident, &kept, &mut || bar.inc(1))?;
        let where_computed = if division.device.is_some() { kept.device } else { kept.host };
        let ring_forecast = if where_computed < bands.swept_bytes() {
            scene.forecast(PolicyKind::Ring, &kept, &mut || bar.inc(1)).map_err(|error| format!("{error:#}"))
        } else {
            Err("every weight stays in memory, so there is nothing to slide over".to_owned())
        };
        bar.finish_and_clear();
        let one = Load::decode(1, prompt_tokens, kv_token).pass(&bands, kept.host as f64, kept.device as f64);
        let rates = scene.rates;
        let (bound, each_side) = (Bound::of(&one, &rates), Bound::each_side(&one, &rates));
        let kv = Kv { tokens: division.kv_tokens, tokens_each: prompt_tokens as u64 + 1 };
        let advice = advice::advise(&one, &rates, &resident, &bands, chunk_tokens, kv);
        Ok(Self {
            bound,
            each_side,
            advice,
            kept,
            forecast: resident,
            other: ring_forecast,
            subject,
            machine,
            division,
            settings,
            kv_token,
            prompt_tokens,
            chunk_tokens,
            chunk_why,
            bands,
        })
    }
}

fn batches(asked: &[NonZeroUsize]) -> Result<Vec<usize>> {
    if asked.len() > BATCHES_MAX {
        bail!("--batch has {} numbers; give at most {BATCHES_MAX}", asked.len());
    }
    let mut batches: Vec<usize> = asked.iter().map(|batch| batch.get()).collect();
    if let Some(large) = batches.iter().find(|&&batch| batch > BATCH_MAX) {
        bail!("--batch {large} is too large; give at most {BATCH_MAX}");
    }
    // Everything else is said of one sequence.
    batches.push(1);
    batches.sort_unstable();
    batches.dedup();
    Ok(batches)
}

fn rates(machine: &Machine) -> Rates {
    let flops = match &machine.gpu {
        Some(gpu) => gpu.flops.as_ref().map_or(f64::INFINITY, |flops| flops.value),
        None => machine.flops.value,
    };
    Rates {
        disk: machine.disk.value,
        host: machine.bandwidth.value,
        flops,
        device: machine.gpu.as_ref().map(|gpu| (gpu.link.value, gpu.bandwidth.value)),
    }
}

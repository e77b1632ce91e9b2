//! `interbed plan`: predicts where a model's weights would be, what limits its speed, and how fast it would run,
//! without reading weights.

mod shapes;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use interbed_device::Bytes;
use interbed_kernels::DType;
use interbed_model::config::ModelConfig;
use interbed_plan::plan::{
    Batches, KnownFigures, MixturePlan, Passes, Plan, PlanRequest, Subject, Verdict, WeightBytes,
};
use serde_json::Value;

use crate::audience::{Audience, Surroundings};
use crate::budget::default_budget;
use crate::failure::Advised;
use crate::footprint::Footprint;
use crate::hub;
use crate::needs::{self, BATCHED_TOKENS, Needs, WeighedModel};
use crate::options::{HubOptions, LimitOptions, size};
use crate::printable::print_answer;
use crate::progress::Bars;
use crate::report::report;
use crate::synth::DTypeArg;

/// Show where a model's weights would lie, how fast it would run, and what limits the speed, here or on another machine
///
/// The first two lines say whether the model fits into memory, how fast it will be, and what limits its speed. The
/// detailed figures follow. Of a model's files, only the headers are read, and a plan needs no weights. The forecast
/// for a dense model runs Interbed's own streaming planners on simulated hardware. It is a forecast for `interbed
/// serve`; `interbed run`, which computes for one text, leaves more memory for weights.
///
/// Without a model, a table shows how fast this machine would run each shape that Interbed knows. Mixtures of experts
/// come first, and faster shapes come before slower ones.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
    interbed plan                                     # what can this machine run?\n  \
    interbed plan models/8b --memory 6G               # this machine, measured in about two seconds\n  \
    interbed plan llama-3-70b                         # a well-known shape; no weights needed\n  \
    interbed plan path/to/config.json --memory 32G\n  \
    interbed plan llama-3-70b --disk-bw 4.45e9 --memory 125G --gpu-memory 16G --pcie-bw 4.15e10 --hbm-bw 9.6e11 \\\n   \
       \
        --host-bw 60e9 --flops 2e12 --gpu-flops 1.1e14   # a machine that is elsewhere\n  \
    interbed plan models/8b --json | jq .resident.decode\n\n\
    docs/plan.md shows plans of four machines and what they mean.")]
pub struct PlanArgs {
    /// A Hugging Face directory, a GGUF file, a packed store, a config.json (or a directory with nothing else), or the
    /// name of a well-known model, such as llama-3-8b, or of one on the Hub. Without it: all well-known ones
    #[arg(value_name = "MODEL", env = "INTERBED_MODEL")]
    pub model: Option<PathBuf>,

    /// Type of the weights, for a model without weight files. By default, it is q4_k for well-known shapes, mxfp4 for
    /// gpt-oss, and for a config.json the type that it names
    #[arg(long, value_enum)]
    pub dtype: Option<DTypeArg>,

    #[command(flatten)]
    pub machine: MachineOptions,

    /// Numbers of sequences that decode together; the plan compares them
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "1,8,32,64")]
    pub batch: Vec<NonZeroUsize>,

    /// Number of tokens in the prompt, and in the context of each sequence that decodes
    #[arg(long, value_name = "TOKENS", default_value = "512")]
    pub prompt_tokens: NonZeroUsize,

    /// Number of tokens that the KV cache must have room for; by default, as many as Interbed would choose
    #[arg(long, value_name = "TOKENS")]
    pub kv_tokens: Option<NonZeroUsize>,

    /// Host memory for weights, instead of all that --memory leaves
    #[arg(long, value_name = "SIZE")]
    pub host_weights: Option<Bytes>,

    /// GPU memory for weights, instead of all that --gpu-memory leaves
    #[arg(long, value_name = "SIZE", requires = "gpu_memory")]
    pub gpu_weights: Option<Bytes>,

    /// File in which `interbed run --record-routing` recorded the experts that each token uses, for a mixture of
    /// experts. By default, the plan makes up a routing
    #[arg(long, value_name = "FILE")]
    pub routing: Option<PathBuf>,

    /// One JSON object instead of the tables
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub limits: LimitOptions,
}

/// The figures of the machine to plan for, which may be another machine than this one.
#[derive(Debug, Clone, Args)]
pub struct MachineOptions {
    /// Speed of the disk in bytes per second, such as 4.45e9 or 4.45G (1G = 1e9 here). By default, it is measured on a
    /// file of the model
    #[arg(long, value_name = "RATE", value_parser = bandwidth, help_heading = "Another machine")]
    pub disk_bw: Option<f64>,

    /// Bytes per second that the cores read from memory; by default, this machine is measured
    #[arg(long, value_name = "RATE", value_parser = bandwidth, help_heading = "Another machine")]
    pub host_bw: Option<f64>,

    /// Operations per second of all cores together; a multiply-add counts as two. By default, this machine is measured
    #[arg(long, value_name = "RATE", value_parser = operations, help_heading = "Another machine")]
    pub flops: Option<f64>,

    /// Memory of the GPU; without this option, the machine has no GPU. Needs --pcie-bw and --hbm-bw
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Another machine",
          requires_all = ["pcie_bw", "hbm_bw"])]
    pub gpu_memory: Option<Bytes>,

    /// Bytes a second from host to GPU
    #[arg(long, value_name = "RATE", value_parser = bandwidth, help_heading = "Another machine",
          requires = "gpu_memory")]
    pub pcie_bw: Option<f64>,

    /// Bytes a second that the GPU reads from its memory
    #[arg(long, value_name = "RATE", value_parser = bandwidth, help_heading = "Another machine",
          requires = "gpu_memory")]
    pub hbm_bw: Option<f64>,

    /// Operations per second of the GPU; without this option, the plan ignores the time for arithmetic on the GPU
    #[arg(long, value_name = "RATE", value_parser = operations, help_heading = "Another machine",
          requires = "gpu_memory")]
    pub gpu_flops: Option<f64>,
}

/// Runs `interbed plan`.
///
/// # Errors
/// Fails if the model does not exist, if options contradict each other, if there is too little memory, or if the speed
/// of the disk cannot be measured.
pub fn run(args: PlanArgs) -> Result<()> {
    if args.model.is_none() {
        return shapes::run(&args);
    }
    if let Some(note) = args.machine.memory_note(args.limits.memory) {
        report!("note: {note}");
    }
    // Options that cannot be planned are refused before anything is fetched.
    Batches::new(&args.batch)?;
    let dtype = args.dtype.map(DType::from);
    let (subject, footprint) = subject(args.model.as_deref(), dtype, &args.limits.hub)?;
    let known = args.machine.known(args.limits.memory);
    let Made { json, report, .. } = plan_of(&args, subject, footprint, known, args.routing.clone())?;
    Ok(print_answer(args.json, || json, || report)?)
}

/// A plan of a dense model or of a mixture, in all forms.
struct Made {
    json: Value,
    report: String,
    verdict: Verdict,
}

/// Returns what a server with `subject`, whose configuration is `config`, needs within `limits`. `footprint` is that of
/// a process with the model's tokenizer, or `None` to estimate it.
pub fn needs_of<'a>(
    subject: &Subject,
    config: &'a ModelConfig,
    limits: &'a LimitOptions,
    footprint: Option<Footprint>,
) -> Result<Needs<'a>> {
    let WeightBytes { whole, streamed } = subject.weight_bytes()?;
    let (name, dtype) = (subject.name.clone(), subject.dtype);
    let model = WeighedModel { name, config, dtype, weights: whole, weights_streamed: streamed };
    let footprint = footprint.unwrap_or_else(|| Footprint::estimated(config.blueprint.vocab_size));
    Needs::of(model, limits, &Surroundings { footprint, audience: Audience::Clients })
}

/// Plans a subject on a machine.
fn plan_of(
    args: &PlanArgs,
    subject: Subject,
    footprint: Option<Footprint>,
    machine: KnownFigures,
    routing: Option<PathBuf>,
) -> Result<Made> {
    let (limits, config) = (args.limits.served(), subject.config.clone());
    let batches = Batches::new(&args.batch)?;
    let needs = needs_of(&subject, &config, &limits, footprint)?;
    if machine.gpu_memory.is_none() {
        needs.check_kv_memory(machine.memory.unwrap_or(machine.memory_here))?;
    }
    let request = PlanRequest {
        machine,
        threads: needs::threads(&limits),
        needs: &|total| needs.within(total),
        passes: Passes {
            tokens: needs::batched_tokens(&limits, BATCHED_TOKENS),
            given: limits.max_num_batched_tokens.is_some(),
            usual: BATCHED_TOKENS,
            longer: &|computing| needs.longer_passes(computing),
        },
        kv_token: needs.layout.token_bytes() as u64,
        batches,
        prompt_tokens: args.prompt_tokens.get(),
        kv_tokens: args.kv_tokens,
        host_weights: args.host_weights,
        gpu_weights: args.gpu_weights,
        subject,
    };
    let progress = &mut Bars::default();
    let mut made = match (config.blueprint.mixture().is_some(), routing) {
        (true, routing) => {
            let plan = MixturePlan::make(request, routing, progress)?;
            Made { json: plan.to_json(), report: plan.report(), verdict: plan.verdict() }
        }
        (false, None) => {
            let plan = Plan::make(request, progress)?;
            Made { json: plan.to_json(), report: plan.report(), verdict: plan.verdict() }
        }
        (false, Some(_)) => {
            let why = format!("--routing is for mixtures, and {} has no experts", request.subject.name);
            return Err(Advised::input(why, "leave it out"));
        }
    };
    let padding = needs.layout.padding_bytes();
    if padding > 0 {
        made.json["kv_block_padding_bytes"] = padding.into();
        made.report.push_str(&format!("KV blocks are padded by {padding} bytes each, to whole pages\n"));
    }
    Ok(made)
}

/// Returns the model that `model` names, which is a directory, a file or a well-known shape. `None` names the bundled
/// model. `dtype` applies to models without weights. Also returns the footprint of a process that serves the model, if
/// the model has a tokenizer.
fn subject(model: Option<&Path>, dtype: Option<DType>, options: &HubOptions) -> Result<(Subject, Option<Footprint>)> {
    if let Some(model) = model {
        match Subject::imagined(model, dtype.or_else(|| shapes::listed_dtype(model))) {
            Ok(Some(subject)) => return Ok((subject, None)),
            // Well-known shapes take precedence over names on the Hub, because they need no network.
            Err(refusal) if hub::names_of(Some(model)).is_empty() => return Err(refusal.into()),
            Ok(None) | Err(_) => {}
        }
    }
    let dir = hub::glance(model, options)?;
    if dtype.is_some() {
        return Err(Advised::input(
            format!("--dtype is for models without weights, but {} has some", dir.path.display()),
            format!("leave it out, or plan {}", dir.path.join("config.json").display()),
        ));
    }
    let footprint = dir.tokenizer().ok().map(|tokenizer| Footprint::of(Some(&tokenizer)));
    let (name, dtype) = (dir.name(), dir.weight_dtype());
    Ok((Subject::at_hand(name, dir.config, dtype, dir.specs, dir.catalog, dir.weight_bytes)?, footprint))
}

impl MachineOptions {
    /// Returns a note for a plan with more memory than this machine has to give, unless figures of another machine are
    /// given.
    fn memory_note(&self, asked: Option<Bytes>) -> Option<String> {
        let is_elsewhere = self.disk_bw.or(self.host_bw).or(self.flops).is_some() || self.gpu_memory.is_some();
        let (asked, here) = (asked.filter(|_| !is_elsewhere)?, default_budget());
        (asked > here).then(|| {
            format!(
                "this machine has {here} to give now, less than --memory {asked}; without --memory, a plan takes what \
                 there is"
            )
        })
    }

    fn known(&self, memory: Option<Bytes>) -> KnownFigures {
        KnownFigures {
            disk_bw: self.disk_bw,
            host_bw: self.host_bw,
            flops: self.flops,
            gpu_memory: self.gpu_memory,
            pcie_bw: self.pcie_bw,
            hbm_bw: self.hbm_bw,
            gpu_flops: self.gpu_flops,
            memory,
            memory_here: default_budget(),
        }
    }
}

fn bandwidth(text: &str) -> Result<f64, String> {
    rate(text, 1e6, "bytes")
}

fn operations(text: &str) -> Result<f64, String> {
    rate(text, 1e9, "operations")
}

/// Parses a rate with decimal units, as they are used for disks and links. Rates far from those of any hardware are
/// refused, because they would overflow the simulated clock.
fn rate(text: &str, least: f64, what: &str) -> Result<f64, String> {
    const UNITS: [(char, f64); 4] = [('K', 1e3), ('M', 1e6), ('G', 1e9), ('T', 1e12)];
    let trimmed = text.trim().to_ascii_uppercase();
    let plain = trimmed.strip_suffix("B/S").unwrap_or(&trimmed);
    let unit = UNITS.iter().find_map(|(name, factor)| Some((plain.strip_suffix(*name)?, *factor)));
    let (number, factor) = unit.unwrap_or((plain, 1.0));
    match number.trim().parse::<f64>().map(|number| number * factor) {
        Ok(rate) if (least..=1e18).contains(&rate) => Ok(rate),
        _ => Err(format!("expected {what} a second from {least:e} to 1e18, such as 4.45e9 or 4.45G")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_decimal() {
        assert_eq!(bandwidth("4.45e9"), Ok(4.45e9));
        assert_eq!(bandwidth(" 4.45G "), Ok(4.45e9));
        assert_eq!(bandwidth("500MB/s"), Ok(5e8));
        assert_eq!(operations("1.1t"), Ok(1.1e12));
        for bad in ["0", "-1", "nan", "inf", "", "G", "fast", "1e30", "10"] {
            assert!(bandwidth(bad).is_err(), "{bad}");
        }
    }
}

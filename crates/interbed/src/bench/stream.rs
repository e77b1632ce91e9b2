//! `interbed bench stream`: measures a model that is larger than memory, compared with what the disk allows.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use interbed_device::{Bytes, Cpu, peak_resident};
use interbed_kernels::Unit;
use serde_json::{Value, json};

use super::limits::{Bound, MachineLimits, Summary};
use super::pass_bench::{PassBench, PassFigure};
use super::passes::{Shape, Sizes};
use super::report::{Report, number, percent, words};
use super::work::{ModelWork, Work};
use super::{PREFILLS_MAX, on_gpu, open};
use crate::audience::Surroundings;
use crate::device_option::DeviceOption;
use crate::needs::threads;
use crate::options::{ComputeOptions, LimitOptions, StreamPolicyOption, TimelineOption};
use crate::place::Processor;

/// The memory that the read sweep uses. The memory is freed before the weights are loaded.
const SWEEP: Bytes = Bytes(256 << 20);

/// The number of tokens of each sequence before decode is measured.
const CONTEXT: usize = 8;

/// Measure the seconds and bytes per token of a model that is larger than memory, compared with a bound
///
/// The speed of the disk may vary, so plain direct reads of a part of the model's files measure it before each
/// repetition. The bound is the minimum time that the disk at this speed, the memory and the processor allow. The
/// median of the ratios of bound and measured time is reported. The disk reads use the same part of the files each
/// time. Passes also read the same bytes again and again, so a cache below the disk may speed up both.
///
/// The time of a pass includes the time until all weights that it reads ahead for the next pass have arrived. With more
/// memory, passes read fewer bytes. If the share of the bound is well below 100 %, something else slows the passes
/// down, which --timeline can show. Run nothing else on the machine meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed bench stream models/8b --memory 6G                        # both policies\n  \
    interbed bench stream models/8b --memory 6G --policy resident --batch 1,32\n  \
    interbed bench stream models/8b --memory 6G --json                 # one JSON object a line\n  \
    interbed bench stream models/8b --memory 6G --timeline t.json      # opens at ui.perfetto.dev\n  \
    interbed bench stream models/8b --device vulkan:0 --gpu-memory 4G  # weights go over the GPU's link")]
pub struct StreamArgs {
    /// A model that does not fit into --memory: a directory, a GGUF file or a packed store
    #[arg(value_name = "MODEL", env = "INTERBED_MODEL")]
    pub model: Option<PathBuf>,

    /// The numbers of sequences that decode together, separated by commas; each number is measured
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "1,32")]
    pub batch: Vec<NonZeroUsize>,

    /// The lengths, in tokens, of the prompts whose prefill is measured, separated by commas
    #[arg(long, value_name = "TOKENS,...", value_delimiter = ',', default_value = "128")]
    pub prompt_tokens: Vec<NonZeroUsize>,

    /// The number of repetitions of each measurement, whose median is reported
    #[arg(long, value_name = "N", default_value = "5")]
    pub repeat: NonZeroUsize,

    /// The streaming policies to measure, separated by commas; they replace --stream-policy
    #[arg(long, value_name = "POLICY,...", value_delimiter = ',', default_value = "resident,ring")]
    pub policy: Vec<StreamPolicyOption>,

    /// Print one JSON object per line instead of the table
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub timeline: TimelineOption,

    #[command(flatten)]
    pub limits: LimitOptions,

    #[command(flatten)]
    pub compute: ComputeOptions,
}

/// Runs `interbed bench stream`.
pub fn run(args: StreamArgs) -> Result<()> {
    let (dir, limits) = open(args.model.as_deref(), args.limits, args.compute, &args.batch)?;
    let (repeat, on_gpu) = (args.repeat.get(), limits.compute.device != DeviceOption::Cpu);
    let sizes = Sizes {
        batch: args.batch,
        context: CONTEXT,
        prompt_tokens: args.prompt_tokens,
        repeat,
        prefills: if on_gpu { repeat.min(PREFILLS_MAX) } else { repeat },
        warms_up: on_gpu,
    };
    let (work, policies, timeline) = (ModelWork::of(&dir, &limits), Some(args.policy), args.timeline.timeline);
    let bench = PassBench { dir, limits, work, sizes, policies, timeline, json: args.json };
    if on_gpu {
        return on_gpu::run(&bench);
    }
    // The process is measured before the sweep over memory, which is not part of it.
    let surroundings = Surroundings::of_passes();
    let machine = measure_machine(&bench)?;
    let mut settings = None;
    let figures = bench.measured(&Processor, &surroundings, |trial, of, number| {
        settings = trial.streamed.as_ref().map(|streaming| streaming.settings.clone());
        let bound = bound(trial.least_bytes(of), trial.disk_bandwidth()?, of.work, &machine);
        Ok((trial.passes.run(of, number)?.as_secs_f64(), bound))
    })?;
    let mut report = Report::default();
    report.line(format_args!(
        "{}: a pass goes through {} of weights",
        bench.dir.name(),
        Bytes(bench.work.swept_bytes())
    ));
    settings.iter().for_each(|settings| report.line(format_args!("  {:<14}{settings}", "disk")));
    report.line(format_args!("  {:<14}{:.1} GB/s", "memory reads", machine.read_bandwidth / 1e9));
    for (unit, peak) in machine.peaks.iter().take(1) {
        report.line(format_args!("  {:<14}{:.0} G operations/s ({})", "arithmetic", peak / 1e9, unit.name()));
    }
    let peak = Bytes(peak_resident());
    report.line(format_args!("  {:<14}{peak} at the peak", "memory"));
    for figure in &figures {
        // The measurement of decoding one sequence under the same policy.
        let is_single =
            |of: &&PassFigure| of.policy == figure.policy && matches!(of.of.shape, Shape::Decode { batch: 1 });
        tell(&mut report, figure, figures.iter().find(is_single), (bench.work.swept_bytes(), peak));
    }
    report.print(bench.json);
    Ok(())
}

/// Measures memory and arithmetic before the weights take the memory.
fn measure_machine(bench: &PassBench) -> Result<Summary> {
    let cpu = Cpu::new(threads(&bench.limits));
    let mut machine = MachineLimits::new(&cpu, Unit::of(cpu.level, bench.work.weights), SWEEP)?;
    for _ in 0..3 {
        machine.bound(&cpu, Work { bytes: 1.0, flops: 1.0 });
    }
    Ok(machine.summary())
}

/// Returns the minimum time of forward passes that read `streamed` bytes of weights from a disk. `disk` is the disk's
/// speed in bytes per second. The result is the maximum of three times: the time of reading `streamed` bytes from the
/// disk, the time of moving `work.bytes + streamed` bytes over the memory bus, and the time of computing `work.flops`
/// operations. `work.bytes` already includes the streamed bytes, because they cross the memory bus twice.
fn bound(streamed: f64, disk: f64, work: Work, machine: &Summary) -> Bound {
    let peak = machine.peaks.first().map_or(f64::INFINITY, |(_, peak)| *peak);
    Bound::longest([
        ("disk", streamed / disk),
        ("memory", (work.bytes + streamed) / machine.read_bandwidth),
        ("arithmetic", work.flops / peak),
    ])
}

/// Adds a figure to the report. `single` is the one of decoding one sequence.
fn tell(report: &mut Report, figure: &PassFigure, single: Option<&PassFigure>, (swept_bytes, peak): (u64, Bytes)) {
    let PassFigure { of, time, streamed, least_bytes, .. } = figure;
    let (seconds, bound, share, tokens) = (time.first, time.second, time.ratio, figure.tokens());
    let (bytes, disk) = (figure.each(streamed.bytes_read), figure.disk.unwrap_or(f64::NAN));
    let stall_share = streamed.stall.as_secs_f64() / time.sum;
    report.row([
        words("policy", figure.policy().unwrap_or_default()),
        words("", of.shape.label()),
        number("seconds", seconds, 3),
        number("tokens/s", tokens / seconds, 2),
        number("bound s", bound, 3),
        percent("of bound", share, 0),
        number("GB read", bytes / 1e9, 3),
        number("at least", least_bytes / 1e9, 3),
        percent("stalled", stall_share, 0),
        number("disk GB/s", disk / 1e9, 2),
    ]);
    let mut params = json!({
        "policy": figure.policy(), "swept_bytes": swept_bytes, "resident_bytes": figure.resident_bytes,
        "disk_bytes_per_s": disk, "peak_memory_bytes": peak.0, "stall_share": stall_share,
        "overlap_efficiency": streamed.overlap_efficiency(),
    });
    match of.shape {
        Shape::Decode { batch } => {
            params["batch"] = json!(batch);
            let (name, each) = ("stream.decode.seconds_per_token", seconds / tokens);
            report.figure(beside_bound(name, each, "s", [bound / tokens, share], &params));
            let (name, each, least) = ("stream.bytes_per_token", bytes / tokens, least_bytes / tokens);
            report.figure(beside_bound(name, each, "B", [least, least / each], &params));
            if let Some(single) = single.filter(|_| batch > 1) {
                let speedup = tokens * single.time.first / seconds;
                let name = "stream.batch_speedup";
                report.figure(json!({"name": name, "value": speedup, "unit": "x", "params": params}));
            }
        }
        Shape::Prefill { tokens: count } => {
            params["prompt_tokens"] = json!(count);
            params["seconds"] = json!(seconds);
            let (name, rate) = ("stream.prefill.tokens_per_s", tokens / seconds);
            report.figure(beside_bound(name, rate, "tok/s", [tokens / bound, share], &params));
        }
    }
}

fn beside_bound(name: &str, value: f64, unit: &str, [bound, share]: [f64; 2], params: &Value) -> Value {
    json!({"name": name, "value": value, "unit": unit, "bound": bound, "share_of_bound": share, "params": params})
}

//! `interbed bench stream`: measures a model that is larger than memory, compared with what the disk allows.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;
use interbed_device::{Bytes, Cpu, peak_resident};
use interbed_kernels::Unit;
use interbed_weights::{ElasticWeights, StreamStats};

use super::limits::{MachineLimits, Summary};
use super::on_gpu::{self, GpuMeasurements};
use super::passes::{MeasuredPasses, Measurement, Sizes};
use super::stream_report::{Line, Measured, StreamReport, bound_seconds};
use super::work::{ModelWork, Work};
use super::{PREFILLS_MAX, median, open};
use crate::audience::Surroundings;
use crate::device_option::DeviceOption;
use crate::load::load_onto;
use crate::needs::threads;
use crate::options::{ComputeOptions, LimitOptions, StreamPolicyOption, TimelineOption};
use crate::place::Processor;
use crate::streaming::Streaming;
use crate::{progress, timeline};

/// The number of bytes that are read for one measurement of the disk.
const DISK_SAMPLE: u64 = 1 << 30;

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
    let sizes = Sizes {
        batch: args.batch.iter().map(|batch| batch.get()).collect(),
        context: CONTEXT,
        prompt_tokens: args.prompt_tokens.iter().map(|tokens| tokens.get()).collect(),
        repeat: args.repeat.get(),
        prefills: args.repeat.get(),
        warms_up: false,
    };
    if limits.compute.device != DeviceOption::Cpu {
        let (policies, timeline) = (Some(&args.policy[..]), args.timeline.timeline.as_deref());
        let sizes = Sizes { prefills: sizes.prefills.min(PREFILLS_MAX), warms_up: true, ..sizes };
        return on_gpu::run(&dir, &limits, &GpuMeasurements { sizes, policies, timeline, json: args.json });
    }
    // The process is measured before the sweep over memory, which is not part of it.
    let surroundings = Surroundings::of_passes();
    let work = ModelWork::of(&dir, &limits);
    let machine = measure_machine(&limits, &work)?;
    let mut lines = Vec::new();
    let mut settings = None;
    for &policy in &args.policy {
        let mut limits = limits.clone();
        limits.stream.stream_policy = policy;
        limits.stream.timeline = args.timeline.timeline.is_some();
        let mut runnable = load_onto(&Processor, &dir, &limits, &surroundings)?;
        let Some(streaming) = runnable.streamed.take() else {
            bail!(
                "{} fits into {}, so that nothing is streamed; give a smaller --memory, or measure it with `interbed \
                 bench`",
                dir.name(),
                runnable.division.plan.budget.total()
            )
        };
        sizes.check(&runnable.division, "--memory")?;
        settings = Some(streaming.settings.clone());
        let mut bench = StreamBench {
            passes: MeasuredPasses::new(runnable, dir.config.blueprint.vocab_size)?,
            most_resident: streaming.most_resident,
            streaming,
            machine: &machine,
            sampled: false,
        };
        bench.measure_all(&sizes, policy, &work, &mut lines)?;
        if let Some(path) = &args.timeline.timeline {
            timeline::write(&bench.streaming, path)?;
        }
    }
    let report = StreamReport {
        model: dir.name(),
        swept_bytes: work.swept_bytes(),
        machine,
        settings,
        peak_memory: Bytes(peak_resident()),
        lines,
    };
    print!("{}", if args.json { report.json_lines() } else { report.to_string() });
    Ok(())
}

/// Measures memory and arithmetic before the weights take the memory.
fn measure_machine(limits: &LimitOptions, work: &ModelWork) -> Result<Summary> {
    let cpu = Cpu::new(threads(limits));
    let mut machine = MachineLimits::new(&cpu, Unit::of(cpu.level, work.weights), SWEEP)?;
    for _ in 0..3 {
        machine.bound(&cpu, Work { bytes: 1.0, flops: 1.0 });
    }
    Ok(machine.summary())
}

struct StreamBench<'a> {
    passes: MeasuredPasses,
    streaming: Streaming,
    machine: &'a Summary,
    /// The number of bytes of weights that the budget can keep in memory, under the policy that keeps most.
    most_resident: u64,
    /// Whether the part of the file that measures the disk has been read before, as the data of passes has.
    sampled: bool,
}

impl StreamBench<'_> {
    fn measure_all(
        &mut self,
        sizes: &Sizes,
        policy: StreamPolicyOption,
        work: &ModelWork,
        lines: &mut Vec<Line>,
    ) -> Result<()> {
        let bar = progress::steps("measuring", (sizes.shapes().count() * sizes.repeat) as u64);
        for shape in sizes.shapes() {
            let measurement = self.passes.prepare(shape, sizes, work)?;
            lines.push(Line { policy, shape, measured: self.measure(&measurement, &bar)? });
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Measures some work repeatedly, and measures the disk before each time.
    fn measure(&mut self, of: &Measurement, bar: &indicatif::ProgressBar) -> Result<Measured> {
        let monitor = Arc::clone(&self.streaming.monitor);
        let swept = monitor.swept_bytes();
        let streamed_least = (swept - self.most_resident.min(swept)) * of.passes as u64;
        self.weights().settle();
        let (mut seconds, mut shares, mut bounds, mut disks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let begin = monitor.stats();
        for number in 0..of.repeat {
            let disk = self.disk_bandwidth()?;
            let bound = bound_seconds(streamed_least as f64, disk, of.work, self.machine);
            let took = self.passes.run(of, number)?.as_secs_f64();
            seconds.push(took);
            shares.push(bound / took);
            bounds.push(bound);
            disks.push(disk);
            bar.inc(1);
        }
        let stats: StreamStats = monitor.stats().since(&begin);
        let total: f64 = seconds.iter().sum();
        Ok(Measured {
            seconds: median(seconds),
            bound: median(bounds),
            share_of_bound: median(shares),
            disk: median(disks),
            bytes: stats.bytes_read as f64 / of.repeat as f64,
            bytes_bound: streamed_least as f64,
            resident_bytes: self.weights().resident_bytes(),
            stall_share: stats.stall.as_secs_f64() / total,
            overlap_efficiency: stats.overlap_efficiency(),
        })
    }

    /// Returns the bytes per second of plain direct reads of the middle of the largest file.
    fn disk_bandwidth(&mut self) -> Result<f64> {
        let file = self.streaming.largest_file()?;
        let start = file.len().saturating_sub(DISK_SAMPLE) / 2;
        let part = start..start + DISK_SAMPLE;
        if !std::mem::replace(&mut self.sampled, true) {
            self.streaming.read_rate(&file, part.clone())?;
        }
        self.streaming.read_rate(&file, part)
    }

    fn weights(&mut self) -> &mut dyn ElasticWeights {
        self.passes.runner.model.weights().elastic().expect("only models that are streamed are measured here")
    }
}

//! `interbed bench` and `interbed bench stream` on a GPU: measures passes, compared with what memory and link allow.

use std::fmt::{self, Display, Formatter};
use std::path::Path;

use anyhow::{Context, Result, bail};
use interbed_device::{Bytes, CopyRates, Device};
use interbed_engine::DeviceStats;
use interbed_weights::StreamStats;
use serde_json::json;

use super::median;
use super::passes::{MeasuredPasses, Measurement, Sizes};
use super::work::ModelWork;
use crate::audience::Surroundings;
use crate::gpu::GpuPlace;
use crate::load::load_onto;
use crate::model_dir::ModelDir;
use crate::options::{LimitOptions, StreamPolicyOption};
use crate::{progress, timeline};

/// The number of bytes of the copies that measure the GPU's memory and link, if the GPU has enough memory.
const COPY: u64 = 256 << 20;

/// The measurements that the options ask for.
pub struct GpuMeasurements<'a> {
    pub sizes: Sizes,
    /// The streaming policies to compare. `None` measures the model as the options load it, streamed or not.
    pub policies: Option<&'a [StreamPolicyOption]>,
    /// The path of the file for the timeline.
    pub timeline: Option<&'a Path>,
    pub json: bool,
}

/// Measures a model on a GPU, and prints the results.
///
/// # Errors
/// Fails if the GPU does not exist, it has too little memory for the model, or a pass fails.
pub fn run(dir: &ModelDir, limits: &LimitOptions, wanted: &GpuMeasurements<'_>) -> Result<()> {
    let gpu = GpuPlace::chosen(dir, limits)?.context("the processor computes")?;
    let (rates, work) = (gpu.rates(COPY)?, ModelWork::of(dir, limits));
    let (mut figures, mut used) = (Vec::new(), None);
    let usual = [limits.stream.stream_policy];
    for &policy in wanted.policies.unwrap_or(&usual) {
        let mut limits = limits.clone();
        limits.stream.stream_policy = policy;
        limits.stream.timeline = wanted.timeline.is_some();
        let mut runnable = load_onto(&gpu, dir, &limits, &Surroundings::of_passes())?;
        if wanted.policies.is_some() && runnable.streamed.is_none() {
            bail!(
                "{} fits into the GPU's memory, so that nothing is streamed; give a smaller --gpu-memory, or measure \
                 it with `interbed bench`",
                dir.name()
            );
        }
        wanted.sizes.check(&runnable.division, "--gpu-memory")?;
        let streamed = runnable.streamed.take();
        let (disk, resident) = match &streamed {
            Some(streaming) => (streaming.settings.bytes_per_s, streaming.on_device),
            None => (0.0, work.swept_bytes()),
        };
        let passes = MeasuredPasses::new(runnable, dir.config.blueprint.vocab_size)?;
        let (policy, work) = (streamed.is_some().then_some(policy), &work);
        let has_experts = streamed.as_ref().is_some_and(|streaming| streaming.experts.is_some());
        let mut bench = GpuBench { passes, rates, disk, resident, has_experts, policy, work };
        bench.measure_all(&wanted.sizes, &mut figures)?;
        used = bench.passes.runner.device.stats();
        if let (Some(path), Some(streaming)) = (wanted.timeline, &streamed) {
            timeline::write(streaming, path)?;
        }
    }
    let Some(used) = used else { bail!("name a policy to measure") };
    let report = Report { model: dir.name(), swept: Bytes(work.swept_bytes()), rates, used, figures };
    print!("{}", if wanted.json { report.json_lines() } else { report.to_string() });
    Ok(())
}

struct GpuBench<'a> {
    passes: MeasuredPasses,
    rates: CopyRates,
    /// The number of bytes per second of the disk, measured at the start, or 0 if nothing is read from disk.
    disk: f64,
    /// The number of bytes of weights that stay on the GPU.
    resident: u64,
    /// Whether experts are streamed, of which a pass copies only those that it needs.
    has_experts: bool,
    /// The streaming policy, if weights are streamed.
    policy: Option<StreamPolicyOption>,
    work: &'a ModelWork,
}

impl GpuBench<'_> {
    fn measure_all(&mut self, sizes: &Sizes, figures: &mut Vec<Figure>) -> Result<()> {
        let bar = progress::steps("measuring", sizes.shapes().count() as u64);
        for shape in sizes.shapes() {
            let of = self.passes.prepare(shape, sizes, self.work)?;
            figures.push(self.measure(of)?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Measures some work repeatedly. The median of the times counts.
    fn measure(&mut self, of: Measurement) -> Result<Figure> {
        let (stream, device) = (self.stream(), self.stats());
        let mut times = Vec::new();
        for number in 0..of.repeat {
            times.push(self.passes.run(&of, number)?.as_secs_f64());
        }
        let (stream, now) = (self.stream().since(&stream), self.stats());
        let each = |bytes: u64| bytes as f64 / of.repeat as f64;
        let swept = self.work.swept_bytes().saturating_sub(self.resident) * of.passes as u64;
        let through = if self.has_experts { each(stream.bytes_copied) } else { swept as f64 };
        let read = each(stream.bytes_read);
        let terms = [
            ("GPU memory", of.work.bytes / self.rates.device),
            ("link", through / self.rates.to_device),
            ("disk", if self.disk > 0.0 { read / self.disk } else { 0.0 }),
        ];
        let (limit, bound) = terms.into_iter().fold(terms[0], |most, term| if term.1 > most.1 { term } else { most });
        Ok(Figure {
            policy: self.policy,
            seconds: median(times),
            bound,
            limit,
            read,
            to_device: each(now.bytes_to_device - device.bytes_to_device),
            to_host: each(now.bytes_to_host - device.bytes_to_host),
            waits: now.waits_for_room - device.waits_for_room,
            measurement: of,
        })
    }

    fn stream(&self) -> StreamStats {
        self.passes.runner.weights.monitor.as_ref().map(|monitor| monitor.stats()).unwrap_or_default()
    }

    fn stats(&self) -> DeviceStats {
        self.passes.runner.device.stats().expect("a GPU has figures")
    }
}

/// The measurement of one amount of work.
struct Figure {
    measurement: Measurement,
    policy: Option<StreamPolicyOption>,
    /// The median of the times.
    seconds: f64,
    /// The minimum time at the measured rates, and what limits it.
    bound: f64,
    limit: &'static str,
    /// The number of bytes that were read from disk, that went to the GPU, and that came back.
    read: f64,
    to_device: f64,
    to_host: f64,
    waits: u64,
}

impl Figure {
    fn label(&self) -> String {
        let what = self.measurement.shape.label();
        match self.policy {
            Some(StreamPolicyOption::Resident) => format!("{what}, resident"),
            Some(StreamPolicyOption::Ring) => format!("{what}, ring"),
            None => what,
        }
    }
}

/// The results of a run.
struct Report {
    model: String,
    /// The number of bytes of weights that a pass uses.
    swept: Bytes,
    rates: CopyRates,
    used: DeviceStats,
    figures: Vec<Figure>,
}

/// Writes the results as a table.
impl Display for Report {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}: a pass goes through {} of weights, on {}", self.model, self.swept, self.used.name)?;
        writeln!(out, "  {:<22}{} of {}", "GPU memory in use", self.used.memory_used, self.used.memory_budget)?;
        for (name, rate) in [
            ("GPU memory", self.rates.device),
            ("link to the GPU", self.rates.to_device),
            ("link to the host", self.rates.to_host),
        ] {
            writeln!(out, "  {name:<22}{:>9.1} GB/s   by copying", rate / 1e9)?;
        }
        writeln!(
            out,
            "\n{:<32}{:>10}{:>12}{:>10}{:>10}{:>12}  limited by",
            "This model", "tokens/s", "bound", "of bound", "GB read", "GB to GPU"
        )?;
        for figure in &self.figures {
            let tokens = figure.measurement.shape.tokens() as f64;
            writeln!(
                out,
                "  {:<30}{:>10.1}{:>12.1}{:>8.0} %{:>10.3}{:>12.3}  {}",
                figure.label(),
                tokens / figure.seconds,
                tokens / figure.bound,
                figure.bound / figure.seconds * 100.0,
                figure.read / 1e9,
                figure.to_device / 1e9,
                figure.limit
            )?;
        }
        Ok(())
    }
}

impl Report {
    /// Returns the results as JSON lines: the GPU's rates, then the measurements.
    fn json_lines(&self) -> String {
        let gpu = json!({"gpu": &*self.used.name});
        let rate = |name: &str, value: f64| json!({"name": name, "value": value, "unit": "B/s", "params": gpu});
        let mut lines = vec![
            rate("gpu.memory_bytes_per_s", self.rates.device),
            rate("gpu.link_to_device_bytes_per_s", self.rates.to_device),
            rate("gpu.link_to_host_bytes_per_s", self.rates.to_host),
        ];
        for figure in &self.figures {
            let (shape, bytes) = (figure.measurement.shape, figure.measurement.work.bytes);
            let mut params = figure.measurement.params();
            params["gpu"] = json!(&*self.used.name);
            params["memory_used_bytes"] = json!(self.used.memory_used.0);
            if let Some(policy) = figure.policy {
                params["policy"] = json!(if policy == StreamPolicyOption::Ring { "ring" } else { "resident" });
            }
            let (name, tokens) = (format!("gpu.{}.tokens_per_s", shape.name()), shape.tokens() as f64);
            let rate = tokens / figure.seconds;
            lines.push(json!({
                "name": name, "value": rate, "unit": "tok/s", "params": params, "seconds": figure.seconds,
                "bytes_per_s": bytes / figure.seconds, "bound": tokens / figure.bound,
                "share_of_bound": figure.bound / figure.seconds, "limited_by": figure.limit,
                "bytes_read": figure.read, "bytes_to_device": figure.to_device, "bytes_to_host": figure.to_host,
                "waits_for_room": figure.waits,
            }));
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

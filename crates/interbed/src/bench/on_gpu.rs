//! `interbed bench` and `interbed bench stream` on a GPU: measures passes, compared with what memory and link allow.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use interbed_device::{Bytes, CopyRates, Device, VulkanDevice};
use interbed_engine::DeviceStats;
use interbed_weights::StreamStats;
use serde_json::{Value, json};

use super::passes::{MeasuredPasses, Sizes};
use super::work::{ModelWork, Work};
use super::{PREFILLS_MAX, median};
use crate::audience::{Audience, Surroundings};
use crate::footprint::Footprint;
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
        let surroundings = Surroundings { footprint: Footprint::of(None), audience: Audience::Nobody };
        let mut runnable = load_onto(&gpu, dir, &limits, &surroundings)?;
        if wanted.policies.is_some() && runnable.streamed.is_none() {
            bail!(
                "{} fits into the GPU's memory, so that nothing is streamed; give a smaller --gpu-memory, or measure \
                 it with `interbed bench`",
                dir.name()
            );
        }
        wanted.sizes.check(&runnable.plan, runnable.block_size, "--gpu-memory")?;
        let streamed = runnable.streamed.take();
        let (disk, resident) = match &streamed {
            Some(streaming) => (streaming.settings.bytes_per_s, streaming.on_device),
            None => (0.0, work.swept_bytes()),
        };
        let passes = MeasuredPasses::new(runnable, dir.config.blueprint.vocab_size);
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
    print!("{}", if wanted.json { report.json_lines() } else { report.table() });
    Ok(())
}

struct GpuBench<'a> {
    passes: MeasuredPasses<VulkanDevice>,
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

/// The name and size of what one figure measures.
struct Subject {
    name: &'static str,
    params: Value,
    /// The number of tokens, and the number of passes in which they are computed.
    tokens: usize,
    passes: usize,
    work: Work,
}

impl GpuBench<'_> {
    fn measure_all(&mut self, sizes: &Sizes, figures: &mut Vec<Figure>) -> Result<()> {
        let bar = progress::steps("measuring", (sizes.batch.len() + sizes.prompt_tokens.len()) as u64);
        for &batch in &sizes.batch {
            let context = sizes.context;
            let tables = self.passes.begin_decode(batch, sizes)?;
            let work = self.work.decode(batch, context + 1 + sizes.repeat / 2);
            let params = json!({"batch": batch, "context": context});
            let of = Subject { name: "gpu.decode.tokens_per_s", params, tokens: batch, passes: 1, work };
            figures.push(self.measure(of, sizes.repeat, |passes, i| passes.decode(&tables, context + 1 + i))?);
            bar.inc(1);
        }
        for &tokens in &sizes.prompt_tokens {
            // An unmeasured prompt warms up, because kernels are created when they are first used.
            self.passes.prefill(tokens)?;
            let (name, params) = ("gpu.prefill.tokens_per_s", json!({"prompt_tokens": tokens}));
            let chunk = self.passes.chunk();
            let of = Subject {
                name,
                params,
                tokens,
                passes: tokens.div_ceil(chunk),
                work: self.work.prefill(tokens, chunk),
            };
            figures.push(self.measure(of, sizes.repeat.min(PREFILLS_MAX), |passes, _| passes.prefill(tokens))?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Measures `pass` repeatedly. The median of the times counts.
    fn measure(
        &mut self,
        of: Subject,
        repeat: usize,
        mut pass: impl FnMut(&mut MeasuredPasses<VulkanDevice>, usize) -> Result<Duration>,
    ) -> Result<Figure> {
        let (stream, device) = (self.stream(), self.stats());
        let mut times = Vec::new();
        for i in 0..repeat {
            times.push(pass(&mut self.passes, i)?.as_secs_f64());
        }
        let (stream, now) = (self.stream().since(&stream), self.stats());
        let each = |bytes: u64| bytes as f64 / repeat as f64;
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
            name: of.name,
            params: of.params,
            tokens: of.tokens,
            policy: self.policy,
            seconds: median(times),
            bound,
            limit,
            bytes: of.work.bytes,
            read,
            to_device: each(now.bytes_to_device - device.bytes_to_device),
            to_host: each(now.bytes_to_host - device.bytes_to_host),
            waits: now.waits_for_room - device.waits_for_room,
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
    name: &'static str,
    params: Value,
    tokens: usize,
    policy: Option<StreamPolicyOption>,
    /// The median of the times.
    seconds: f64,
    /// The minimum time at the measured rates, and what limits it.
    bound: f64,
    limit: &'static str,
    /// The number of bytes that a pass must read from the GPU's memory.
    bytes: f64,
    /// The number of bytes that were read from disk, that went to the GPU, and that came back.
    read: f64,
    to_device: f64,
    to_host: f64,
    waits: u64,
}

impl Figure {
    fn label(&self) -> String {
        let what = match (self.params["batch"].as_u64(), self.params["prompt_tokens"].as_u64()) {
            (Some(1), _) => "decode, 1 sequence".to_owned(),
            (Some(batch), _) => format!("decode, {batch} sequences"),
            (_, tokens) => format!("prefill, {} tokens", tokens.unwrap_or(0)),
        };
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
            let mut params = figure.params.clone();
            params["gpu"] = json!(&*self.used.name);
            params["memory_used_bytes"] = json!(self.used.memory_used.0);
            if let Some(policy) = figure.policy {
                params["policy"] = json!(if policy == StreamPolicyOption::Ring { "ring" } else { "resident" });
            }
            let rate = figure.tokens as f64 / figure.seconds;
            lines.push(json!({
                "name": figure.name, "value": rate, "unit": "tok/s", "params": params, "seconds": figure.seconds,
                "bytes_per_s": figure.bytes / figure.seconds, "bound": figure.tokens as f64 / figure.bound,
                "share_of_bound": figure.bound / figure.seconds, "limited_by": figure.limit,
                "bytes_read": figure.read, "bytes_to_device": figure.to_device, "bytes_to_host": figure.to_host,
                "waits_for_room": figure.waits,
            }));
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Returns the results as a table.
    fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_table(&mut text);
        text
    }

    fn write_table(&self, out: &mut String) -> std::fmt::Result {
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
            let tokens = figure.tokens as f64;
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

//! `interbed bench` and `interbed bench stream` on a GPU: measures passes, compared with what memory and link allow.

use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use interbed_device::{Bytes, CopyRates, Gpu, Vulkan};
use interbed_engine::{DeviceStats, GpuRunner, Runner};
use interbed_model::LogitRows;
use interbed_weights::StreamStats;
use serde_json::{Value, json};

use super::work::{ModelWork, Work};
use super::{median, timed_pass};
use crate::audience::{Audience, Surroundings};
use crate::footprint::Footprint;
use crate::gpu::{self, OnGpu};
use crate::model_dir::ModelDir;
use crate::options::{LimitOptions, StreamPolicyOption};
use crate::{progress, timeline};

/// The number of bytes of the copies that measure the GPU's memory and link, if the GPU has enough memory.
const COPY: u64 = 256 << 20;

/// The divisor for the size of a measured copy on a GPU with little memory: the copy takes one part in eight of that
/// memory.
const COPY_SHARE: u64 = 8;

/// The measurements that the options ask for.
pub struct GpuMeasurements<'a> {
    /// The numbers of sequences that decode together.
    pub batch: Vec<usize>,
    /// The number of tokens of each sequence before decode is measured.
    pub context: usize,
    /// The numbers of tokens of the prompts.
    pub prompt_tokens: Vec<usize>,
    /// The number of passes in each measurement.
    pub repeat: usize,
    /// The streaming policies to measure, if only streamed weights are measured.
    pub policies: Option<&'a [StreamPolicyOption]>,
    /// The path of the file for the timeline.
    pub timeline: Option<&'a std::path::Path>,
    pub json: bool,
}

/// Measures a model on a GPU, and prints the results.
///
/// # Errors
/// Fails if the GPU does not exist, it has too little memory for the model, or a pass fails.
pub fn run(dir: &ModelDir, limits: &LimitOptions, wanted: &GpuMeasurements<'_>) -> Result<()> {
    let rates = rates(dir, limits)?;
    let work = ModelWork::of(dir, limits);
    let (mut figures, mut used) = (Vec::new(), None);
    let usual = [limits.stream.stream_policy];
    for &policy in wanted.policies.unwrap_or(&usual) {
        let mut limits = limits.clone();
        limits.stream.stream_policy = policy;
        limits.stream.timeline = wanted.timeline.is_some();
        let surroundings = Surroundings { footprint: Footprint::of(None), audience: Audience::Nobody };
        let Some(on_gpu) = gpu::load(dir, &limits, &surroundings)? else {
            bail!(
                "--device {} takes the processor here; name a GPU that `interbed devices` lists",
                limits.compute.device
            )
        };
        if wanted.policies.is_some() && on_gpu.streamed.is_none() {
            bail!(
                "{} fits into the GPU's memory, so that nothing is streamed; give a smaller --gpu-memory, or measure \
                 it with `interbed bench`",
                dir.name()
            );
        }
        check_room(&on_gpu, wanted)?;
        let OnGpu { runner, streamed, batched_tokens, block_size, .. } = on_gpu;
        let (disk, resident) = match &streamed {
            Some(streaming) => (streaming.settings.bytes_per_s, streaming.on_device),
            None => (0.0, work.swept_bytes()),
        };
        let streamed_policy = streamed.is_some().then_some(policy);
        let vocab = dir.config.blueprint.vocab_size;
        let mut bench = GpuBench {
            runner,
            chunk: batched_tokens,
            block_size,
            vocab,
            rates,
            disk,
            resident,
            policy: streamed_policy,
        };
        bench.measure_all(wanted, &work, &mut figures)?;
        used = bench.runner.device_stats();
        if let (Some(path), Some(streaming)) = (wanted.timeline, &streamed) {
            timeline::write(streaming, path)?;
        }
    }
    let Some(used) = used else { bail!("name a policy to measure") };
    let report = Report { model: dir.name(), swept: Bytes(work.swept_bytes()), rates, used, figures };
    print!("{}", if wanted.json { report.json_lines() } else { report.table() });
    Ok(())
}

/// Measures the speeds of the GPU's memory and link before anything else is on the GPU.
fn rates(dir: &ModelDir, limits: &LimitOptions) -> Result<CopyRates> {
    let (number, info) = gpu::wanted(dir, limits)?;
    let gpu = Gpu::open(&Vulkan::load()?, number, info.memory)?;
    let bytes = COPY.min(info.memory.0 / COPY_SHARE).min(gpu.buffer_max() as u64);
    Ok(CopyRates::measure(&gpu, usize::try_from(bytes)?)?)
}

fn check_room(on_gpu: &OnGpu, wanted: &GpuMeasurements<'_>) -> Result<()> {
    let largest = wanted.batch.iter().copied().max().unwrap_or(0);
    let longest = wanted.prompt_tokens.iter().copied().max().unwrap_or(0);
    let decode = wanted.context.saturating_add(wanted.repeat).saturating_add(1);
    let blocks = largest.saturating_mul(decode.div_ceil(on_gpu.block_size)).max(longest.div_ceil(on_gpu.block_size));
    if blocks > on_gpu.plan.num_blocks || longest.max(decode) > on_gpu.plan.max_model_len {
        bail!(
            "KV memory holds {} tokens, which is too little for this measurement; give more --gpu-memory, or measure a \
             smaller --batch, --repeat or --prompt-tokens",
            on_gpu.plan.num_blocks * on_gpu.block_size
        );
    }
    Ok(())
}

struct GpuBench {
    runner: GpuRunner,
    /// The maximum number of tokens of a prompt that one pass computes.
    chunk: usize,
    block_size: usize,
    vocab: usize,
    rates: CopyRates,
    /// The number of bytes per second of the disk, measured at the start, or 0 if nothing is read from disk.
    disk: f64,
    /// The number of bytes of weights that stay on the GPU.
    resident: u64,
    /// The streaming policy, if weights are streamed.
    policy: Option<StreamPolicyOption>,
}

impl GpuBench {
    fn measure_all(&mut self, wanted: &GpuMeasurements<'_>, work: &ModelWork, figures: &mut Vec<Figure>) -> Result<()> {
        let bar = progress::steps("measuring", (wanted.batch.len() + wanted.prompt_tokens.len()) as u64);
        for &batch in &wanted.batch {
            let (context, each) = (wanted.context, (wanted.context + wanted.repeat + 1).div_ceil(self.block_size));
            let tables: Vec<Vec<u32>> =
                (0..batch).map(|i| (i * each..(i + 1) * each).map(|block| block as u32).collect()).collect();
            for table in &tables {
                for start in (0..context).step_by(self.chunk) {
                    let count = self.chunk.min(context - start);
                    self.pass(std::slice::from_ref(table), start, count, LogitRows::None)?;
                }
            }
            // An unmeasured pass warms up, because kernels are created when they are first used.
            self.pass(&tables, context, 1, LogitRows::Best(1))?;
            let moved = work.decode(batch, context + 1 + wanted.repeat / 2);
            let name = "gpu.decode.tokens_per_s";
            let params = json!({"batch": batch, "context": context});
            let figure = self.measure(name, params, batch, wanted.repeat, 1, work, moved, |bench, i| {
                bench.pass(&tables, context + 1 + i, 1, LogitRows::Best(1))
            })?;
            figures.push(figure);
            bar.inc(1);
        }
        for &tokens in &wanted.prompt_tokens {
            let tables = [(0..tokens.div_ceil(self.block_size)).map(|block| block as u32).collect()];
            self.prompt(&tables, tokens)?;
            let (name, params) = ("gpu.prefill.tokens_per_s", json!({"prompt_tokens": tokens}));
            let (passes, moved) = (tokens.div_ceil(self.chunk), work.prefill(tokens, self.chunk));
            let times = wanted.repeat.min(5);
            let figure = self
                .measure(name, params, tokens, times, passes, work, moved, |bench, _| bench.prompt(&tables, tokens))?;
            figures.push(figure);
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Measures `pass` repeatedly. The median of the times counts.
    #[expect(clippy::too_many_arguments, reason = "what a figure consists of")]
    fn measure(
        &mut self,
        name: &'static str,
        params: Value,
        tokens: usize,
        repeat: usize,
        passes: usize,
        work: &ModelWork,
        moved: Work,
        mut pass: impl FnMut(&mut Self, usize) -> Result<Duration>,
    ) -> Result<Figure> {
        let (stream, device) = (self.stream(), self.stats());
        let mut times = Vec::new();
        for i in 0..repeat {
            times.push(pass(self, i)?.as_secs_f64());
        }
        let (stream, now) = (self.stream().since(&stream), self.stats());
        let each = |bytes: u64| bytes as f64 / repeat as f64;
        let through = (work.swept_bytes().saturating_sub(self.resident) * passes as u64) as f64;
        let read = each(stream.bytes_read);
        let terms = [
            ("GPU memory", moved.bytes / self.rates.device),
            ("link", through / self.rates.to_device),
            ("disk", if self.disk > 0.0 { read / self.disk } else { 0.0 }),
        ];
        let (limit, bound) = terms.into_iter().fold(terms[0], |most, term| if term.1 > most.1 { term } else { most });
        Ok(Figure {
            name,
            params,
            tokens,
            policy: self.policy,
            seconds: median(times),
            bound,
            limit,
            bytes: moved.bytes,
            read,
            to_device: each(now.bytes_to_device - device.bytes_to_device),
            to_host: each(now.bytes_to_host - device.bytes_to_host),
            waits: now.waits_for_room - device.waits_for_room,
        })
    }

    fn prompt(&mut self, tables: &[Vec<u32>], tokens: usize) -> Result<Duration> {
        let begin = Instant::now();
        for start in (0..tokens).step_by(self.chunk) {
            let count = self.chunk.min(tokens - start);
            let logits = if start + count == tokens { LogitRows::Best(1) } else { LogitRows::None };
            self.pass(tables, start, count, logits)?;
        }
        Ok(begin.elapsed())
    }

    /// Runs a pass, and waits until the host has its results and the GPU is idle.
    fn pass(&mut self, tables: &[Vec<u32>], start: usize, count: usize, logits: LogitRows) -> Result<Duration> {
        let begin = Instant::now();
        timed_pass(&mut self.runner, self.vocab, tables, start, count, logits)?;
        self.runner.settle()?;
        Ok(begin.elapsed())
    }

    fn stream(&self) -> StreamStats {
        self.runner.stream_stats().unwrap_or_default()
    }

    fn stats(&self) -> DeviceStats {
        self.runner.device_stats().expect("a GPU has figures")
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

//! Starts the streaming of weights that do not fit into memory, and reports about it.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result};
use interbed_device::{Bytes, Cpu, Device, HostRates};
use interbed_engine::DeviceTimeline;
use interbed_io::{DirectRead, DiskTurns, ProbeLimits, ReadSettings, probe, sequential_bandwidth};
use interbed_weights::experts::{Arena, ArenaShape};
use interbed_weights::{
    ElasticWeights, Partition, StreamConfig, StreamMonitor, StreamPlan, StreamedWeights, TieredWeights, WeightError,
    WeightSource, band_bytes, open_direct,
};

use crate::division::Division;
use crate::expert_counts::KeptCounts;
use crate::failure::Advised;
use crate::model_dir::ModelDir;
use crate::needs;
use crate::options::{HostProducts, LimitOptions};
use crate::progress::Loading;
use crate::report::report;

/// The settings of streaming, and a monitor whose figures can be read while the engine computes.
pub struct Streaming {
    pub monitor: Arc<StreamMonitor>,
    pub settings: ReadSettings,
    /// The model's files, which may be used to measure the disk.
    pub files: Vec<Arc<dyn DirectRead>>,
    /// The number of bytes of weights that stay in memory at first.
    pub resident: u64,
    /// The number of bytes of weights that the budget could keep in memory, with the policy that keeps most.
    pub most_resident: u64,
    /// The number of bytes of weights that stay in a device's own memory.
    pub on_device: u64,
    /// The shape of the mixture layers, and the bytes that experts may take in all memories, or `None` without experts.
    pub experts: Option<(ArenaShape, u64)>,
    /// Saves how often experts are used until this value is dropped. The value is `None` if nothing is saved.
    pub counts: Option<KeptCounts>,
    /// The times at which the device computed and copied, if a timeline is recorded.
    pub device: Option<Arc<DeviceTimeline>>,
}

impl Streaming {
    /// Returns the largest of the model's files, with which the disk is measured.
    ///
    /// # Errors
    /// Fails if the model has no files.
    pub fn largest_file(&self) -> Result<Arc<dyn DirectRead>> {
        largest(&self.files).cloned()
    }

    /// Returns the bytes per second of plain direct reads of a part of a file, read as weights are.
    ///
    /// # Errors
    /// Fails if a read fails.
    pub fn read_rate(&self, file: &Arc<dyn DirectRead>, part: Range<u64>) -> Result<f64> {
        let ReadSettings { engine, depth, chunk_bytes, .. } = self.settings;
        Ok(sequential_bandwidth(file, part.start..part.end.min(file.len()), engine, depth, chunk_bytes)?)
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.monitor.stop();
    }
}

/// The maximum number of tokens in a pass that only decodes.
const DECODED_TOKENS: usize = 64;

/// The maximum bytes of weights that are used to measure whether processor or GPU multiplies faster.
const MEASURED: Bytes = Bytes(16 << 20);

/// Measures the disk, loads the weights that stay in memory, and starts streaming the others to `device` within the
/// memory of `division`. `turns` coordinates reads with KV on the same disk.
///
/// # Errors
/// Fails if a file cannot be read, the memory is too small, or the system or the device refuses memory.
pub fn start(
    device: &mut dyn Device,
    dir: &ModelDir,
    Division { needs, plan: memory, device: on_device, .. }: &Division,
    limits: &LimitOptions,
    turns: Option<Arc<DiskTurns>>,
) -> Result<(Box<dyn WeightSource>, Streaming)> {
    let of_device = on_device.as_ref().map(|on_device| on_device.plan.weights);
    let (of_host, least, room) = match of_device {
        // Nothing has been written to the memory of passes and KV yet, so all memory is free except the process's own.
        None => (memory.weights, memory.weights, Bytes(memory.budget.total().0.saturating_sub(needs.process.0))),
        // Streamed weights get all host memory that nothing else needs, for the slots through which they pass.
        Some(of_device) => {
            let of_host = Bytes(memory.weights.0 + memory.budget.left().0);
            (of_host, of_host.min(of_device), of_host)
        }
    };
    let files = open_direct(&dir.catalog)?;
    let stored = files[..dir.catalog.stored_files().len()].to_vec();
    let settings = try_out(&stored, room)?;
    report!("reads   {settings}");
    let planned = |bytes| StreamPlan::new(&dir.catalog, &dir.specs, bytes);
    let least_of = |bytes| Ok::<_, WeightError>(planned(bytes)?.partition().least_budget());
    // Bands are small enough for `least` bytes.
    let plan = planned(band_bytes(least.0, settings.chunk_bytes, least_of)?)?;
    let (host_tokens_max, link_bytes_per_s) = match of_device {
        Some(of_device) => beside_device(device, plan.partition(), of_device, limits)?,
        None => (0, 0.0),
    };
    let config = StreamConfig {
        budget: of_host.0,
        engine: settings.engine,
        depth: settings.depth,
        disk_bytes_per_s: settings.bytes_per_s,
        link_bytes_per_s,
        policy: limits.stream.stream_policy.into(),
        timeline: limits.stream.timeline,
        host_tokens_max,
        turns,
    };
    let loading = Loading::begin(limits.watch.clone());
    let progress = &mut |done, all| loading.set(done, all);
    let Some(of_device) = of_device else {
        let most_resident = plan.resident_bytes(&config)?;
        let mut weights = StreamedWeights::start(plan, &dir.catalog, files, config, progress)?;
        drop(loading);
        let (monitor, on_host) = (weights.monitor(), weights.resident_bytes());
        let (arena, beside) = (weights.arena_mut(), None);
        let begun = Begun { monitor, on_device: None, on_host, most_resident, arena, beside };
        let streaming = begun.told(dir, limits, settings, stored);
        return Ok((Box::new(weights), streaming));
    };
    let mut weights = TieredWeights::start_on(device, of_device.0, plan, &dir.catalog, files, config, progress)?;
    drop(loading);
    let (monitor, [on_device, on_host]) = (weights.monitor(), weights.resident_bytes());
    let (most_resident, on_device) = (on_device + on_host, Some(on_device));
    let beside = weights.host_arena().map(|host| [host.bytes(), host.budget()]);
    let begun = Begun { monitor, on_device, on_host, most_resident, arena: weights.arena_mut(), beside };
    let streaming = begun.told(dir, limits, settings, stored);
    Ok((Box::new(weights), streaming))
}

/// Weights that are streamed from now on.
struct Begun<'a> {
    monitor: Arc<StreamMonitor>,
    /// The bytes of weights that stay in a device's own memory, if it has any.
    on_device: Option<u64>,
    on_host: u64,
    most_resident: u64,
    /// The experts where they are computed with.
    arena: Option<&'a mut Arena>,
    /// The bytes of experts that have room in host memory beside a device's, and the budget for them.
    beside: Option<[u64; 2]>,
}

impl Begun<'_> {
    /// Reports what stays where. Gives the arena the counts of earlier runs, and saves those of this run, if the
    /// options say so.
    fn told(
        self,
        dir: &ModelDir,
        limits: &LimitOptions,
        settings: ReadSettings,
        files: Vec<Arc<dyn DirectRead>>,
    ) -> Streaming {
        let Self { monitor, on_device, on_host, most_resident, arena, beside } = self;
        let (resident, swept) = (on_device.unwrap_or(0) + on_host, monitor.swept_bytes());
        let [all, here, read] = [swept, on_host.min(swept), swept.saturating_sub(resident)].map(Bytes);
        match on_device.map(Bytes) {
            None => report!("stream  {here:>10}  of {all} stay in memory, {read} come from disk in each pass"),
            Some(there) => report!(
                "stream  {there:>10}  of {all} stay on the GPU, {here} in host memory; {read} come from disk in each \
                 pass"
            ),
        }
        let on_device = on_device.unwrap_or(0);
        let experts = arena.as_deref().map(|arena| {
            report_experts(arena, beside.map(|[room, _]| room));
            (arena.shape().clone(), arena.budget() + beside.map_or(0, |[_, budget]| budget))
        });
        let kept = arena.filter(|_| limits.stream.keep_expert_counts);
        let counts = kept.and_then(|arena| KeptCounts::keep(arena, Arc::clone(&monitor), &dir.catalog));
        Streaming { monitor, settings, files, resident, most_resident, on_device, experts, counts, device: None }
    }
}

/// Reports how many bytes of a mixture's experts have room where they are computed with, and in host memory if that is
/// `beside`.
fn report_experts(arena: &Arena, beside: Option<u64>) {
    let (room, shape) = (Bytes(arena.bytes()), arena.shape());
    let [bank, token] = [shape.bank_bytes(), shape.token_bytes()].map(Bytes);
    match beside.map(Bytes) {
        None => report!("experts {room:>10}  of {bank} have room in memory, a token needs {token} of them"),
        Some(host) => report!(
            "experts {room:>10}  of {bank} have room on the GPU, {host} in host memory, a token needs {token} of them"
        ),
    }
    let room = Bytes(room.0 + beside.unwrap_or(0));
    if room < token {
        report!(
            "warning: the experts of one token do not fit into {room}, so nearly all of them are read for each token; \
             with {} more of --memory some would stay",
            Bytes(token.0 - room.0)
        );
    }
}

/// Returns the maximum number of tokens of a pass in which the processor multiplies with the weights in host memory,
/// and the rate of copies to the device in bytes per second, or 0 if it is not measured.
///
/// # Errors
/// Fails if the device fails, or the options demand products on the processor although their bits would differ from the
/// GPU's.
fn beside_device(
    device: &mut dyn Device,
    partition: &Partition,
    of_device: Bytes,
    limits: &LimitOptions,
) -> Result<(usize, f64)> {
    let (wanted, types) = (limits.compute.host_products, partition.swept_types());
    let most = MEASURED.min(Bytes(of_device.0 / 2));
    if wanted == HostProducts::Off {
        return Ok((0, device.link_rate(most)?.unwrap_or(0.0)));
    }
    if !device.compute_on_host(Cpu::new(needs::threads(limits)), &types)? {
        let why = "the processor cannot give products with these weights the bits that this GPU gives them";
        return match wanted {
            HostProducts::On => Err(Advised::input(
                why,
                "leave --host-products out: what the GPU does not hold is then copied to it in each pass",
            )),
            _ => {
                report!("host           no  products: {why}");
                Ok((0, device.link_rate(most)?.unwrap_or(0.0)))
            }
        };
    }
    if wanted == HostProducts::On {
        return Ok((DECODED_TOKENS, device.link_rate(most)?.unwrap_or(0.0)));
    }
    // Only the type that most weights have is measured.
    let rates = types.first().map(|&dtype| device.host_rates(dtype, most)).transpose()?.flatten();
    let Some(HostRates { link, host, tokens_max }) = rates else { return Ok((0, 0.0)) };
    let tokens_max = tokens_max.min(DECODED_TOKENS);
    let who = match tokens_max {
        0 => "copied to the GPU in each pass".to_owned(),
        most => format!("computed with there, in passes of up to {most} tokens; copied in others"),
    };
    let [over_link, on_host] = [link, host].map(|rate| Bytes(rate as u64));
    report!("host    {on_host:>8}/s  a token of weights in host memory, {over_link}/s over the link: {who}");
    Ok((tokens_max, link))
}

fn largest(files: &[Arc<dyn DirectRead>]) -> Result<&Arc<dyn DirectRead>> {
    files.iter().max_by_key(|file| file.len()).context("the model has no files")
}

/// Measures how the largest file is read fastest.
fn try_out(files: &[Arc<dyn DirectRead>], room: Bytes) -> Result<ReadSettings> {
    let largest = largest(files)?;
    let usual = ProbeLimits::default();
    let memory_bytes = usize::try_from(room.0).unwrap_or(usize::MAX).min(usual.memory_bytes);
    Ok(probe(largest, 0..largest.len(), &ProbeLimits { memory_bytes, ..usual })?)
}

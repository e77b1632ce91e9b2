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
use crate::options::{HostProducts, LimitOptions, StreamOptions};
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
    division: &Division,
    limits: &LimitOptions,
    turns: Option<Arc<DiskTurns>>,
) -> Result<(Box<dyn WeightSource>, Streaming)> {
    match &division.device {
        None => start_in_host_memory(dir, division, limits, turns),
        Some(on_device) => start_on(device, on_device.plan.weights, dir, division, limits, turns),
    }
}

fn start_in_host_memory(
    dir: &ModelDir,
    Division { needs, plan, .. }: &Division,
    limits: &LimitOptions,
    turns: Option<Arc<DiskTurns>>,
) -> Result<(Box<dyn WeightSource>, Streaming)> {
    // Nothing has been written to the memory of passes and KV yet, so all memory is free except the process's own.
    let room = Bytes(plan.budget.total().0.saturating_sub(needs.process.0));
    let budget = plan.weights;
    let Ready { plan, files, config, settings } = Ready::new(dir, budget, budget, room, &limits.stream, turns)?;
    let most_resident = plan.resident_bytes(&config)?;
    let loading = Loading::begin(limits.watch.clone());
    let progress = &mut |done, all| loading.set(done, all);
    let mut weights = StreamedWeights::start(plan, &dir.catalog, files.clone(), config, progress)?;
    drop(loading);
    let monitor = weights.monitor();
    let (resident, swept) = (weights.resident_bytes(), monitor.swept_bytes());
    report!(
        "stream  {:>10}  of {} stay in memory, {} come from disk in each pass",
        Bytes(resident.min(swept)),
        Bytes(swept),
        Bytes(swept.saturating_sub(resident))
    );
    let experts = weights.arena().map(|arena| (arena.shape().clone(), arena.budget()));
    if let Some(arena) = weights.arena() {
        report_experts(arena, None);
    }
    let counts = keep_counts(weights.arena_mut(), &monitor, dir, limits);
    let files = files[..dir.catalog.stored_files().len()].to_vec();
    let (device, on_device) = (None, 0);
    let streaming = Streaming { monitor, settings, files, resident, most_resident, on_device, experts, counts, device };
    Ok((Box::new(weights), streaming))
}

/// Gives the arena the counts of earlier runs, and saves those of this run, if the options say so.
fn keep_counts(
    arena: Option<&mut Arena>,
    monitor: &Arc<StreamMonitor>,
    dir: &ModelDir,
    limits: &LimitOptions,
) -> Option<KeptCounts> {
    let arena = arena.filter(|_| limits.stream.keep_expert_counts)?;
    KeptCounts::keep(arena, Arc::clone(monitor), &dir.catalog)
}

/// Reports how many bytes of a mixture's experts have room where they are computed with, and in host memory if that is
/// `beside`.
fn report_experts(arena: &Arena, beside: Option<&Arena>) {
    let (room, shape) = (Bytes(arena.bytes()), arena.shape());
    let [bank, token] = [shape.bank_bytes(), shape.token_bytes()].map(Bytes);
    match beside {
        None => report!("experts {room:>10}  of {bank} have room in memory, a token needs {token} of them"),
        Some(host) => report!(
            "experts {room:>10}  of {bank} have room on the GPU, {} in host memory, a token needs {token} of them",
            Bytes(host.bytes())
        ),
    }
    let room = Bytes(room.0 + beside.map_or(0, Arena::bytes));
    if room < token {
        report!(
            "warning: the experts of one token do not fit into {room}, so nearly all of them are read for each token; \
             with {} more of --memory some would stay",
            Bytes(token.0 - room.0)
        );
    }
}

/// Starts streaming with weights in host memory and in `of_device` bytes of the memory of `device`.
fn start_on(
    device: &mut dyn Device,
    of_device: Bytes,
    dir: &ModelDir,
    Division { plan, .. }: &Division,
    limits: &LimitOptions,
    turns: Option<Arc<DiskTurns>>,
) -> Result<(Box<dyn WeightSource>, Streaming)> {
    // Streamed weights get all host memory that nothing else needs, for the slots through which they pass.
    let of_host = Bytes(plan.weights.0 + plan.budget.left().0);
    let least = of_host.min(of_device);
    let Ready { plan, files, mut config, settings } = Ready::new(dir, of_host, least, of_host, &limits.stream, turns)?;
    (config.host_tokens_max, config.link_bytes_per_s) = beside_device(device, plan.partition(), of_device, limits)?;
    let loading = Loading::begin(limits.watch.clone());
    let progress = &mut |done, all| loading.set(done, all);
    let catalog = &dir.catalog;
    let mut weights = TieredWeights::start_on(device, of_device.0, plan, catalog, files.clone(), config, progress)?;
    drop(loading);
    let (monitor, [on_device, on_host]) = (weights.monitor(), weights.resident_bytes());
    let swept = monitor.swept_bytes();
    report!(
        "stream  {:>10}  of {} stay on the GPU, {} in host memory; {} come from disk in each pass",
        Bytes(on_device),
        Bytes(swept),
        Bytes(on_host),
        Bytes(swept.saturating_sub(on_device).saturating_sub(on_host))
    );
    let arenas = weights.arena().zip(weights.host_arena());
    if let Some((arena, host)) = arenas {
        report_experts(arena, Some(host));
    }
    let experts = arenas.map(|(arena, host)| (arena.shape().clone(), arena.budget() + host.budget()));
    let counts = keep_counts(weights.arena_mut(), &monitor, dir, limits);
    let resident = on_device + on_host;
    let files = files[..catalog.stored_files().len()].to_vec();
    let (device, most_resident) = (None, resident);
    let streaming = Streaming { monitor, settings, files, resident, most_resident, on_device, experts, counts, device };
    Ok((Box::new(weights), streaming))
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

/// The values that streaming starts with.
struct Ready {
    plan: StreamPlan,
    files: Vec<Arc<dyn DirectRead>>,
    config: StreamConfig,
    settings: ReadSettings,
}

impl Ready {
    /// Prepares streaming with `budget` bytes of host memory. Bands are small enough for `least` bytes.
    fn new(
        dir: &ModelDir,
        budget: Bytes,
        least: Bytes,
        room: Bytes,
        options: &StreamOptions,
        turns: Option<Arc<DiskTurns>>,
    ) -> Result<Self> {
        let files = open_direct(&dir.catalog)?;
        let settings = try_out(&files[..dir.catalog.stored_files().len()], room)?;
        report!("reads   {settings}");
        let least_of =
            |bytes| Ok::<_, WeightError>(StreamPlan::new(&dir.catalog, &dir.specs, bytes)?.partition().least_budget());
        let band_bytes = band_bytes(least.0, settings.chunk_bytes, least_of)?;
        let plan = StreamPlan::new(&dir.catalog, &dir.specs, band_bytes)?;
        let config = StreamConfig {
            budget: budget.0,
            engine: settings.engine,
            depth: settings.depth,
            disk_bytes_per_s: settings.bytes_per_s,
            link_bytes_per_s: 0.0,
            policy: options.stream_policy.into(),
            timeline: options.timeline,
            host_tokens_max: 0,
            turns,
        };
        Ok(Self { plan, files, config, settings })
    }
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

//! Runs a model on a GPU: chooses the GPU, divides its memory and loads the weights.

use std::sync::Arc;

use anyhow::Result;
use interbed_device::{Bytes, Gpu, GpuError, GpuInfo, ProductArithmetic, Vulkan, VulkanDevice};
use interbed_engine::{GpuRunner, GpuWeights, LEAST_CONTEXT, MemoryPlan, SchemaNeeds};
use interbed_model::Model;
use interbed_model::layers::LOGIT_ROWS;
use interbed_weights::ResidentWeights;

use crate::audience::Surroundings;
use crate::budget::budget;
use crate::device_option::DeviceOption;
use crate::failure::Advised;
use crate::lower_tiers::{Below, LowerTiers};
use crate::model_dir::ModelDir;
use crate::needs::{BATCHED_TOKENS, batched_tokens};
use crate::options::{ComputeOptions, GpuProducts, HostProducts, KvLayoutOption, LimitOptions};
use crate::progress::Loading;
use crate::report::report;
use crate::streaming::{self, Streaming};
use crate::{routing, swap};

/// The host memory, in bytes, that the use of a GPU takes: buffers of arguments, copies in transit, and the driver.
const HOST_SCRATCH: u64 = 96 << 20;

/// The percentage of a GPU's memory that is used by default. The system needs the rest.
const GPU_SHARE: u64 = 90;

/// The percentage of a GPU's memory that is used by default if the processor shares that memory.
const UNIFIED_SHARE: u64 = 40;

/// A model on a GPU, with the division of host memory.
pub struct OnGpu {
    pub runner: GpuRunner,
    /// The division of host memory. Only its numbers of blocks and of context tokens are those of the GPU.
    pub plan: MemoryPlan,
    /// The weights, if they are streamed.
    pub streamed: Option<Streaming>,
    pub batched_tokens: usize,
    pub block_size: usize,
    /// The tiers of KV below memory.
    pub below: Below,
}

/// Loads the model onto a GPU if the options choose one. Returns `None` if the processor computes.
///
/// # Errors
/// Fails if the GPU does not exist, has too little memory for the model, or an option does not work with a GPU.
pub fn load(dir: &ModelDir, limits: &LimitOptions, surroundings: &Surroundings<'_>) -> Result<Option<OnGpu>> {
    let number = match limits.compute.device {
        DeviceOption::Cpu => {
            refuse_unused(&limits.compute)?;
            return Ok(None);
        }
        DeviceOption::Vulkan(number) => number,
        DeviceOption::Auto => match settled(dir, limits) {
            DeviceOption::Vulkan(number) => number,
            DeviceOption::Cpu | DeviceOption::Auto => return Ok(None),
        },
    };
    check(limits)?;
    let arithmetic: ProductArithmetic = limits.compute.gpu_products.into();
    let vulkan = Vulkan::load().map_err(to_input)?;
    let info = vulkan.gpus().map_err(to_input)?.into_iter().nth(number);
    let info = info.ok_or_else(|| to_input(GpuError::NotFound { number }))?;
    if arithmetic == ProductArithmetic::Integer && !info.has_dot_products {
        return Err(to_input(GpuError::NoDotProducts { gpu: info.name }));
    }
    let total = gpu_memory(&info, limits);
    check_memory(&info, total, limits)?;
    let gpu_plan = divide(dir, limits, surroundings, total)?;
    let (host_plan, swap_memory) = host(dir, limits, surroundings, &gpu_plan)?;
    let (layout, tokens) = (dir.kv_layout(limits), batched_tokens(limits, BATCHED_TOKENS));
    let block_size = layout.block_size();
    report!("device  {:>10}  {} ({})", total, info.name, limits.compute.device);
    for (name, bytes) in gpu_plan.budget.entries().iter().filter(|(_, bytes)| bytes.0 > 0) {
        let blocks = match name.as_str() {
            "KV blocks" => format!("  {} x {block_size} tokens", gpu_plan.num_blocks),
            _ => String::new(),
        };
        report!("  {name:<10}{bytes:>10}{blocks}");
    }
    report!("host    {:>10}", host_plan.budget.total());
    let (num_blocks, max_model_len) = (gpu_plan.num_blocks, gpu_plan.max_model_len);
    let plan = MemoryPlan { num_blocks, num_blocks_max: num_blocks, max_model_len, ..host_plan };
    // Loading takes long, so options that cannot work are refused before it.
    let swap = swap::open(limits, &plan, swap_memory, &layout)?;
    let computes = format!("{}, {}, {} products", info.name, info.driver, arithmetic);
    let routes = limits.stream.record_routing.as_ref().map(|path| routing::record(dir, path)).transpose()?;
    let lower_tiers = LowerTiers::prepare(dir.identified(), limits, plan.budget.total(), &layout, &computes)?;
    let gpu = Gpu::open(&vulkan, number, total).map_err(to_input)?;
    let (config, blocks, mut streamed) = (dir.config.blueprint.clone(), gpu_plan.num_blocks, None);
    let mut runner = GpuRunner::new(&gpu, config, layout, blocks, tokens, arithmetic, |device| -> Result<_> {
        if gpu_plan.streamed {
            let turns = lower_tiers.turns(&dir.catalog);
            // Streamed weights get all memory that nothing else needs, for the slots through which they pass.
            let budgets = [Bytes(plan.weights.0 + plan.budget.left().0), gpu_plan.weights];
            let (weights, streaming) = streaming::start_on(device, dir, budgets, limits, turns)?;
            let [on_device, on_host] = weights.resident_bytes();
            let monitor = Arc::clone(&streaming.monitor);
            streamed = Some(streaming);
            return Ok((Box::new(weights), GpuWeights { bytes: Bytes(on_device + on_host), monitor: Some(monitor) }));
        }
        let loading = Loading::begin(limits.watch.clone());
        let progress = &mut |done, all| loading.set(done, all);
        let weights = ResidentWeights::load_on(device, &dir.catalog, &dir.specs, progress)?;
        drop(loading);
        let bytes = Bytes(weights.bytes());
        Ok((Box::new(weights), GpuWeights { bytes, monitor: None }))
    })?;
    runner.swap = swap;
    if let Some(routes) = routes {
        runner.tell_routes(routes);
    }
    if let Some(streaming) = streamed.as_mut().filter(|_| limits.stream.timeline) {
        streaming.device = Some(runner.keep_timeline().map_err(to_input)?);
    }
    let below = match streamed {
        Some(_) => lower_tiers.open_known()?,
        None => Below::Now(lower_tiers.open_loaded()?),
    };
    Ok(Some(OnGpu { runner, plan, streamed, batched_tokens: tokens, block_size, below }))
}

/// Returns the number of the GPU that the options choose, and facts about it.
///
/// # Errors
/// Fails if the GPU does not exist, or the options choose the processor.
pub fn wanted(dir: &ModelDir, limits: &LimitOptions) -> Result<(usize, GpuInfo)> {
    let number = match limits.compute.device {
        DeviceOption::Cpu => anyhow::bail!("--device cpu is no GPU"),
        DeviceOption::Vulkan(number) => number,
        DeviceOption::Auto => choose(dir, limits).map_err(|why| anyhow::anyhow!("the processor computes: {why}"))?,
    };
    let info = Vulkan::load().and_then(|vulkan| vulkan.gpus()).map_err(to_input)?.into_iter().nth(number);
    Ok((number, info.ok_or_else(|| to_input(GpuError::NotFound { number }))?))
}

/// Returns the device that the options choose: instead of `auto` a GPU, or the processor, after a report why.
pub fn settled(dir: &ModelDir, limits: &LimitOptions) -> DeviceOption {
    if limits.compute.device != DeviceOption::Auto {
        return limits.compute.device;
    }
    choose(dir, limits).map_or_else(
        |why| {
            report!("device         cpu  {why}");
            DeviceOption::Cpu
        },
        DeviceOption::Vulkan,
    )
}

/// Returns the number of the GPU that `--device auto` chooses, or why it chooses none.
fn choose(dir: &ModelDir, limits: &LimitOptions) -> Result<usize, String> {
    let gpus = Vulkan::load().and_then(|vulkan| vulkan.gpus()).map_err(|error| error.to_string())?;
    let usable = gpus.iter().filter(|gpu| gpu.missing.is_none() && gpu.kind != "software");
    let best = usable.max_by_key(|gpu| (gpu.kind == "discrete", gpu.memory.0)).ok_or_else(|| {
        match gpus.iter().find(|gpu| gpu.missing.is_none()) {
            Some(gpu) => format!("{} is software; --device vulkan:{} takes it", gpu.name, gpu.number),
            None => "no GPU that kernels run on".to_owned(),
        }
    })?;
    let memory = gpu_memory(best, limits);
    if memory.0 < dir.weight_bytes.0 {
        return Err(format!("{} may use {memory}, and the weights are {}", best.name, dir.weight_bytes));
    }
    Ok(best.number)
}

/// Refuses options that do not work with a GPU.
fn check(limits: &LimitOptions) -> Result<()> {
    match limits.kv_layout {
        KvLayoutOption::Paged => Ok(()),
        KvLayoutOption::Virtual => Err(Advised::input(
            format!("--kv-layout virtual does not go with --device {} yet", limits.compute.device),
            "leave out one of the two: without --kv-layout virtual KV is on the GPU, in blocks",
        )),
    }
}

/// Refuses options about a GPU if the processor computes.
fn refuse_unused(compute: &ComputeOptions) -> Result<()> {
    let given = [
        ("--gpu-memory", compute.gpu_memory.is_some()),
        ("--gpu-products", compute.gpu_products != GpuProducts::default()),
        ("--host-products", compute.host_products != HostProducts::default()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((option, _)) => Err(Advised::input(
            format!("{option} is about a GPU, but the processor computes (--device cpu)"),
            "leave it out, or add --device auto, or --device vulkan:N for a GPU that `interbed devices` lists",
        )),
    }
}

/// Refuses `--gpu-memory` if it is more than the GPU has.
fn check_memory(gpu: &GpuInfo, total: Bytes, limits: &LimitOptions) -> Result<()> {
    if total <= gpu.memory || limits.overcommit {
        return Ok(());
    }
    Err(Advised::input(
        format!("--gpu-memory {total} is more than the {} that {} has", gpu.memory, gpu.name),
        format!("give --gpu-memory {}M or less, or leave it out", (gpu.memory.0 / 100 * GPU_SHARE) >> 20),
    ))
}

/// Returns the bytes of the GPU's memory that may be used.
fn gpu_memory(gpu: &GpuInfo, limits: &LimitOptions) -> Bytes {
    let share = if gpu.is_unified { UNIFIED_SHARE } else { GPU_SHARE };
    limits.compute.gpu_memory.unwrap_or(Bytes(gpu.memory.0 / 100 * share))
}

/// Divides the GPU's memory among weights, KV blocks and the tensors of a pass.
fn divide(dir: &ModelDir, limits: &LimitOptions, surroundings: &Surroundings<'_>, total: Bytes) -> Result<MemoryPlan> {
    let (mut needs, tokens) = (dir.needs(limits, surroundings)?, batched_tokens(limits, BATCHED_TOKENS));
    let none = Bytes(0);
    (needs.process, needs.opening, needs.requests, needs.swap) = (none, none, none, none);
    needs.schemas = SchemaNeeds::default();
    let pass = Model::pass_needs(&dir.config.blueprint, tokens, tokens);
    needs.scratch = Bytes(VulkanDevice::pass_bytes(&pass, limits.compute.gpu_products.into()) as u64);
    // On a GPU, KV and weights do not trade memory.
    (needs.block, needs.block_returnable) = (Bytes(dir.kv_layout(limits).block_bytes() as u64), Bytes(0));
    if let Some(memory) = limits.kv_memory {
        needs.blocks_most = usize::try_from(memory.0 / needs.block.0)?;
    }
    // The driver rounds buffers up, so one percent is left free.
    let total = Bytes(total.0 / 100 * 99);
    MemoryPlan::divide(total, &needs).map_err(|refused| {
        let least = refused.smallest.0.div_ceil(99) * 100;
        Advised::input(
            format!(
                "{total} of GPU memory cannot work: weights {} (streamed), tensors of a pass {} and KV for {} tokens",
                needs.weights_streamed.min(needs.weights),
                needs.scratch,
                needs.max_model_len.min(LEAST_CONTEXT)
            ),
            format!(
                "give --gpu-memory {}M or more if the GPU has it, take a smaller model, or --device cpu",
                least.div_ceil(1 << 20)
            ),
        )
    })
}

/// Divides host memory beside a GPU. Also returns the part of it for KV that is swapped out or written to disk.
fn host(
    dir: &ModelDir,
    limits: &LimitOptions,
    surroundings: &Surroundings<'_>,
    on_gpu: &MemoryPlan,
) -> Result<(MemoryPlan, Bytes)> {
    let (mut needs, total) = (dir.needs(limits, surroundings)?, budget(limits)?);
    needs.swap = dir.swap_memory(limits, total);
    if !on_gpu.streamed {
        // During loading, one group of weights is in host memory.
        let group = ResidentWeights::largest_group(&dir.catalog, &dir.specs)?;
        (needs.weights, needs.weights_streamed) = (Bytes(group), Bytes(group));
    }
    // The host reads this many rows of logits at a time.
    let logits = (LOGIT_ROWS * size_of::<f32>()).saturating_mul(dir.config.blueprint.vocab_size);
    needs.scratch = Bytes(HOST_SCRATCH.saturating_add(logits as u64));
    // In host memory, each block takes only the block manager's bookkeeping.
    let bytes = dir.kv_layout(limits).block_bytes() as u64;
    (needs.block, needs.block_returnable) = (Bytes(needs.block.0.saturating_sub(bytes)), Bytes(0));
    needs.blocks_most = on_gpu.num_blocks;
    Ok((MemoryPlan::divide(total, &needs)?, needs.swap))
}

fn to_input(error: GpuError) -> anyhow::Error {
    Advised::input(
        error.to_string(),
        "leave --device out, and the processor computes; `interbed devices` lists what could",
    )
}

//! A GPU as the place where a model is computed: chooses the GPU, divides its memory and the host's, and opens it.

use std::sync::Arc;

use anyhow::Result;
use interbed_device::{Bytes, CopyRates, Gpu, GpuError, GpuInfo, ProductArithmetic, Vulkan, VulkanDevice};
use interbed_engine::{LEAST_CONTEXT, MemoryNeeds, MemoryPlan, SchemaNeeds};
use interbed_kernels::KvLayout;
use interbed_model::Model;
use interbed_model::layers::LOGIT_ROWS;
use interbed_weights::ResidentWeights;

use crate::audience::Surroundings;
use crate::budget::budget;
use crate::device_option::DeviceOption;
use crate::failure::Advised;
use crate::model_dir::{DeviceDivision, Division, ModelDir};
use crate::needs::{BATCHED_TOKENS, batched_tokens};
use crate::options::{KvLayoutOption, LimitOptions};
use crate::place::{ComputePlace, Processor};
use crate::report::report;

/// The host memory, in bytes, that the use of a GPU takes: buffers of arguments, copies in transit, and the driver.
const HOST_SCRATCH: u64 = 96 << 20;

/// The copies that measure a GPU's speed take at most one part in this many of its memory.
const COPY_SHARE: u64 = 8;

/// The percentage of a GPU's memory that is used by default. The system needs the rest.
const GPU_SHARE: u64 = 90;

/// The percentage of a GPU's memory that is used by default if the processor shares that memory.
const UNIFIED_SHARE: u64 = 40;

/// A GPU that the options choose for a model.
pub struct GpuPlace {
    vulkan: Arc<Vulkan>,
    number: usize,
    info: GpuInfo,
    /// The bytes of the GPU's memory that may be used.
    total: Bytes,
    /// The arithmetic of products with quantised weights.
    arithmetic: ProductArithmetic,
}

impl GpuPlace {
    /// Returns the GPU that the options choose, or `None` if the processor computes.
    ///
    /// # Errors
    /// Fails if the GPU does not exist, or an option does not work with the chosen device.
    pub fn chosen(dir: &ModelDir, limits: &LimitOptions) -> Result<Option<Self>> {
        if limits.compute.device == DeviceOption::Cpu {
            Processor::check(&limits.compute)?;
        }
        let DeviceOption::Vulkan(number) = settled(dir, limits) else { return Ok(None) };
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
        Ok(Some(Self { vulkan, number, info, total, arithmetic }))
    }

    /// Measures the speeds of the GPU's memory and of the link to it by copies of `bytes` bytes, or fewer if the GPU
    /// has little memory. Nothing else may be on the GPU.
    ///
    /// # Errors
    /// Fails if the GPU fails.
    pub fn rates(&self, bytes: u64) -> Result<CopyRates> {
        let gpu = Gpu::open(&self.vulkan, self.number, self.info.memory)?;
        let bytes = bytes.min(self.info.memory.0 / COPY_SHARE).min(gpu.buffer_max() as u64);
        Ok(CopyRates::measure(&gpu, usize::try_from(bytes)?)?)
    }
}

impl ComputePlace for GpuPlace {
    type Device = VulkanDevice;

    fn divide(&self, dir: &ModelDir, limits: &LimitOptions, surroundings: &Surroundings<'_>) -> Result<Division> {
        let device = divide(dir, limits, surroundings, self.total)?;
        let on_gpu = &device.plan;
        let (needs, host) = divide_host(dir, limits, surroundings, on_gpu)?;
        let block_size = needs.block_size;
        report!("device  {:>10}  {} ({})", self.total, self.info.name, limits.compute.device);
        for (name, bytes) in on_gpu.budget.entries().iter().filter(|(_, bytes)| bytes.0 > 0) {
            let blocks = match name.as_str() {
                "KV blocks" if on_gpu.num_blocks_max > on_gpu.num_blocks => format!(
                    "  {} x {block_size} tokens at first, {} if weights give up memory",
                    on_gpu.num_blocks, on_gpu.num_blocks_max
                ),
                "KV blocks" => format!("  {} x {block_size} tokens", on_gpu.num_blocks),
                _ => String::new(),
            };
            report!("  {name:<10}{bytes:>10}{blocks}");
        }
        report!("host    {:>10}", host.budget.total());
        let MemoryPlan { num_blocks, num_blocks_max, max_model_len, .. } = *on_gpu;
        // The context is what the GPU has room for, whatever the host streams.
        let plan = MemoryPlan { num_blocks, num_blocks_max, max_model_len, streams_below: None, ..host };
        let batched_tokens = batched_tokens(limits, BATCHED_TOKENS);
        Ok(Division { needs, plan, batched_tokens, device: Some(device) })
    }

    fn computes(&self) -> String {
        format!("{}, {}, {} products", self.info.name, self.info.driver, self.arithmetic)
    }

    fn open(&self, dir: &ModelDir, division: &Division, layout: KvLayout, _: &LimitOptions) -> Result<VulkanDevice> {
        let gpu = Gpu::open(&self.vulkan, self.number, self.total).map_err(to_input)?;
        let tokens = division.batched_tokens;
        let needs = Model::pass_needs(&dir.config.blueprint, tokens, tokens);
        let (plan, products) = (&division.plan, self.arithmetic);
        Ok(match division.is_streamed() {
            true => VulkanDevice::with_elastic_blocks(&gpu, &needs, &layout, plan.num_blocks_max, products)?,
            false => VulkanDevice::with_products(&gpu, &needs, &layout, plan.num_blocks, products)?,
        })
    }
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
fn divide(
    dir: &ModelDir,
    limits: &LimitOptions,
    surroundings: &Surroundings<'_>,
    total: Bytes,
) -> Result<DeviceDivision> {
    let (mut needs, tokens) = (dir.needs(limits, surroundings)?, batched_tokens(limits, BATCHED_TOKENS));
    let none = Bytes(0);
    (needs.process, needs.opening, needs.requests, needs.swap) = (none, none, none, none);
    needs.schemas = SchemaNeeds::default();
    let pass = Model::pass_needs(&dir.config.blueprint, tokens, tokens);
    needs.scratch = Bytes(VulkanDevice::pass_bytes(&pass, limits.compute.gpu_products.into()) as u64);
    needs.block = Bytes(dir.kv_layout(limits).block_bytes() as u64);
    needs.block_returnable = needs.block;
    if let Some(memory) = limits.kv_memory {
        needs.blocks_most = usize::try_from(memory.0 / needs.block.0)?;
    }
    // The driver rounds buffers up, so one percent is left free.
    let total = Bytes(total.0 / 100 * 99);
    let plan = MemoryPlan::divide(total, &needs).map_err(|refused| {
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
    })?;
    Ok(DeviceDivision { needs, plan })
}

/// Divides host memory beside a GPU. Also returns the needs that it was divided by.
fn divide_host(
    dir: &ModelDir,
    limits: &LimitOptions,
    surroundings: &Surroundings<'_>,
    on_gpu: &MemoryPlan,
) -> Result<(MemoryNeeds, MemoryPlan)> {
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
    needs.blocks_most = on_gpu.num_blocks_max;
    Ok((needs, MemoryPlan::divide(total, &needs)?))
}

fn to_input(error: GpuError) -> anyhow::Error {
    Advised::input(
        error.to_string(),
        "leave --device out, and the processor computes; `interbed devices` lists what could",
    )
}

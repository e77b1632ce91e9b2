//! A GPU as the place where a model is computed: chooses the GPU, says what memory it has, and opens it.

use anyhow::{Context, Result};
use interbed_device::{
    BlockMemory, Bytes, CopyRates, DEVICE_KINDS, Device, DeviceKind, DeviceRequest, GpuError, GpuInfo,
    ProductArithmetic,
};
use interbed_kernels::KvLayout;
use interbed_model::Model;
use interbed_model::layers::LOGIT_ROWS;
use interbed_weights::{ElementType, ResidentWeights};

use crate::device_option::DeviceOption;
use crate::division::{DeviceRoom, Division};
use crate::failure::Advised;
use crate::model_dir::ModelDir;
use crate::needs::{BATCHED_TOKENS, batched_tokens};
use crate::options::{KvLayoutOption, LimitOptions};
use crate::place::{ComputePlace, Processor};
use crate::report::report;
use crate::tails;

/// The host memory, in bytes, that the use of a GPU takes: buffers of arguments, copies in transit, and the driver.
const HOST_SCRATCH: u64 = 96 << 20;

/// The percentage of a GPU's memory that is used by default. The system needs the rest.
const GPU_SHARE: u64 = 90;

/// The percentage of a GPU's memory that is used by default if the processor shares that memory.
const UNIFIED_SHARE: u64 = 40;

/// A GPU that the options choose for a model.
pub struct GpuPlace {
    kind: &'static DeviceKind,
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
        let DeviceOption::Numbered(kind, number) = settled(dir, limits) else { return Ok(None) };
        check(limits)?;
        let arithmetic: ProductArithmetic = limits.compute.gpu_products.into();
        let kind = DEVICE_KINDS.iter().find(|known| known.name == kind).context("there is no such kind of device")?;
        let info = (kind.list)().map_err(to_input)?.into_iter().nth(number);
        let info = info.ok_or_else(|| to_input(GpuError::NotFound { number }))?;
        check_types(kind, dir).map_err(to_input)?;
        if arithmetic == ProductArithmetic::Integer && !info.has_dot_products {
            return Err(to_input(GpuError::NoDotProducts { gpu: info.name }));
        }
        let total = gpu_memory(&info, limits);
        check_memory(&info, total, limits)?;
        Ok(Some(Self { kind, number, info, total, arithmetic }))
    }

    /// Measures the speeds of the GPU's memory and of the link to it by copies of `bytes` bytes, or fewer if the GPU
    /// has little memory. Nothing else may be on the GPU.
    ///
    /// # Errors
    /// Fails if the GPU fails.
    pub fn rates(&self, bytes: u64) -> Result<CopyRates> {
        Ok((self.kind.rates)(self.number, Bytes(bytes))?)
    }
}

impl ComputePlace for GpuPlace {
    fn memory(&self, dir: &ModelDir, limits: &LimitOptions) -> Result<Option<DeviceRoom>> {
        let (blueprint, tokens) = (&dir.config.blueprint, batched_tokens(limits, BATCHED_TOKENS));
        let pass = Model::pass_needs(blueprint, tokens, tokens);
        // The host reads this many rows of logits at a time.
        let logits = (LOGIT_ROWS * size_of::<f32>()).saturating_mul(blueprint.vocab_size);
        Ok(Some(DeviceRoom {
            name: format!("{} ({})", self.info.name, limits.compute.device),
            total: self.total,
            scratch: Bytes((self.kind.pass_bytes)(&pass, self.arithmetic) as u64),
            host_scratch: Bytes(HOST_SCRATCH.saturating_add(logits as u64)),
            loading: Bytes(ResidentWeights::largest_group(&dir.catalog, &dir.specs)?),
        }))
    }

    fn computes(&self) -> String {
        format!("{}, {}, {} products", self.info.name, self.info.driver, self.arithmetic)
    }

    fn open(&self, dir: &ModelDir, division: &Division, layout: KvLayout, _: &LimitOptions) -> Result<Box<dyn Device>> {
        let (tokens, num_blocks) = (division.batched_tokens, division.plan.num_blocks_max);
        let bytes = Bytes((num_blocks as u64).saturating_mul(layout.block_bytes() as u64));
        let groups = tails::block_groups(&dir.config.blueprint, layout, num_blocks);
        let blocks = match (groups.groups().len() > 1, division.is_streamed()) {
            (true, _) => BlockMemory::Shared(bytes),
            (false, true) => BlockMemory::FromWeights,
            (false, false) => BlockMemory::Own,
        };
        let request = DeviceRequest {
            number: self.number,
            memory: self.total,
            needs: &Model::pass_needs(&dir.config.blueprint, tokens, tokens),
            groups: &groups,
            blocks,
            arithmetic: self.arithmetic,
        };
        (self.kind.open)(&request).map_err(to_input)
    }
}

/// Returns the device that the options choose: instead of `auto` a GPU, or the processor, after a report why.
pub fn settled(dir: &ModelDir, limits: &LimitOptions) -> DeviceOption {
    if limits.compute.device != DeviceOption::Auto {
        return limits.compute.device;
    }
    choose(dir, limits).unwrap_or_else(|why| {
        report!("device         cpu  {why}");
        DeviceOption::Cpu
    })
}

/// Returns the GPU that `--device auto` chooses, or why it chooses none.
fn choose(dir: &ModelDir, limits: &LimitOptions) -> Result<DeviceOption, String> {
    let (mut gpus, mut problems) = (Vec::new(), Vec::new());
    for kind in DEVICE_KINDS {
        match (kind.list)() {
            Ok(found) => gpus.extend(found.into_iter().filter(|gpu| gpu.missing.is_none()).map(|gpu| (kind, gpu))),
            Err(error) => problems.push(error.to_string()),
        }
    }
    let named = |(kind, gpu): &(&DeviceKind, GpuInfo)| DeviceOption::Numbered(kind.name, gpu.number);
    let usable = gpus.iter().filter(|(_, gpu)| gpu.kind != "software");
    let best =
        usable.max_by_key(|(_, gpu)| (gpu.kind == "discrete", gpu.memory.0)).ok_or_else(|| match gpus.first() {
            Some(software) => format!("{} is software; --device {} takes it", software.1.name, named(software)),
            None => problems.pop().unwrap_or_else(|| "no GPU that kernels run on".to_owned()),
        })?;
    let (memory, gpu) = (gpu_memory(&best.1, limits), &best.1);
    if memory.0 < dir.weight_bytes.0 {
        return Err(format!("{} may use {memory}, and the weights are {}", gpu.name, dir.weight_bytes));
    }
    check_types(best.0, dir).map_err(|error| error.to_string())?;
    Ok(named(best))
}

/// Refuses a model with weights of a type that devices of this kind have no kernels for.
fn check_types(kind: &DeviceKind, dir: &ModelDir) -> Result<(), GpuError> {
    let names = dir.specs.iter().flat_map(|group| &group.tensors).map(|tensor| &tensor.name);
    for entry in names.filter_map(|name| dir.catalog.get(name)) {
        match entry.element_type {
            ElementType::Known(dtype) if !(kind.computes)(dtype) => return Err(GpuError::WeightType { dtype }),
            _ => {}
        }
    }
    Ok(())
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

fn to_input(error: GpuError) -> anyhow::Error {
    Advised::input(
        error.to_string(),
        "leave --device out, and the processor computes; `interbed devices` lists what could",
    )
}

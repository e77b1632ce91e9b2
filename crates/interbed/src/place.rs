//! Where a model is computed. A place says what memory there is, and opens the device that computes.

use anyhow::{Context, Result};
use interbed_device::{Cpu, CpuDevice, Device, KvPool};
use interbed_kernels::{KvLayout, LEVEL_VARIABLE, Level};
use interbed_model::Model;

use crate::division::{DeviceRoom, Division};
use crate::failure::Advised;
use crate::model_dir::ModelDir;
use crate::needs::{self, threads};
use crate::options::{ComputeOptions, GpuProducts, HostProducts, KvLayoutOption, LimitOptions};
use crate::tails;

/// The hardware on which a model is computed: the processor or a GPU.
pub trait ComputePlace {
    /// Returns the memory of the place's device for a model, or `None` if it computes in host memory.
    ///
    /// # Errors
    /// Fails if the model's weights cannot be used.
    fn memory(&self, dir: &ModelDir, limits: &LimitOptions) -> Result<Option<DeviceRoom>>;

    /// Returns a text that names what computes KV. KV that is computed elsewhere differs in some bits, so only places
    /// with the same text share it.
    fn computes(&self) -> String;

    /// Opens the device, with memory for the passes and the KV blocks of a division.
    ///
    /// # Errors
    /// Fails if the system or the device refuses the memory.
    fn open(
        &self,
        dir: &ModelDir,
        division: &Division,
        layout: KvLayout,
        limits: &LimitOptions,
    ) -> Result<Box<dyn Device>>;
}

/// The processor, which computes in host memory.
pub struct Processor;

impl ComputePlace for Processor {
    fn memory(&self, _: &ModelDir, _: &LimitOptions) -> Result<Option<DeviceRoom>> {
        Ok(None)
    }

    fn computes(&self) -> String {
        Level::detect().name().to_owned()
    }

    fn open(
        &self,
        dir: &ModelDir,
        division: &Division,
        layout: KvLayout,
        limits: &LimitOptions,
    ) -> Result<Box<dyn Device>> {
        let level = Level::detect().name();
        if let Some(asked) = std::env::var(LEVEL_VARIABLE).ok().filter(|asked| asked != level) {
            tracing::warn!("{LEVEL_VARIABLE} is {asked:?}, which this machine does not have; using {level}");
        }
        let tokens = division.batched_tokens;
        let needs = Model::pass_needs(&dir.config.blueprint, tokens, tokens);
        Ok(Box::new(CpuDevice::new(Cpu::new(threads(limits)), &needs, kv_pool(dir, layout, division, limits)?)?))
    }
}

impl Processor {
    /// Checks that `compute` sets no option that only affects a GPU.
    ///
    /// # Errors
    /// Fails if such an option is set. The error names the option.
    pub fn check(compute: &ComputeOptions) -> Result<()> {
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
}

/// Allocates the memory of KV blocks.
fn kv_pool(
    dir: &ModelDir,
    layout: KvLayout,
    Division { plan, .. }: &Division,
    limits: &LimitOptions,
) -> Result<KvPool> {
    // If weights are streamed, KV and weights trade memory, so the pool has the maximum number of blocks and is
    // sparse. It is sparse, too, if groups of layers trade memory.
    let num_blocks = if plan.streamed { plan.num_blocks_max } else { plan.num_blocks };
    let shape = needs::strips(limits, layout.block_size(), plan.max_model_len, num_blocks);
    let groups = tails::block_groups(&dir.config.blueprint, layout, num_blocks);
    let is_traded = plan.streamed || groups.groups().len() > 1;
    Ok(match (limits.kv_layout, is_traded) {
        (KvLayoutOption::Virtual, _) => KvPool::new_in_strips(groups, shape).context(
            "there are no addresses for --kv-layout virtual; give a smaller --max-model-len or --max-num-seqs, or take \
             --kv-layout paged",
        )?,
        (KvLayoutOption::Paged, true) => KvPool::new_sparse(groups)?,
        (KvLayoutOption::Paged, false) => KvPool::new(groups)?,
    })
}

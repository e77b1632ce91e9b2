//! The GPUs with a Vulkan driver, as a kind of device.

use crate::{Bytes, CopyRates, DeviceKind, Gpu, GpuError, GpuInfo, Vulkan, VulkanDevice};

/// The copies that measure a GPU's speed take at most one part in this many of its memory.
const COPY_SHARE: u64 = 8;

/// The GPUs with a Vulkan driver.
pub(crate) const VULKAN: DeviceKind = DeviceKind {
    name: "vulkan",
    none_found: "Vulkan's loader is there, but no driver (Debian: mesa-vulkan-drivers, or the maker's)",
    list,
    pass_bytes: VulkanDevice::pass_bytes,
    computes: VulkanDevice::computes,
    open: |request| {
        let gpu = Gpu::open(&Vulkan::load()?, request.number, request.memory)?;
        let device = VulkanDevice::with_blocks(&gpu, request.needs, request.groups, request.blocks, request.arithmetic);
        Ok(Box::new(device?))
    },
    rates,
};

fn list() -> Result<Vec<GpuInfo>, GpuError> {
    Vulkan::load()?.gpus()
}

fn rates(number: usize, most: Bytes) -> Result<CopyRates, GpuError> {
    let vulkan = Vulkan::load()?;
    let memory = vulkan.gpus()?.into_iter().nth(number).ok_or(GpuError::NotFound { number })?.memory;
    let gpu = Gpu::open(&vulkan, number, memory)?;
    let bytes = most.0.min(memory.0 / COPY_SHARE).min(gpu.buffer_max() as u64);
    CopyRates::measure(&gpu, usize::try_from(bytes).unwrap_or(usize::MAX))
}

//! A kind of device beside the processor: how its devices are found, and how one of them is opened.

use interbed_kernels::{BlockGroups, DType};

use crate::{BlockMemory, Bytes, CopyRates, Device, GpuError, GpuInfo, PassNeeds, ProductArithmetic};

/// A kind of device beside the processor, as `--device` names it. [`DEVICE_KINDS`](crate::DEVICE_KINDS) lists all
/// kinds.
pub struct DeviceKind {
    /// The name that precedes the number of a device, as in `vulkan:0`.
    pub name: &'static str,
    /// What a user can do if there is no device of this kind, although its driver was found.
    pub none_found: &'static str,
    /// Returns the devices of this kind that this machine has, in the order of their numbers.
    pub list: fn() -> Result<Vec<GpuInfo>, GpuError>,
    /// Returns the number of bytes of the device's memory that passes take, without weights and KV.
    pub pass_bytes: fn(&PassNeeds, ProductArithmetic) -> usize,
    /// Returns whether the device has kernels for weights of this type.
    pub computes: fn(DType) -> bool,
    /// Opens a device with memory for passes and KV blocks.
    pub open: fn(&DeviceRequest<'_>) -> Result<Box<dyn Device>, GpuError>,
    /// Measures the rates of copies on the device with this number. The size is the most bytes of a copy. Nothing else
    /// may be on the device.
    pub rates: fn(usize, Bytes) -> Result<CopyRates, GpuError>,
}

/// What a device is opened with.
pub struct DeviceRequest<'a> {
    /// The number of the device in its kind's list.
    pub number: usize,
    /// The bytes of the device's memory that may be used.
    pub memory: Bytes,
    /// The needs of the passes that it will compute.
    pub needs: &'a PassNeeds,
    /// The groups of blocks, and how many there can be of each.
    pub groups: &'a BlockGroups,
    /// Where blocks have their memory from.
    pub blocks: BlockMemory,
    /// The arithmetic of products with quantised weights.
    pub arithmetic: ProductArithmetic,
}

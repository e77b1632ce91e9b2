//! Devices, and the parts of which passes are made: commands on tensors and KV blocks, buffers, budgets, and the
//! operating system's figures for memory and cores.

mod block_chunks;
mod budget;
mod buffer;
mod bytes;
mod command;
mod cores;
mod cpu;
mod device;
mod device_kind;
mod figures;
mod kv_frame;
mod kv_pool;
mod kv_strips;
mod memory;
mod processor;
mod queue;
mod reference;
mod tensor;
mod virtual_memory;
mod vulkan;
mod vulkan_kind;
mod weights;

pub use block_chunks::{BlockMemory, ChunkShape};
pub use budget::{Budget, OverBudget};
pub use buffer::{AllocError, HUGE_PAGE, HostBuffer, page_size};
pub use bytes::{BadSize, Bytes};
pub use command::{BEST_MAX, BEST_WIDTH_MAX, BandProduct, Command, KvSequences, OUTS_MAX, Operand, PRODUCTS_MAX, Use};
pub use cores::usable_cores;
pub use cpu::{CpuDevice, PassNeeds};
pub use device::{Device, DeviceError};
pub use device_kind::{DeviceKind, DeviceRequest};
pub use figures::{DeviceEvent, DeviceStats, HostRates};
pub use kv_frame::KvFrame;
pub use kv_pool::KvPool;
pub use kv_strips::{KvStrips, StripChange, StripContent, StripShape, StripStats};
pub use memory::{HostMemory, give_back_freed, huge_pages_unasked, peak_resident, share_heaps};
pub use processor::Cpu;
pub use queue::{Queue, Token};
pub use reference::{ReferenceBytes, ReferenceDevice};
pub use tensor::{OutOfTensors, Tensor, TensorArea};
pub use virtual_memory::{Mappings, PageAccess, SharedMemory, VirtualMemory, mappings};
pub use vulkan::{CopyRates, Gpu, GpuBuffer, GpuError, GpuInfo, Heap, ProductArithmetic, Vulkan, VulkanDevice};
pub use weights::{PlacedBytes, Weights};

/// All kinds of devices beside the processor. A further kind is its files here, and one line in this list.
pub const DEVICE_KINDS: &[DeviceKind] = &[vulkan_kind::VULKAN];

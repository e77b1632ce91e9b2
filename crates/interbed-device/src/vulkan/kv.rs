//! KV blocks on a GPU.

use std::sync::Arc;

use interbed_kernels::KvLayout;

use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::{GpuBuffer, Heap};

/// Bytes of a slab at most: few enough for every driver.
const SLAB: usize = 1 << 30;

/// KV blocks in slabs of GPU memory; kernels get the blocks' addresses.
pub(super) struct GpuKv {
    layout: KvLayout,
    num_blocks: usize,
    slabs: Vec<Arc<GpuBuffer>>,
    /// Blocks of each slab but the last.
    in_slab: usize,
}

impl GpuKv {
    pub fn new(gpu: &Arc<Gpu>, layout: KvLayout, num_blocks: usize) -> Result<Self, GpuError> {
        let block = layout.block_bytes().max(1);
        let in_slab = (SLAB.min(gpu.buffer_max()) / block).max(1);
        let slab = |first: usize| {
            let blocks = in_slab.min(num_blocks - first);
            GpuBuffer::new(gpu, Heap::Device, blocks.saturating_mul(block)).map(Arc::new)
        };
        let slabs = (0..num_blocks).step_by(in_slab).map(slab).collect::<Result<_, _>>()?;
        Ok(Self { layout, num_blocks, slabs, in_slab })
    }

    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Returns the slab of a block, and the byte in the slab at which the block begins.
    ///
    /// # Panics
    /// Panics if there is no such block.
    pub fn place(&self, block: u32) -> (&Arc<GpuBuffer>, usize) {
        let block = block as usize;
        assert!(block < self.num_blocks, "a sequence has a block beyond the pool");
        (&self.slabs[block / self.in_slab], block % self.in_slab * self.layout.block_bytes())
    }

    pub fn address(&self, block: u32) -> u64 {
        let (slab, offset) = self.place(block);
        slab.address() + offset as u64
    }
}

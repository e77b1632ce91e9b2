//! KV blocks on a GPU.

use std::sync::Arc;

use strata_kernels::{KvLayout, KvPlace};

use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::{GpuBuffer, Heap};
use crate::KvSequences;

/// Bytes of a slab at most: few enough for every driver.
const SLAB: usize = 1 << 30;

/// Blocks in slabs; kernels get their addresses.
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

    /// The slab of a block, and where in it the block begins.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn place(&self, block: u32) -> (&Arc<GpuBuffer>, usize) {
        let block = block as usize;
        assert!(block < self.num_blocks, "a sequence has a block beyond the pool");
        (&self.slabs[block / self.in_slab], block % self.in_slab * self.layout.block_bytes())
    }

    pub fn address(&self, block: u32) -> u64 {
        let (slab, offset) = self.place(block);
        slab.address() + offset as u64
    }

    /// The addresses of the blocks of a span, and those of the others one after the other; and where each begins.
    ///
    /// # Panics
    /// If a block table is too short.
    pub fn tables(&self, sequences: KvSequences<'_>) -> (Vec<u64>, Vec<u32>) {
        let (mut addresses, mut starts) = (Vec::new(), Vec::new());
        for span in sequences.spans {
            starts.push(addresses.len() as u32);
            let end = (span.first_position + span.tokens).min(span.held.end);
            let blocks = end.saturating_sub(span.held.start).div_ceil(self.layout.block_size());
            match &span.place {
                KvPlace::Listed(range) => {
                    let table = &sequences.tables[range.start as usize..range.end as usize];
                    addresses.extend(table[..blocks].iter().map(|&block| self.address(block)));
                }
                &KvPlace::From(first) => addresses.extend((first..).take(blocks).map(|block| self.address(block))),
            }
        }
        (addresses, starts)
    }
}

//! KV blocks on a GPU.

use std::sync::Arc;

use interbed_kernels::KvLayout;

use super::chunks::Chunks;
use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::{GpuBuffer, Heap};

/// Bytes of a slab at most: few enough for every driver.
const SLAB: usize = 1 << 30;

/// KV blocks in GPU memory; kernels get the blocks' addresses.
pub(super) struct GpuKv {
    layout: KvLayout,
    /// The memory of each block, and the byte of it at which the block begins; `None` while a block has no memory.
    places: Vec<Option<(Arc<GpuBuffer>, usize)>>,
    /// Memory for blocks that are to come, if blocks come and leave; `None` if all blocks keep their memory.
    spare: Option<Vec<Arc<GpuBuffer>>>,
}

impl GpuKv {
    /// Creates blocks that keep their memory, in slabs of many.
    ///
    /// # Errors
    /// Fails if the budget, or the GPU, has no such memory.
    pub fn new(gpu: &Arc<Gpu>, layout: KvLayout, num_blocks: usize) -> Result<Self, GpuError> {
        let block = layout.block_bytes().max(1);
        let in_slab = (SLAB.min(gpu.buffer_max()) / block).max(1);
        let mut places = Vec::with_capacity(num_blocks);
        while places.len() < num_blocks {
            let blocks = in_slab.min(num_blocks - places.len());
            let slab = Arc::new(GpuBuffer::new(gpu, Heap::Device, blocks.saturating_mul(block))?);
            places.extend((0..blocks).map(|index| Some((Arc::clone(&slab), index * block))));
        }
        Ok(Self { layout, places, spare: None })
    }

    /// Creates blocks that have no memory before they come.
    pub fn new_elastic(layout: KvLayout, num_blocks: usize) -> Self {
        Self { layout, places: vec![None; num_blocks], spare: Some(Vec::new()) }
    }

    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    pub fn num_blocks(&self) -> usize {
        self.places.len()
    }

    /// Takes memory for `count` blocks that are to come, as far as there is any. Returns for how many there is memory.
    ///
    /// # Errors
    /// Fails if the GPU fails. That it has no memory left is no failure.
    pub fn reserve(&mut self, gpu: &Arc<Gpu>, chunks: &mut Chunks, count: usize) -> Result<usize, GpuError> {
        let Some(spare) = &mut self.spare else { return Ok(count) };
        while spare.len() < count {
            match chunks.take(gpu, self.layout.block_bytes()) {
                Ok(memory) => spare.push(Arc::new(memory)),
                Err(error) if error.is_full() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(spare.len().min(count))
    }

    /// Gives the blocks `came` memory that was reserved, or that the blocks `left` had. Returns the memory that no
    /// block has any more, or `None` if there is not enough.
    ///
    /// # Panics
    /// Panics if a block does not exist.
    pub fn resize(&mut self, came: &[u32], left: &[u32]) -> Option<Vec<Arc<GpuBuffer>>> {
        let Some(spare) = &mut self.spare else { return Some(Vec::new()) };
        spare.extend(left.iter().filter_map(|&block| self.places[block as usize].take()).map(|(memory, _)| memory));
        for &block in came {
            let place = &mut self.places[block as usize];
            if place.is_none() {
                *place = Some((spare.pop()?, 0));
            }
        }
        Some(std::mem::take(spare))
    }

    /// Keeps memory that no block has for blocks that are to come.
    pub fn keep(&mut self, unused: Vec<Arc<GpuBuffer>>) {
        self.spare.iter_mut().for_each(|spare| spare.extend_from_slice(&unused));
    }

    /// Returns whether blocks come and leave.
    pub fn is_elastic(&self) -> bool {
        self.spare.is_some()
    }

    /// Returns the memory of a block, and the byte of it at which the block begins.
    ///
    /// # Panics
    /// Panics if there is no such block, or it has no memory.
    pub fn place(&self, block: u32) -> (&Arc<GpuBuffer>, usize) {
        let place = self.places.get(block as usize).expect("a sequence has a block beyond the pool");
        let (memory, offset) = place.as_ref().expect("a sequence has a block without memory");
        (memory, *offset)
    }

    pub fn address(&self, block: u32) -> u64 {
        let (memory, offset) = self.place(block);
        memory.address() + offset as u64
    }
}

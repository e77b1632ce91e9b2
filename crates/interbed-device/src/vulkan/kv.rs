//! Blocks of KV and of states on a GPU.

use std::sync::Arc;

use interbed_kernels::BlockGroups;

use super::chunks::Chunks;
use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::{GpuBuffer, Heap};

/// Bytes of a slab at most: few enough for every driver.
const SLAB: usize = 1 << 30;

/// Blocks in GPU memory; kernels get the blocks' addresses.
pub(super) struct GpuKv {
    groups: BlockGroups,
    /// The memory of each block, and the byte of it at which the block begins; `None` while a block has no memory.
    places: Vec<Option<(Arc<GpuBuffer>, usize)>>,
    /// Memory for blocks of each group that are to come, if blocks come and leave; `None` if all blocks keep their
    /// memory.
    spare: Option<Vec<Vec<Arc<GpuBuffer>>>>,
}

impl GpuKv {
    /// Creates blocks that keep their memory, in slabs of many.
    ///
    /// # Errors
    /// Fails if the budget, or the GPU, has no such memory.
    pub fn new(gpu: &Arc<Gpu>, groups: BlockGroups) -> Result<Self, GpuError> {
        let mut places = Vec::with_capacity(groups.num_blocks());
        for group in groups.groups() {
            let block = group.block_bytes().max(1);
            let in_slab = (SLAB.min(gpu.buffer_max()) / block).max(1);
            while places.len() < group.numbers().end {
                let blocks = in_slab.min(group.numbers().end - places.len());
                let slab = Arc::new(GpuBuffer::new(gpu, Heap::Device, blocks.saturating_mul(block))?);
                places.extend((0..blocks).map(|index| Some((Arc::clone(&slab), index * block))));
            }
        }
        Ok(Self { groups, places, spare: None })
    }

    /// Creates blocks that have no memory before they come.
    pub fn new_elastic(groups: BlockGroups) -> Self {
        let spare = groups.groups().iter().map(|_| Vec::new()).collect();
        Self { places: vec![None; groups.num_blocks()], spare: Some(spare), groups }
    }

    pub fn groups(&self) -> &BlockGroups {
        &self.groups
    }

    /// Takes memory for `count` blocks of a group that are to come, as far as there is any. Returns for how many there
    /// is memory.
    ///
    /// # Errors
    /// Fails if the GPU fails. That it has no memory left is no failure.
    pub fn reserve(
        &mut self,
        gpu: &Arc<Gpu>,
        chunks: &mut Chunks,
        group: usize,
        count: usize,
    ) -> Result<usize, GpuError> {
        let Some(spare) = &mut self.spare else { return Ok(count) };
        let (spare, block_bytes) = (&mut spare[group], self.groups.groups()[group].block_bytes());
        while spare.len() < count {
            match chunks.take(gpu, block_bytes) {
                Ok(memory) => spare.push(Arc::new(memory)),
                Err(error) if error.is_full() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(spare.len().min(count))
    }

    /// Gives the blocks `came` memory that was reserved, or that the blocks `left` had. Returns the memory that no
    /// block has any more, by group, or `None` if there is not enough.
    ///
    /// # Panics
    /// Panics if a block does not exist.
    pub fn resize(&mut self, came: &[u32], left: &[u32]) -> Option<Vec<Vec<Arc<GpuBuffer>>>> {
        let Some(spare) = &mut self.spare else { return Some(Vec::new()) };
        for &block in left {
            let memory = self.places[block as usize].take().map(|(memory, _)| memory);
            spare[self.groups.group_of(block)].extend(memory);
        }
        for &block in came {
            let place = &mut self.places[block as usize];
            if place.is_none() {
                *place = Some((spare[self.groups.group_of(block)].pop()?, 0));
            }
        }
        Some(spare.iter_mut().map(std::mem::take).collect())
    }

    /// Keeps memory that no block has for blocks that are to come.
    pub fn keep(&mut self, unused: Vec<Vec<Arc<GpuBuffer>>>) {
        self.spare.iter_mut().flatten().zip(unused).for_each(|(spare, unused)| spare.extend(unused));
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

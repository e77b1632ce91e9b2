//! Blocks of KV and of states on a GPU.

use std::sync::Arc;

use interbed_kernels::BlockGroups;

use super::chunks::Chunks;
use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::{GpuBuffer, Heap};
use crate::BlockMemory;
use crate::block_chunks::{BlockChunks, BlockMove, ChunkPlace};

/// Bytes of a slab at most: few enough for every driver.
const SLAB: usize = 1 << 30;

/// Blocks in GPU memory; kernels get the blocks' addresses.
pub(super) struct GpuKv {
    groups: BlockGroups,
    /// The memory of each block, and the byte of it at which the block begins; `None` while a block has no memory.
    places: Vec<Option<Place>>,
    source: Source,
}

/// A buffer, and the byte of it at which something begins.
pub(super) type Place = (Arc<GpuBuffer>, usize);

/// Where blocks that come have their memory from.
enum Source {
    /// All blocks keep their memory.
    Own,
    /// What weights have left: memory for blocks of each group that are to come.
    Weights(Vec<Vec<Arc<GpuBuffer>>>),
    /// Chunks that all groups share, and the places of these.
    Shared(BlockChunks, Vec<Place>),
}

/// What remains to be done when blocks have come and left.
#[derive(Default)]
pub(super) struct Resized {
    /// The contents of blocks that get other places: where each is, where it goes, and its bytes. They can be copied at
    /// a time.
    pub moves: Vec<(Place, Place, usize)>,
    /// The memory that no block has any more, by group.
    pub unused: Vec<Vec<Arc<GpuBuffer>>>,
    /// Whether all blocks that came have memory.
    pub is_enough: bool,
}

impl GpuKv {
    /// Creates blocks that have their memory from `memory`.
    ///
    /// # Errors
    /// Fails if the budget, or the GPU, has no such memory.
    pub fn new(gpu: &Arc<Gpu>, groups: BlockGroups, memory: BlockMemory) -> Result<Self, GpuError> {
        let mut places = vec![None; groups.num_blocks()];
        let source = match memory {
            BlockMemory::Own => {
                for group in groups.groups() {
                    let slabs = slabs(gpu, group.block_bytes().max(1), group.num_blocks())?;
                    places[group.numbers()].iter_mut().zip(slabs).for_each(|(place, slab)| *place = Some(slab));
                }
                Source::Own
            }
            BlockMemory::FromWeights => Source::Weights(groups.groups().iter().map(|_| Vec::new()).collect()),
            BlockMemory::Shared(bytes) => {
                let bytes = usize::try_from(bytes.0).unwrap_or(usize::MAX);
                let chunks = BlockChunks::new(&groups, bytes);
                let places = slabs(gpu, chunks.shape().bytes(), chunks.shape().chunks_for(bytes))?;
                Source::Shared(chunks, places)
            }
        };
        Ok(Self { groups, places, source })
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
        let spare = match &mut self.source {
            Source::Own => return Ok(count),
            Source::Shared(own, _) => return Ok(own.reserve(group, count)),
            Source::Weights(spare) => &mut spare[group],
        };
        let block_bytes = self.groups.groups()[group].block_bytes();
        while spare.len() < count {
            match chunks.take(gpu, block_bytes) {
                Ok(memory) => spare.push(Arc::new(memory)),
                Err(error) if error.is_full() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(spare.len().min(count))
    }

    /// Gives the blocks `came` memory that was reserved, or that the blocks `left` had.
    ///
    /// # Panics
    /// Panics if a block does not exist.
    pub fn resize(&mut self, came: &[u32], left: &[u32]) -> Resized {
        let mut resized = Resized { is_enough: true, ..Resized::default() };
        match &mut self.source {
            Source::Own => {}
            Source::Weights(spare) => {
                for &block in left {
                    let memory = self.places[block as usize].take().map(|(memory, _)| memory);
                    spare[self.groups.group_of(block)].extend(memory);
                }
                for &block in came {
                    let place = &mut self.places[block as usize];
                    if place.is_none() {
                        *place = spare[self.groups.group_of(block)].pop().map(|memory| (memory, 0));
                        resized.is_enough &= place.is_some();
                    }
                }
                resized.unused = spare.iter_mut().map(std::mem::take).collect();
            }
            Source::Shared(chunks, memory) => {
                let at = |place: ChunkPlace| (Arc::clone(&memory[place.chunk].0), memory[place.chunk].1 + place.start);
                left.iter().for_each(|&block| self.places[block as usize] = None);
                for BlockMove { block, from, to } in chunks.leave(left) {
                    self.places[block as usize] = Some(at(to));
                    resized.moves.push((at(from), at(to), self.groups.layout_of(block).block_bytes()));
                }
                for &block in came {
                    let place = chunks.come(block);
                    resized.is_enough &= place.is_some();
                    self.places[block as usize] = place.map(at);
                }
                chunks.end();
            }
        }
        resized
    }

    /// Keeps memory that no block has for blocks that are to come.
    pub fn keep(&mut self, unused: Vec<Vec<Arc<GpuBuffer>>>) {
        if let Source::Weights(spare) = &mut self.source {
            spare.iter_mut().zip(unused).for_each(|(spare, unused)| spare.extend(unused));
        }
    }

    /// Returns whether blocks come and leave.
    pub fn is_elastic(&self) -> bool {
        !matches!(self.source, Source::Own)
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

/// Takes memory for `count` pieces of `bytes` bytes, in slabs of many.
fn slabs(gpu: &Arc<Gpu>, bytes: usize, count: usize) -> Result<Vec<Place>, GpuError> {
    let in_slab = (SLAB.min(gpu.buffer_max()) / bytes).max(1);
    let mut places = Vec::with_capacity(count);
    while places.len() < count {
        let pieces = in_slab.min(count - places.len());
        let slab = Arc::new(GpuBuffer::new(gpu, Heap::Device, pieces.saturating_mul(bytes))?);
        places.extend((0..pieces).map(|index| (Arc::clone(&slab), index * bytes)));
    }
    Ok(places)
}

//! Memory that the blocks of several groups share, in chunks of one size. A chunk belongs to one group at a time, and
//! the blocks of a group fill its chunks without gaps: when a block leaves, the group's last block moves to its place.
//! So a chunk is free for other groups as soon as its group can do without it, and how many chunks are enough follows
//! from the bytes of the blocks alone.

use std::ops::Range;

use interbed_kernels::{BlockGroup, BlockGroups};

use crate::Bytes;

/// Chunks begin at multiples of this many bytes, as all allocations of devices do.
const ALIGN: usize = 256;

/// A chunk has room for at least this many blocks of each group but the one with the largest blocks, so that the bytes
/// at its end, which hold no whole block, are few.
const BLOCKS_LEAST: usize = 32;

/// The place of a slot or a block that there is not.
const NONE: u32 = u32::MAX;

/// Where the blocks of a device have their memory from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockMemory {
    /// Each block has memory of its own, always.
    Own,
    /// Blocks get memory when they come, as far as weights have left any.
    FromWeights,
    /// Blocks get memory when they come. The memory is taken at the start, and all groups share it: there is always
    /// enough for blocks that take this many bytes together. [`ChunkShape::cost`] says how
    /// much is taken for it.
    Shared(Bytes),
}

/// The size of the chunks that the blocks of some groups share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkShape {
    bytes: usize,
    /// The bytes of one block of each group.
    blocks: Vec<usize>, // [group]
}

impl ChunkShape {
    /// Returns the shape of chunks for groups of blocks of these bytes. A group that has memory to itself has chunks of
    /// one block.
    pub fn new(block_bytes: impl IntoIterator<Item = usize>) -> Self {
        let blocks: Vec<_> = block_bytes.into_iter().map(|bytes| bytes.max(1)).collect();
        let mut sizes = blocks.clone();
        sizes.sort_unstable();
        let (largest, second) = match sizes[..] {
            [.., second, largest] => (largest, second),
            _ => return Self { bytes: sizes.first().copied().unwrap_or(1), blocks },
        };
        let bytes = largest.saturating_mul(second.saturating_mul(BLOCKS_LEAST).div_ceil(largest));
        Self { bytes: bytes.checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX), blocks }
    }

    /// Returns the bytes of one chunk.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of chunks that have room for any blocks that take `bytes` bytes together.
    pub fn chunks_for(&self, bytes: usize) -> usize {
        bytes / self.filled() + self.partly_filled()
    }

    /// Returns the bytes of memory that a block of the first group costs at most, and those that are needed beside all
    /// blocks, because each group may have a chunk that is filled in part.
    pub fn cost(&self) -> [Bytes; 2] {
        let block = self.blocks.first().map_or(0, |&block| block as u128 * self.bytes as u128);
        let block = u64::try_from(block.div_ceil(self.filled() as u128)).unwrap_or(u64::MAX);
        [Bytes(block), Bytes((self.bytes as u64).saturating_mul(self.partly_filled() as u64))]
    }

    /// Returns the number of blocks of a group that a chunk has room for.
    fn per_chunk(&self, group: usize) -> usize {
        self.bytes / self.blocks[group]
    }

    /// Returns the least bytes of blocks that fill a chunk.
    fn filled(&self) -> usize {
        let filled = (0..self.blocks.len()).map(|group| self.per_chunk(group) * self.blocks[group]);
        filled.min().unwrap_or(1)
    }

    /// Returns the number of chunks that can be filled in part at a time.
    fn partly_filled(&self) -> usize {
        (0..self.blocks.len()).filter(|&group| self.per_chunk(group) > 1).count()
    }
}

/// A place in the memory: a chunk, and the byte of it at which a block begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkPlace {
    pub chunk: usize,
    pub start: usize,
}

/// A block whose content moves to another place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockMove {
    pub block: u32,
    pub from: ChunkPlace,
    pub to: ChunkPlace,
}

/// The places of blocks in chunks that their groups share.
#[derive(Debug)]
pub(crate) struct BlockChunks {
    shape: ChunkShape,
    groups: Vec<Group>,
    /// The chunks that no group has.
    free: Vec<usize>,
}

/// The blocks and the chunks of one group. Slots are numbered through all chunks of the group.
#[derive(Debug)]
struct Group {
    numbers: Range<usize>,
    chunks: Vec<usize>,
    /// The number of the block in each slot; [`NONE`] only while blocks leave.
    blocks: Vec<u32>, // [slot]
    /// The slot of each block, or [`NONE`] if the block has no memory.
    slots: Vec<u32>, // [block]
}

impl BlockChunks {
    /// Creates chunks for blocks of `groups` that take up to `bytes` bytes together. No block has memory yet.
    pub fn new(groups: &BlockGroups, bytes: usize) -> Self {
        let shape = ChunkShape::new(groups.groups().iter().map(BlockGroup::block_bytes));
        let group = |group: &BlockGroup| Group {
            numbers: group.numbers(),
            chunks: Vec::new(),
            blocks: Vec::new(),
            slots: vec![NONE; group.num_blocks()],
        };
        let free = (0..shape.chunks_for(bytes)).rev().collect();
        Self { groups: groups.groups().iter().map(group).collect(), free, shape }
    }

    pub fn shape(&self) -> &ChunkShape {
        &self.shape
    }

    /// Gives a group chunks for `count` blocks that are to come, as far as there are any, until the next
    /// [`end`](Self::end). Returns for how many blocks there is room.
    pub fn reserve(&mut self, group: usize, count: usize) -> usize {
        let (per_chunk, own) = (self.shape.per_chunk(group), &mut self.groups[group]);
        let room = |own: &Group| own.chunks.len() * per_chunk - own.blocks.len();
        while room(own) < count
            && let Some(chunk) = self.free.pop()
        {
            own.chunks.push(chunk);
        }
        room(own).min(count)
    }

    /// Takes the places of the blocks `left` away, as far as these have one. Returns which blocks move. All moves can
    /// be made at a time: none begins where another ends.
    pub fn leave(&mut self, left: &[u32]) -> Vec<BlockMove> {
        let mut holes = vec![Vec::new(); self.groups.len()];
        for &block in left {
            let group = self.group_of(block);
            let own = &mut self.groups[group];
            let slot = std::mem::replace(&mut own.slots[block as usize - own.numbers.start], NONE);
            if slot != NONE {
                own.blocks[slot as usize] = NONE;
                holes[group].push(slot);
            }
        }
        let mut moves = Vec::new();
        for (group, mut holes) in holes.into_iter().enumerate() {
            holes.sort_unstable();
            for hole in holes {
                let own = &mut self.groups[group];
                let Some((from, block)) = own.pop_above(hole as usize) else { break };
                own.blocks[hole as usize] = block;
                own.slots[block as usize - own.numbers.start] = hole;
                moves.push(BlockMove { block, from: self.at(group, from), to: self.at(group, hole as usize) });
            }
        }
        moves
    }

    /// Gives a block a place, if its group has a chunk with room. A block that has a place keeps it.
    pub fn come(&mut self, block: u32) -> Option<ChunkPlace> {
        let group = self.group_of(block);
        let (per_chunk, own) = (self.shape.per_chunk(group), &mut self.groups[group]);
        let (number, slot) = (block as usize - own.numbers.start, own.blocks.len());
        if own.slots[number] != NONE {
            let slot = own.slots[number] as usize;
            return Some(self.at(group, slot));
        }
        if slot == own.chunks.len() * per_chunk {
            return None;
        }
        own.blocks.push(block);
        own.slots[number] = slot as u32;
        Some(self.at(group, slot))
    }

    /// Takes the chunks from the groups that these can do without.
    pub fn end(&mut self) {
        for (group, own) in self.groups.iter_mut().enumerate() {
            let needed = own.blocks.len().div_ceil(self.shape.per_chunk(group));
            self.free.extend(own.chunks.drain(needed..).rev());
        }
    }

    fn group_of(&self, block: u32) -> usize {
        self.groups.partition_point(|group| group.numbers.end <= block as usize)
    }

    fn at(&self, group: usize, slot: usize) -> ChunkPlace {
        let per_chunk = self.shape.per_chunk(group);
        let chunk = self.groups[group].chunks[slot / per_chunk];
        ChunkPlace { chunk, start: slot % per_chunk * self.shape.blocks[group] }
    }
}

impl Group {
    /// Takes the block from the last slot that has one, if that is above `slot`. Returns the slot and the block.
    fn pop_above(&mut self, slot: usize) -> Option<(usize, u32)> {
        while self.blocks.last() == Some(&NONE) {
            self.blocks.pop();
        }
        let last = self.blocks.len().checked_sub(1).filter(|&last| last > slot)?;
        Some((last, self.blocks.pop()?))
    }
}

#[cfg(test)]
mod tests;

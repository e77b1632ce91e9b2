//! The numbers of a group's blocks among all blocks, and where the first of them lies.

use std::ops::Range;

/// The numbers of the blocks that have the same layout. The blocks lie side by side in the memory of all blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockRange {
    /// The number of the first block.
    pub first: usize,
    /// The number of blocks that tables may list.
    pub count: usize,
    /// The number of numbers, counted from `first`: some that no table lists may follow, those of strips.
    pub reach: usize,
    /// The place of the first block in the memory of all blocks, in bytes.
    pub start: usize,
}

impl BlockRange {
    /// As many blocks as the memory has room for, numbered from 0.
    pub const ALONE: Self = Self { first: 0, count: usize::MAX, reach: usize::MAX, start: 0 };

    /// Returns the place of a block in the memory of all blocks, in bytes. The block must be one of this range.
    pub fn offset(&self, block: usize, block_bytes: usize) -> usize {
        self.start + (block - self.first) * block_bytes
    }

    /// Returns the numbers that tables may list, of blocks that lie in a memory of `len` bytes.
    pub fn within(&self, len: usize, block_bytes: usize) -> Range<usize> {
        self.first..self.first + self.count.min(self.room(len, block_bytes))
    }

    /// Returns the numbers of blocks that lie in a memory of `len` bytes, those of strips among them.
    pub fn reach_within(&self, len: usize, block_bytes: usize) -> Range<usize> {
        self.first..self.first + self.reach.min(self.room(len, block_bytes))
    }

    fn room(&self, len: usize, block_bytes: usize) -> usize {
        len.saturating_sub(self.start).checked_div(block_bytes).unwrap_or(0)
    }
}

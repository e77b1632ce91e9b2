//! Locations of the keys and values of a sequence's tokens.

use std::iter;
use std::ops::Range;

use crate::KvLayer;

/// The location of a sequence's KV blocks in the KV pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvPlace {
    /// Blocks anywhere in the KV pool. The range selects the block numbers from the block tables that an operation
    /// receives.
    Listed(Range<u32>),
    /// Adjacent blocks, from the block with this number on.
    From(u32),
}

impl From<Range<u32>> for KvPlace {
    fn from(tables: Range<u32>) -> Self {
        Self::Listed(tables)
    }
}

/// Locates the keys and values of one sequence's tokens in the KV pool. Kernels ask for [runs](Self::runs) of
/// positions, and need not know about blocks.
#[derive(Debug, Clone, Copy)]
pub struct KvView<'a> {
    blocks: Blocks<'a>,
    /// The position of the first slot of the first block.
    first: usize,
}

#[derive(Debug, Clone, Copy)]
enum Blocks<'a> {
    Listed(&'a [u32]),
    From(u32),
}

impl Blocks<'_> {
    /// Returns the pool's block for the logical block `logical`.
    ///
    /// # Panics
    /// Panics if there is no such block.
    fn number(self, logical: usize) -> usize {
        match self {
            Self::Listed(table) => table[logical] as usize,
            Self::From(first) => first as usize + logical,
        }
    }
}

/// Consecutive positions of a sequence whose slots are adjacent in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvRun {
    /// The number of bytes from where a head's first slot would be ([`KvLayer::key_offset`]) in a block at the start of
    /// the memory of all blocks to the head's slot of the run's first position.
    pub offset: usize,
    /// The number of positions in the run.
    pub tokens: usize,
}

impl<'a> KvView<'a> {
    /// Creates a view of blocks anywhere in the KV pool. `block_table[i]` is the number that the sequence's block `i`
    /// has in the KV pool.
    pub fn paged(block_table: &'a [u32]) -> Self {
        Self { blocks: Blocks::Listed(block_table), first: 0 }
    }

    /// Creates a view of adjacent blocks, from block `first` of the KV pool on.
    pub fn contiguous(first: u32) -> Self {
        Self { blocks: Blocks::From(first), first: 0 }
    }

    /// Sets the position of the first slot, for blocks that begin in the middle of a sequence.
    pub(crate) fn starting_at(self, first: usize) -> Self {
        Self { first, ..self }
    }

    /// Splits `positions` into runs with adjacent slots in `layer`, in ascending order.
    ///
    /// # Panics
    /// Panics if `positions` begins before the first block of the view. Iterating panics if `positions` extends beyond
    /// the block table.
    pub fn runs(self, layer: &KvLayer, positions: Range<usize>) -> impl Iterator<Item = KvRun> + use<'a> {
        let (block_size, block_bytes, slot_bytes) = (layer.block_size(), layer.block_bytes(), layer.slot_bytes());
        let (start, numbers) = (positions.start - self.first, *layer.blocks());
        let (mut logical, mut slot) = (start / block_size, start % block_size);
        let mut left = positions.len();
        iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let block = self.blocks.number(logical);
            let offset = numbers.offset(block, block_bytes) + slot * slot_bytes;
            let run = KvRun { offset, tokens: left.min(block_size - slot) };
            (logical, slot, left) = (logical + 1, 0, left - run.tokens);
            Some(run)
        })
    }

    /// Checks that the slots of `positions` lie in blocks with a part of `layer`, in a memory of `len` bytes, so that
    /// kernels need not check again.
    ///
    /// # Panics
    /// Panics if the block table ends before the positions do, or names another block.
    pub(crate) fn check(self, layer: &KvLayer, len: usize, positions: &Range<usize>) {
        let positions = positions.start - self.first..positions.end - self.first;
        let blocks = positions.start / layer.block_size()..positions.end.div_ceil(layer.block_size());
        let is_there = match self.blocks {
            Blocks::Listed(table) => {
                let numbers = layer.listed_within(len);
                table[blocks].iter().all(|&block| numbers.contains(&(block as usize)))
            }
            Blocks::From(first) => {
                let numbers = layer.blocks().reach_within(len, layer.block_bytes());
                let first = first as usize;
                blocks.is_empty() || numbers.start <= first && blocks.end <= numbers.end.saturating_sub(first)
            }
        };
        assert!(is_there, "a sequence has a block beyond the pool");
    }
}

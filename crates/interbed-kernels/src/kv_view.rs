//! Locations of the keys and values of a sequence's tokens.

use std::iter;
use std::ops::Range;

use crate::KvLayer;

/// The KV blocks of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvPlace {
    /// Blocks in any order, whose numbers are in this range of the block tables that come with the spans.
    Listed(Range<u32>),
    /// Adjacent blocks, of which the first has this number.
    From(u32),
}

impl From<Range<u32>> for KvPlace {
    fn from(tables: Range<u32>) -> Self {
        Self::Listed(tables)
    }
}

/// Locates the keys and values of one sequence's tokens in the pool. Kernels ask for [runs](Self::runs) of positions,
/// and need not know about blocks.
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

/// A run of consecutive positions of a sequence whose slots are adjacent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvRun {
    /// The number of bytes from a head's first slot in block 0, which [`KvLayer::key_offset`] gives, to the head's slot
    /// of the first of these positions.
    pub offset: usize,
    /// The number of positions.
    pub tokens: usize,
}

impl<'a> KvView<'a> {
    /// Creates a place of blocks anywhere in the pool: `block_table` has the physical block of each logical block.
    pub fn paged(block_table: &'a [u32]) -> Self {
        Self { blocks: Blocks::Listed(block_table), first: 0 }
    }

    /// Creates a place of adjacent blocks, from block `first` of the pool on.
    pub fn contiguous(first: u32) -> Self {
        Self { blocks: Blocks::From(first), first: 0 }
    }

    /// Sets the position of the first slot, for blocks that begin in the middle of a sequence.
    pub(crate) fn starting_at(self, first: usize) -> Self {
        Self { first, ..self }
    }

    /// Splits `positions` into the runs that they form in `layer`, in ascending order.
    ///
    /// # Panics
    /// Panics if the positions begin before the blocks do. Iterating panics if the block table ends before the
    /// positions.
    pub fn runs(self, layer: &KvLayer, positions: Range<usize>) -> impl Iterator<Item = KvRun> + use<'a> {
        let (block_size, block_bytes, slot_bytes) = (layer.block_size(), layer.block_bytes(), layer.slot_bytes());
        let start = positions.start - self.first;
        let (mut logical, mut slot) = (start / block_size, start % block_size);
        let mut left = positions.len();
        iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let block = self.blocks.number(logical);
            let run = KvRun { offset: block * block_bytes + slot * slot_bytes, tokens: left.min(block_size - slot) };
            (logical, slot, left) = (logical + 1, 0, left - run.tokens);
            Some(run)
        })
    }

    /// Checks that the slots of `positions` lie in a pool of `num_blocks` blocks, so that kernels need not check again.
    ///
    /// # Panics
    /// Panics if the block table ends before the positions do, or names a block that is not in the pool.
    pub(crate) fn check(self, layer: &KvLayer, num_blocks: usize, positions: &Range<usize>) {
        let positions = positions.start - self.first..positions.end - self.first;
        let blocks = positions.start / layer.block_size()..positions.end.div_ceil(layer.block_size());
        let is_there = match self.blocks {
            Blocks::Listed(table) => table[blocks].iter().all(|&block| (block as usize) < num_blocks),
            Blocks::From(first) => blocks.end <= num_blocks.saturating_sub(first as usize),
        };
        assert!(is_there, "a sequence has a block beyond the pool");
    }
}

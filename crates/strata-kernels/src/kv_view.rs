//! Where the keys and values of a sequence's tokens lie.

use std::iter;
use std::ops::Range;

use crate::KvLayer;

/// Where the keys and values of one sequence's tokens lie in the pool. Kernels ask for [runs](Self::runs) of positions,
/// and see nothing else of blocks.
///
/// A sequence whose keys and values lie side by side has a single block, as large as the longest context.
#[derive(Debug, Clone, Copy)]
pub struct KvView<'a> {
    block_table: &'a [u32],
    /// Position of the first slot of the first block in the table.
    first: usize,
}

/// Consecutive positions of a sequence whose slots lie side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvRun {
    /// Bytes from a head's first slot in block 0, which [`KvLayer::key_offset`] gives, to the head's slot of the first
    /// of these positions.
    pub offset: usize,
    /// Number of positions.
    pub tokens: usize,
}

impl<'a> KvView<'a> {
    /// Blocks anywhere in the pool: `block_table` has the physical block of each logical block.
    pub fn paged(block_table: &'a [u32]) -> Self {
        Self { block_table, first: 0 }
    }

    /// The same blocks, for the positions from `first` on.
    pub(crate) fn starting_at(self, first: usize) -> Self {
        Self { first, ..self }
    }

    /// The runs that `positions` make in `layer`, in ascending order.
    ///
    /// # Panics
    /// If the positions begin before the blocks do. The iterator does where the block table ends before the positions.
    pub fn runs(self, layer: &KvLayer, positions: Range<usize>) -> impl Iterator<Item = KvRun> + use<'a> {
        let (block_size, block_bytes, slot_bytes) = (layer.block_size(), layer.block_bytes(), layer.slot_bytes());
        let start = positions.start - self.first;
        let (mut logical, mut slot) = (start / block_size, start % block_size);
        let mut left = positions.len();
        iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let block = self.block_table[logical] as usize;
            let run = KvRun { offset: block * block_bytes + slot * slot_bytes, tokens: left.min(block_size - slot) };
            (logical, slot, left) = (logical + 1, 0, left - run.tokens);
            Some(run)
        })
    }

    /// Checks that the slots of `positions` lie in a pool of `num_blocks` blocks, so that a kernel need not check
    /// again.
    ///
    /// # Panics
    /// If the block table ends before the positions do, or names a block that is not in the pool.
    pub(crate) fn check(self, layer: &KvLayer, num_blocks: usize, positions: &Range<usize>) {
        let positions = positions.start - self.first..positions.end - self.first;
        let blocks = positions.start / layer.block_size()..positions.end.div_ceil(layer.block_size());
        let named = &self.block_table[blocks];
        assert!(
            named.iter().all(|&block| (block as usize) < num_blocks),
            "a block table names a block beyond the pool"
        );
    }
}

//! Simulates the memory of blocks.

use crate::{BlockBytes, BlockId};

/// The memory of blocks, each block by itself. [block, byte]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainBlocks(pub Vec<Vec<u8>>);

impl PlainBlocks {
    /// Creates `blocks` blocks of `bytes` bytes each, all 0.
    pub fn zeroed(blocks: usize, bytes: usize) -> Self {
        Self(vec![vec![0; bytes]; blocks])
    }
}

impl BlockBytes for PlainBlocks {
    fn read(&mut self, block: BlockId, into: &mut [u8]) -> Result<(), String> {
        into.copy_from_slice(&self.0[block.index()]);
        Ok(())
    }

    fn fill(&mut self, block: BlockId, fill: &mut dyn FnMut(&mut [u8])) {
        fill(&mut self.0[block.index()]);
    }
}

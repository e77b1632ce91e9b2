//! Simulates the memory of blocks.

use crate::{BlockBytes, BlockPart};

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
    fn read(&mut self, BlockPart { block, part }: BlockPart, into: &mut [u8]) -> Result<(), String> {
        let (block, begin) = (&self.0[block.index()], part as usize * into.len());
        into.iter_mut().zip(begin..).for_each(|(to, at)| *to = block.get(at).copied().unwrap_or(0));
        Ok(())
    }

    fn fill(&mut self, BlockPart { block, part }: BlockPart, len: usize, fill: &mut dyn FnMut(&mut [u8])) {
        let mut bytes = vec![0; len];
        fill(&mut bytes);
        self.0[block.index()].iter_mut().skip(part as usize * len).zip(bytes).for_each(|(to, byte)| *to = byte);
    }
}

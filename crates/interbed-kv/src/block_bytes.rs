//! Interface to the memory of KV blocks, for those who move parts of blocks between memory and other places.

use crate::ids::BlockId;

/// One of the parts in which tiers below memory keep a block. All parts of all blocks have equally many bytes there. A
/// trunk block is one part. A tail block is cut into [`TailConfig::parts`](crate::TailConfig::parts) parts, and the
/// last one is filled up with zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockPart {
    /// The block.
    pub block: BlockId,
    /// The number of the part in the block, from 0 on.
    pub part: u32,
}

impl BlockPart {
    /// Returns the first part of `block`. For a trunk block, this is all of it.
    pub fn whole(block: BlockId) -> Self {
        Self { block, part: 0 }
    }
}

/// Gives access to the memory of KV blocks. The engine implements it for its device; tiers call it.
pub trait BlockBytes {
    /// Copies the bytes of `part` to `into`, which is as long as a part. Bytes of the part behind the end of its block
    /// are 0.
    ///
    /// # Errors
    /// Fails with the reason if the bytes cannot be had; the content of `into` must not be used then.
    fn read(&mut self, part: BlockPart, into: &mut [u8]) -> Result<(), String>;

    /// Fills `part`, which has `len` bytes, by calling `fill` with memory for it. What `fill` writes behind the end of
    /// the block is dropped.
    fn fill(&mut self, part: BlockPart, len: usize, fill: &mut dyn FnMut(&mut [u8]));
}

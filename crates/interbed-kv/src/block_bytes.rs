//! Interface of the memory of KV blocks, for those who move blocks between memory and other places.

use crate::ids::BlockId;

/// One of the parts in which tiers below memory keep a block. All parts of all blocks have equally many bytes there. A
/// block that holds the KV of all tokens is one part. A block of what layers keep besides (windows, states) is cut into
/// such parts, and the last one is filled up with zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockPart {
    /// The block.
    pub block: BlockId,
    /// The number of the part in the block, from 0 on.
    pub part: u32,
}

impl BlockPart {
    /// Returns the first part of `block`, which is all of it if the block holds the KV of all tokens.
    pub fn whole(block: BlockId) -> Self {
        Self { block, part: 0 }
    }
}

/// Gives access to the memory of KV blocks.
pub trait BlockBytes {
    /// Copies the bytes of a part of a block to `into`, which is as long as a part. What lies behind the end of the
    /// block is 0.
    ///
    /// # Errors
    /// Fails with the reason if the bytes cannot be had; the content of `into` must not be used then.
    fn read(&mut self, part: BlockPart, into: &mut [u8]) -> Result<(), String>;

    /// Fills a part, of `len` bytes, by calling `fill` with memory for it. What `fill` writes behind
    /// the end of the block is dropped.
    fn fill(&mut self, part: BlockPart, len: usize, fill: &mut dyn FnMut(&mut [u8]));
}

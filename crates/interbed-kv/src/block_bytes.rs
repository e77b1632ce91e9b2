//! Interface of the memory of KV blocks, for those who move blocks between memory and other places.

use crate::ids::BlockId;

/// Gives access to the memory of KV blocks.
pub trait BlockBytes {
    /// Copies all bytes of a block to `into`.
    ///
    /// # Errors
    /// Fails with the reason if the bytes cannot be had; the content of `into` must not be used then.
    fn read(&mut self, block: BlockId, into: &mut [u8]) -> Result<(), String>;

    /// Fills all bytes of a block by calling `fill` with the block's memory.
    fn fill(&mut self, block: BlockId, fill: &mut dyn FnMut(&mut [u8]));
}

//! The seam to the memory of KV blocks.

use strata_kv::BlockId;

/// The memory of KV blocks.
pub trait BlockBytes {
    /// Copies what a block holds, all of it.
    ///
    /// # Errors
    /// Why it cannot be had; what is in `into` then is not to be used.
    fn read(&mut self, block: BlockId, into: &mut [u8]) -> Result<(), String>;

    /// Has a block filled, all of it.
    fn fill(&mut self, block: BlockId, fill: &mut dyn FnMut(&mut [u8]));
}

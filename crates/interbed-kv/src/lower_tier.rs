//! Interface between the owner of KV blocks and the tiers below memory.

use crate::{
    ids::{BlockId, FetchId, TokenId},
    key::BlockKey,
};

/// Gives access to the memory of KV blocks.
pub trait BlockBytes {
    /// Copies all bytes of a block to `into`.
    ///
    /// # Errors
    /// Fails with the reason if the bytes cannot be had; the content of `into` must not be used then.
    fn read(&mut self, block: BlockId, into: &mut [u8]) -> Result<(), String>;

    /// Fills all bytes of a block, by calling `fill` with the block's memory.
    fn fill(&mut self, block: BlockId, fill: &mut dyn FnMut(&mut [u8]));
}

/// Describes a block that a fetch must fill, so that what was read can be checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Key of the block.
    pub key: BlockKey,
    /// Key of the block before it in its chain, or of the chain's root.
    pub parent: BlockKey,
    /// Tokens of the block.
    pub tokens: Box<[TokenId]>,
    /// Block of memory that the fetch fills.
    pub block: BlockId,
}

/// Reports a fetch that has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FetchEnded {
    /// Number of the fetch.
    pub id: FetchId,
    /// Number of blocks, counted from the first, that hold the KV that was asked for.
    pub filled: usize,
    /// Number of blocks that were asked for.
    pub wanted: usize,
    /// Bytes that the fetch read.
    pub bytes: u64,
    /// Seconds from the beginning of the fetch to its end.
    pub seconds: f64,
}

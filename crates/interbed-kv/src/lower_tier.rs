//! What the owner of KV blocks and the tiers below memory say to each other.

use crate::{
    ids::{BlockId, FetchId, TokenId},
    key::BlockKey,
};

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

/// What a fetched block must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub key: BlockKey,
    /// What it continues.
    pub parent: BlockKey,
    /// Its tokens.
    pub tokens: Box<[TokenId]>,
    /// The block to fill.
    pub block: BlockId,
}

/// A fetch that has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FetchEnded {
    /// Which one.
    pub id: FetchId,
    /// How many of the first blocks hold what they should.
    pub filled: usize,
    /// How many were wanted.
    pub wanted: usize,
    /// Bytes that were read.
    pub bytes: u64,
    /// Seconds from its beginning.
    pub seconds: f64,
}

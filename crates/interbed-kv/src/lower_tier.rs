//! What a tier below memory is asked to fetch, and its report.

use crate::{
    ids::{BlockId, FetchId, TokenId},
    key::BlockKey,
};

/// A block that a fetch must fill, with what a reader needs to check what was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The key of the block.
    pub key: BlockKey,
    /// The key of the block before it in its chain, or of the chain's root.
    pub parent: BlockKey,
    /// The tokens of the block.
    pub tokens: Box<[TokenId]>,
    /// The block of memory that the fetch fills.
    pub block: BlockId,
}

/// The report of a fetch that has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FetchEnded {
    /// The id of the fetch.
    pub id: FetchId,
    /// Number of blocks, counted from the first, that hold the KV that was asked for.
    pub filled: usize,
    /// Number of blocks that were asked for.
    pub wanted: usize,
    /// The number of bytes that the fetch read.
    pub bytes: u64,
    /// The seconds from the beginning of the fetch to its end.
    pub seconds: f64,
}

//! Defines ids and token numbers. Ids have distinct types, so that one cannot be mistaken for another.

use std::fmt;

/// The most tokens that a block may hold.
pub const BLOCK_SIZE_MAX: usize = 256;

/// The most blocks that a pool may have. With 16 tokens per block, they hold a billion tokens.
pub const BLOCKS_MAX: usize = 1 << 26;

/// A token of the model's vocabulary.
pub type TokenId = u32;

/// A physical block, which is a place in memory for the KV of a fixed number of tokens, or for a state. The ids of
/// trunk blocks are indices below [`crate::KvConfig::num_blocks`]; those of tail blocks follow, as
/// [`crate::BlockManager::tail_groups`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

impl BlockId {
    /// Returns the block's index in arrays that have one entry for each block.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}", self.0)
    }
}

/// The right to keep one part of a block in the swap pool. Its number is an index below
/// [`crate::KvConfig::num_swap_blocks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwapSlot(pub u32);

impl SwapSlot {
    /// Returns the slot's index in arrays that have one entry for each slot.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for SwapSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "swap slot {}", self.0)
    }
}

/// The id of one swap of a block manager, whether out or in. A manager never uses an id twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwapId(pub u64);

impl fmt::Display for SwapId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "swap {}", self.0)
    }
}

/// The id of one fetch of a block manager, which fills blocks from a lower tier. A manager never uses an id twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchId(pub u64);

impl fmt::Display for FetchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fetch {}", self.0)
    }
}

/// The id of a sequence. The caller assigns the numbers; no two sequences may have the same number at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {}", self.0)
    }
}

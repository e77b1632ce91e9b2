//! The configuration of a block manager.

use thiserror::Error;

use crate::{
    eviction::EvictionKind,
    ids::{BLOCK_SIZE_MAX, BLOCKS_MAX},
};

/// The size and the behaviour of a block manager.
#[derive(Debug, Clone, PartialEq)]
pub struct KvConfig {
    /// The most [units](crate#terms) of memory, and the most trunk blocks: 1 to [`BLOCKS_MAX`].
    /// [`crate::BlockManager::set_usable`] may limit the pool to fewer units.
    pub num_blocks: usize,
    /// The number of tokens in a trunk block and in a tail block of a window: a power of two from 1 to
    /// [`BLOCK_SIZE_MAX`].
    pub block_size: usize,
    /// Whether sequences share the KV of equal prefixes. If false, the manager only allocates blocks.
    pub prefix_caching: bool,
    /// The share of the usable units, in [0, 1), that stays available when a sequence is admitted, so that running
    /// sequences can grow.
    pub watermark: f64,
    /// The number of slots in the swap pool, each for one part, up to [`BLOCKS_MAX`]; 0 turns swapping off.
    pub num_swap_blocks: usize,
    /// The seed of the chain hash. It must be random per process, so that nobody can prepare collisions in advance.
    pub seed: u64,
    /// The policy that chooses which cached trunk blocks are evicted.
    pub eviction: EvictionKind,
    /// The tail groups: what those layers keep that do not need the KV of all tokens. Empty if all layers need it.
    pub tails: Vec<TailConfig>,
    /// The bytes of one trunk block. Only the ratio to [`TailConfig::block_bytes`] counts. 0 if no layer needs the KV
    /// of all tokens; trunk blocks then take no memory, and only number the contents.
    pub block_bytes: usize,
    /// The most tokens of one sequence that a pass computes, 1 or more. A sequence's window has room for so many tokens
    /// besides those that the next token sees.
    pub pass_tokens: usize,
}

/// A tail group: layers that keep the same kind of tail of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailConfig {
    /// What the layers keep.
    pub keeps: Keeps,
    /// The bytes of one block of this tail group, 1 or more, in the measure of [`KvConfig::block_bytes`].
    pub block_bytes: usize,
    /// The number of [parts](crate::BlockPart) into which tiers below memory divide a block of this group, 1 or more.
    pub parts: u32,
}

/// What layers keep of a sequence so that the next token can be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// The KV of the last tokens. A tail block holds [`KvConfig::block_size`] tokens.
    Window {
        /// The number of tokens that a token sees, itself included: 1 or more.
        tokens: usize,
    },
    /// A state of fixed size, which stands for all tokens up to one position. A tail block holds one state.
    State,
}

impl Keeps {
    /// Returns how many tail blocks of this kind a sequence needs to go on behind its first `num_blocks` blocks.
    pub(crate) fn tail_blocks(self, num_blocks: usize, block_size: usize) -> usize {
        match self {
            Self::Window { tokens } => num_blocks.min((tokens - 1).div_ceil(block_size)),
            Self::State => num_blocks.min(1),
        }
    }
}

impl Default for KvConfig {
    fn default() -> Self {
        Self {
            num_blocks: 1024,
            block_size: 16,
            prefix_caching: true,
            watermark: 0.01,
            num_swap_blocks: 0,
            seed: 0,
            eviction: EvictionKind::default(),
            tails: Vec::new(),
            block_bytes: 1,
            pass_tokens: 512,
        }
    }
}

impl KvConfig {
    /// Checks that a block manager can be built from this configuration.
    ///
    /// # Errors
    /// Fails with the first invalid field:
    /// - [`KvConfigError::NumBlocks`], [`KvConfigError::NumSwapBlocks`] or [`KvConfigError::BlockSize`] if that number
    ///   is out of its range;
    /// - [`KvConfigError::Watermark`] if the watermark is below 0, 1 or more, or no number;
    /// - [`KvConfigError::Empty`] if a block, a window, a part count or a pass is empty.
    pub fn check(&self) -> Result<(), KvConfigError> {
        if self.num_blocks == 0 || self.num_blocks > BLOCKS_MAX {
            return Err(KvConfigError::NumBlocks { got: self.num_blocks });
        }
        if self.num_swap_blocks > BLOCKS_MAX {
            return Err(KvConfigError::NumSwapBlocks { got: self.num_swap_blocks });
        }
        if !self.block_size.is_power_of_two() || self.block_size > BLOCK_SIZE_MAX {
            return Err(KvConfigError::BlockSize { got: self.block_size });
        }
        if !(0.0..1.0).contains(&self.watermark) {
            return Err(KvConfigError::Watermark { got: self.watermark });
        }
        let is_empty =
            |tail: &TailConfig| tail.block_bytes == 0 || tail.parts == 0 || tail.keeps == Keeps::Window { tokens: 0 };
        if self.tails.iter().any(is_empty) || self.pass_tokens == 0 || (self.tails.is_empty() && self.block_bytes == 0)
        {
            return Err(KvConfigError::Empty);
        }
        Ok(())
    }

    /// Returns the bytes of one unit: those of a trunk block, or of a block of the first tail group if trunk blocks
    /// take no memory.
    pub(crate) fn unit_bytes(&self) -> usize {
        match self.block_bytes {
            0 => self.tails.first().map_or(1, |tail| tail.block_bytes),
            bytes => bytes,
        }
    }

    /// Returns how many units stay available when a sequence is admitted, if `usable` units may be used.
    pub(crate) fn watermark_blocks(&self, usable: usize) -> usize {
        (self.watermark * usable as f64) as usize
    }
}

/// The first invalid field of a configuration.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum KvConfigError {
    /// [`KvConfig::num_blocks`] is 0, or above [`BLOCKS_MAX`].
    #[error("the KV pool would have {got} blocks, but it must have 1 to {BLOCKS_MAX}; change the memory given to KV")]
    NumBlocks {
        /// The configured number.
        got: usize,
    },
    /// [`KvConfig::num_swap_blocks`] is above [`BLOCKS_MAX`].
    #[error("the swap pool would have {got} blocks, but it may have {BLOCKS_MAX} at most; give swap less room")]
    NumSwapBlocks {
        /// The configured number.
        got: usize,
    },
    /// [`KvConfig::block_size`] is not a power of two, or above [`BLOCK_SIZE_MAX`].
    #[error("the block size is {got} tokens, but it must be a power of two from 1 to {BLOCK_SIZE_MAX}; 16 is usual")]
    BlockSize {
        /// The configured size.
        got: usize,
    },
    /// [`KvConfig::watermark`] is not at least 0 and below 1.
    #[error("the watermark is {got}, but it must be at least 0 and below 1; 0.01 is usual")]
    Watermark {
        /// The configured share.
        got: f64,
    },
    /// A block, a window or a pass would hold nothing, or a tail block would have no part.
    #[error("a group of layers keeps nothing, or a pass computes nothing; this is a bug, please report it")]
    Empty,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(num_blocks: usize, block_size: usize, watermark: f64) -> bool {
        KvConfig { num_blocks, block_size, watermark, ..KvConfig::default() }.check().is_ok()
    }

    #[test]
    fn limits_are_inclusive_where_they_say_so() {
        for block_size in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
            assert!(check(1, block_size, 0.0));
        }
        for block_size in [0, 3, 24, 255, 257, 512, usize::MAX] {
            assert!(!check(1, block_size, 0.0), "{block_size}");
        }
        assert!(check(BLOCKS_MAX, 1, 0.99));
        assert!(!check(0, 1, 0.0));
        assert!(!check(BLOCKS_MAX + 1, 1, 0.0));
        let swap = |num_swap_blocks| KvConfig { num_swap_blocks, ..KvConfig::default() }.check().is_ok();
        assert!(swap(BLOCKS_MAX) && !swap(BLOCKS_MAX + 1));
        for watermark in [1.0, -0.1, f64::NAN, f64::INFINITY] {
            assert!(!check(1, 1, watermark), "{watermark}");
        }
    }
}

//! Tells whether blocks can be allocated, and why not.

use thiserror::Error;

use crate::{ids::SequenceId, sequence_state::SequenceState};

/// The answer to whether a sequence can be given its blocks, or a group can be swapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocStatus {
    /// The blocks or slots can be given now.
    Ok,
    /// The blocks or slots cannot be given now, but can once other sequences have released some.
    Later,
    /// The sequence or group would not fit even in an empty pool of full size.
    Never {
        /// Number of blocks or slots that are needed.
        need: usize,
        /// Maximum number of blocks or slots that the pool can have.
        limit: usize,
    },
}

/// Reason why blocks could not be allocated or swapped. The manager is unchanged then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BlockError {
    /// The sequence would not fit even in an empty pool of full size.
    #[error("the sequence needs {need} KV blocks but the pool has {limit}; shorten it or give KV more memory")]
    Never {
        /// Number of blocks that are needed in all.
        need: usize,
        /// Maximum number of blocks that the pool can have.
        limit: usize,
    },
    /// Other sequences hold the blocks. The caller may wait, or preempt one of them.
    #[error("{need} more KV blocks are needed but {available} are available; free a sequence first")]
    OutOfBlocks {
        /// Number of fresh blocks that are needed.
        need: usize,
        /// Number of blocks that are available.
        available: usize,
    },
    /// The swap pool has no room. The caller may drop the sequences and recompute them, or make the pool larger.
    #[error("{need} swap slots are needed but {available} of {limit} are free; recompute, or give swap more room")]
    OutOfSwap {
        /// Number of slots that the swap needs.
        need: usize,
        /// Number of slots that are free.
        available: usize,
        /// Number of slots that the pool has in all.
        limit: usize,
    },
    /// The sequence was allocated before and not freed.
    #[error("{0} holds KV blocks already; free it first")]
    AlreadyHeld(SequenceId),
    /// The sequence was never allocated, or was freed.
    #[error("{0} holds no KV blocks; allocate it first")]
    NotHeld(SequenceId),
    /// The sequence is swapped out or in flight but must be resident, or it is resident but must be swapped out.
    #[error("{id} is {state:?}, which does not allow this; finish its swap, or swap it in or out first")]
    WrongState {
        /// The sequence that the call named.
        id: SequenceId,
        /// The state that the sequence is in.
        state: SequenceState,
    },
    /// Part of the sequence's KV lies in a tier below memory, so that the sequence can be neither forked nor swapped.
    #[error("part of the KV of {0} is below memory; it cannot be forked or swapped")]
    BelowMemory(SequenceId),
    /// Tokens that have not been computed cannot be shared, because both sequences would write them.
    #[error("{id} has KV for {computed} of its {tokens} tokens; compute and commit the others before it is forked")]
    Uncomputed {
        /// The sequence that the call named.
        id: SequenceId,
        /// Number of tokens that were computed and committed.
        computed: usize,
        /// Number of tokens that have a place, whether computed or not.
        tokens: usize,
    },
}

//! Whether blocks can be given, and why not.

use thiserror::Error;

use crate::{ids::SequenceId, sequence_state::SequenceState};

/// Whether a sequence can be given its blocks, or a group be swapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocStatus {
    /// Now.
    Ok,
    /// Not now; when others have let go of blocks or slots.
    Later,
    /// Not even in an empty pool that has all its blocks.
    Never {
        /// Blocks or slots needed.
        need: usize,
        /// Blocks or slots of the pool, at the most.
        limit: usize,
    },
}

/// Why blocks were not given. Nothing has changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BlockError {
    /// [`AllocStatus::Never`].
    #[error("the sequence needs {need} KV blocks but the pool has {limit}; shorten it or give KV more memory")]
    Never {
        /// Blocks needed in all.
        need: usize,
        /// Blocks of the pool, at the most.
        limit: usize,
    },
    /// Others hold the blocks; wait, or preempt one of them.
    #[error("{need} more KV blocks are needed but {available} are available; free a sequence first")]
    OutOfBlocks {
        /// Fresh blocks needed.
        need: usize,
        /// Blocks that could be given.
        available: usize,
    },
    /// The swap pool has no room; drop the sequences and recompute them, or make the pool larger.
    #[error("{need} swap slots are needed but {available} of {limit} are free; recompute, or give swap more room")]
    OutOfSwap {
        /// Slots needed.
        need: usize,
        /// Slots that are free.
        available: usize,
        /// Slots of the pool.
        limit: usize,
    },
    /// Allocated twice.
    #[error("{0} holds KV blocks already; free it first")]
    AlreadyHeld(SequenceId),
    /// Never allocated, or freed.
    #[error("{0} holds no KV blocks; allocate it first")]
    NotHeld(SequenceId),
    /// Swapped out, or on its way, where it must be resident; or resident where it must be swapped out.
    #[error("{id} is {state:?}, which does not allow this; finish its swap, or swap it in or out first")]
    WrongState {
        /// The sequence.
        id: SequenceId,
        /// What it is.
        state: SequenceState,
    },
    /// What has not been computed cannot be shared: both would write it.
    #[error("{id} has KV for {computed} of its {tokens} tokens; compute and commit the others before it is forked")]
    Uncomputed {
        /// The sequence.
        id: SequenceId,
        /// Tokens that were computed and committed.
        computed: usize,
        /// Tokens that have a slot.
        tokens: usize,
    },
}

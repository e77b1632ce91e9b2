//! Tells whether blocks can be allocated, and why not.

use thiserror::Error;

use crate::{ids::SequenceId, sequence_state::SequenceState};

/// The answer to whether a sequence can get its blocks, or a swap group its blocks or slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocStatus {
    /// The manager can give the blocks or slots now.
    Ok,
    /// The manager cannot give the blocks or slots now, but can once other sequences have released some.
    Later,
    /// The sequence or swap group would not fit even into an empty pool of full size, or a sequence of the swap group
    /// is not in the state that the swap begins from.
    Never {
        /// Number of units or, for a swap out, of slots that are needed.
        need: usize,
        /// Most units or slots that the pool can have.
        limit: usize,
    },
}

/// Reason why the manager could not give blocks or slots. The manager is unchanged then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BlockError {
    /// The sequence would not fit even into an empty pool of full size.
    #[error("the sequence needs {need} KV blocks but the pool has {limit}; shorten it or give KV more memory")]
    Never {
        /// Number of units that the sequence needs in all.
        need: usize,
        /// Most units that the pool can have, [`KvConfig::num_blocks`](crate::KvConfig::num_blocks).
        limit: usize,
    },
    /// Too few blocks are available. If other sequences hold them, the caller may wait, or preempt one of them. A fetch
    /// or a move below memory fails with this error too if the sequence itself has fewer suitable blocks than were
    /// named.
    #[error("{need} more KV blocks are needed but {available} are available; free a sequence first")]
    OutOfBlocks {
        /// Number of units that must be taken, or of blocks that were named.
        need: usize,
        /// Number of units that are available, or of blocks that are suitable.
        available: usize,
    },
    /// The swap pool has too few free slots. The caller may drop the sequences and recompute them, or make the pool
    /// larger.
    #[error("{need} swap slots are needed but {available} of {limit} are free; recompute, or give swap more room")]
    OutOfSwap {
        /// Number of slots that the swap needs.
        need: usize,
        /// Number of slots that are free.
        available: usize,
        /// Number of slots that the swap pool has in all.
        limit: usize,
    },
    /// The sequence has begun before and was not freed.
    #[error("{0} holds KV blocks already; free it first")]
    AlreadyHeld(SequenceId),
    /// The sequence has never begun, or was freed.
    #[error("{0} holds no KV blocks; allocate it first")]
    NotHeld(SequenceId),
    /// The sequence is not in the state that the call requires: it is swapped out or in flight but must be resident, or
    /// it is not swapped out but must be.
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
    /// The sequence cannot be forked, because it has tokens that have not been computed, and both sequences would write
    /// their KV.
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

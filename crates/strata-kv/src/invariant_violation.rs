//! The ways in which a block manager can be wrong (K14).

use thiserror::Error;

use crate::{BlockId, SequenceId, SwapId, SwapSlot};

/// The first broken invariant that was found. Always a bug of this crate, or of an eviction policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum InvariantViolation {
    /// A block must be exactly one of free, cached, used and withdrawn.
    #[error("{block} is free: {free}, cached: {cached}, used: {used}, withdrawn: {withdrawn}; exactly one must hold")]
    State {
        /// The block.
        block: BlockId,
        /// It is in the free list.
        free: bool,
        /// The eviction policy knows it.
        cached: bool,
        /// A table or a swap under way holds it.
        used: bool,
        /// It has no memory.
        withdrawn: bool,
    },
    /// Free and withdrawn blocks are not findable, cached ones are.
    #[error("{block} is held by nobody, but its being findable ({published}) does not go with that")]
    Published {
        /// The block.
        block: BlockId,
        /// It has a place in a chain.
        published: bool,
    },
    /// A block's reference count must be the number of tables and swaps under way that hold it.
    #[error("{block} has reference count {ref_count}, but {holders} tables and swaps hold it")]
    RefCount {
        /// The block.
        block: BlockId,
        /// What the block says.
        ref_count: u32,
        /// What tables and swaps say.
        holders: u32,
    },
    /// A slot's count of holders must be the number of sequences and swaps under way that hold it; free slots have none.
    #[error("{slot} counts {counted} holders, but {found} sequences and swaps hold it, and it is free: {free}")]
    Slot {
        /// The slot.
        slot: SwapSlot,
        /// What the pool says.
        counted: u32,
        /// What sequences and swaps say.
        found: u32,
        /// It is in the free list.
        free: bool,
    },
    /// What a swap copies into must not be findable before it has come.
    #[error("{block} is findable, but {swap} has yet to fill it")]
    FoundTooEarly {
        /// The block.
        block: BlockId,
        /// The swap.
        swap: SwapId,
    },
    /// A block's count of children must be the number of published blocks that name it as parent.
    #[error("{block} counts {counted} children, but {found} published blocks name it as their parent")]
    Children {
        /// The block.
        block: BlockId,
        /// What the block says.
        counted: u32,
        /// What the others say.
        found: u32,
    },
    /// The parent of a published block must be published.
    #[error("{block} continues {parent}, which has lost its content")]
    Orphan {
        /// The published block.
        block: BlockId,
        /// Its parent.
        parent: BlockId,
    },
    /// A published block's hash must be that of its parent's hash and its tokens.
    #[error("{block} is published under a hash that is not that of its tokens")]
    Hash {
        /// The block.
        block: BlockId,
    },
    /// A look-up of a published block's content must find this very block.
    #[error("a look-up of what {block} holds finds another block or none")]
    Lookup {
        /// The block.
        block: BlockId,
    },
    /// Lists and counters must hold exactly what they should.
    #[error("the {list} counts {counted}, but there are {found}")]
    Count {
        /// Which.
        list: &'static str,
        /// Its own count.
        counted: usize,
        /// What a walk finds.
        found: usize,
    },
    /// As many blocks must be there as may be used, or more if all are used.
    #[error("{present} blocks are there, {unused} of them unused, but {usable} may be used")]
    Usable {
        /// Blocks that are not withdrawn.
        present: usize,
        /// Those of them that are free or cached.
        unused: usize,
        /// How many there should be.
        usable: usize,
    },
    /// A sequence must have just enough blocks and slots for its state, its published ones a chain from its root, and those
    /// that it may write its own.
    #[error("{id}: {what}")]
    Sequence {
        /// The sequence.
        id: SequenceId,
        /// What is wrong with it.
        what: &'static str,
    },
}

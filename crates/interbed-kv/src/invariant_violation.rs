//! The ways in which a block manager can be wrong.

use thiserror::Error;

use crate::ids::{BlockId, SequenceId, SwapId, SwapSlot};

/// The first broken invariant that was found. A violation is always a bug of this crate or of an eviction policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum InvariantViolation {
    /// A trunk block must be exactly one of free, cached, used and withdrawn.
    #[error("{block} is free: {free}, cached: {cached}, used: {used}, withdrawn: {withdrawn}; exactly one must hold")]
    State {
        /// The block.
        block: BlockId,
        /// Whether the block is in the free list.
        free: bool,
        /// Whether the eviction policy counts the block as cached.
        cached: bool,
        /// Whether a table or a transfer holds the block.
        used: bool,
        /// Whether the block has no memory.
        withdrawn: bool,
    },
    /// The list of free blocks must hold each free block once, and no other.
    #[error("{block} is in the free list twice, or without being free")]
    FreeList {
        /// The block that is listed twice, or without being free.
        block: BlockId,
    },
    /// A block without holders may keep its content only while the content is findable.
    #[error("{block} is cached, but its content cannot be found")]
    Unfindable {
        /// The cached block.
        block: BlockId,
    },
    /// A block without holders may keep its content only while a hit can end at that content, or at one further down
    /// its chain.
    #[error("{block} is cached, but no hit can use it")]
    Useless {
        /// The cached block.
        block: BlockId,
    },
    /// A block's count of holders must be the number of tables and transfers that hold it.
    #[error("{block} counts {counted} holders, but {holders} tables and transfers hold it")]
    Holders {
        /// The block.
        block: BlockId,
        /// Number of holders that the block's content counts.
        counted: u32,
        /// Number of tables and transfers that hold the block.
        holders: u32,
    },
    /// Each location must hold exactly one content, which names that location. A content that is used or findable must
    /// be in a block.
    #[error("content {content} is to be in {block:?}, but places say otherwise, or its use or its slots do")]
    Location {
        /// The content's internal number.
        content: u32,
        /// The block that the content names.
        block: Option<BlockId>,
    },
    /// A slot's count of holders must be the number of sequences and swaps in flight that hold it. A free slot has
    /// none.
    #[error("{slot} counts {counted} holders, but {found} sequences and swaps hold it, and it is free: {free}")]
    Slot {
        /// The slot.
        slot: SwapSlot,
        /// Number of holders that the slot counts.
        counted: u32,
        /// Number of sequences and swaps that hold the slot.
        found: u32,
        /// Whether the slot is in the free list.
        free: bool,
    },
    /// The content of a block that a swap fills must not be findable before the swap has ended.
    #[error("{block} is findable, but {swap} has yet to fill it")]
    FoundTooEarly {
        /// The block that the swap fills.
        block: BlockId,
        /// The swap.
        swap: SwapId,
    },
    /// A content's count of children must be the number of findable contents that name it as parent.
    #[error("content {content} counts {counted} children, but {found} findable contents name it as their parent")]
    Children {
        /// The content's number.
        content: u32,
        /// Number of children that the content counts.
        counted: u32,
        /// Number of findable contents that name the content as parent.
        found: u32,
    },
    /// The parent of a findable content must be findable.
    #[error("what {block} holds continues content {parent}, which cannot be found")]
    Orphan {
        /// The block of the findable content.
        block: BlockId,
        /// Number of the content's parent.
        parent: u32,
    },
    /// A published block's hash must be the one computed from the parent's hash and the block's tokens.
    #[error("{block} is published under a hash that is not that of its tokens")]
    Hash {
        /// The block.
        block: BlockId,
    },
    /// A look-up of a published block's content must find that block itself.
    #[error("a look-up of what {block} holds finds another block or none")]
    Lookup {
        /// The block.
        block: BlockId,
    },
    /// Each list and counter must hold as many as a full walk finds.
    #[error("the {list} counts {counted}, but there are {found}")]
    Count {
        /// Name of the list or counter.
        list: &'static str,
        /// Number that the list or counter holds.
        counted: usize,
        /// Number that a full walk finds.
        found: usize,
    },
    /// As many blocks must have memory as may be used, or more as long as no block is free or cached. Where layers keep
    /// tails, the numbers are bytes, and fewer may be present.
    #[error("{present} blocks are there, {unused} of them unused, but {usable} may be used")]
    Usable {
        /// Number of blocks that have memory.
        present: usize,
        /// Number of these blocks that are free or cached; only cached bytes where layers keep tails.
        unused: usize,
        /// Number of blocks that may be used.
        usable: usize,
    },
    /// A sequence must have just the blocks and slots that its state requires. Its published blocks must form a chain
    /// from its root, and no other holder may hold a block that the sequence may write.
    #[error("{id}: {what}")]
    Sequence {
        /// The sequence.
        id: SequenceId,
        /// Description of what is wrong with the sequence.
        what: &'static str,
    },
}

pub(crate) fn count(list: &'static str, counted: usize, found: usize) -> Result<(), InvariantViolation> {
    if counted == found { Ok(()) } else { Err(InvariantViolation::Count { list, counted, found }) }
}

//! The tail blocks that one sequence holds.

use std::collections::VecDeque;

use crate::ids::{BlockId, SwapSlot};

/// What a sequence holds of all tail groups, and where hits of other sequences are likely to end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TailTables {
    /// One table for each tail group of [`KvConfig::tails`](crate::KvConfig::tails), in order.
    pub(crate) groups: Vec<TailTable>,
    /// The number of leading blocks of the prompt that a hit of an equal prompt can have: all full blocks without the
    /// last token.
    pub(crate) prompt: usize,
    /// The number of leading blocks that the sequence had in common with others when it began, or when its last fetch
    /// ended.
    pub(crate) branch: usize,
}

/// What a sequence holds of one tail group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TailTable {
    /// The tail group keeps a window.
    Window(WindowTable),
    /// The tail group keeps a state.
    State(StateTable),
}

/// The tail blocks of a window, in the order of the tokens.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct WindowTable {
    /// The number of blocks of the sequence before the first of `blocks`.
    pub(crate) first: usize,
    pub(crate) blocks: VecDeque<BlockId>,
    /// The slots of the parts of the blocks with computed tokens, block by block; empty while the sequence is resident.
    pub(crate) slots: Vec<SwapSlot>,
}

/// The block of a sequence's state, and the block to which the next pass writes the state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StateTable {
    /// The block with the state behind the computed tokens; `None` if nothing is computed, or if the state is not in
    /// memory.
    pub(crate) from: Option<BlockId>,
    /// The block to which the next pass writes; `None` if it writes to `from`, or is to get a block first.
    pub(crate) to: Option<BlockId>,
    /// The state behind the number of blocks that is given here, which no pass writes over. Only a sequence that is
    /// longer than memory has it, so that the state can be stored once the sequence has ended.
    pub(crate) kept: Option<(usize, BlockId)>,
    /// The slots of the parts of the state behind the computed tokens; empty while the sequence is resident, or as long
    /// as nothing is computed.
    pub(crate) slots: Vec<SwapSlot>,
}

impl WindowTable {
    /// Returns the number of blocks of the sequence up to the end of those that are held.
    pub(crate) fn end(&self) -> usize {
        self.first + self.blocks.len()
    }

    /// Returns the tail block for block number `index` of the sequence, which must be held.
    pub(crate) fn block(&self, index: usize) -> BlockId {
        self.blocks[index - self.first]
    }
}

impl TailTable {
    /// Goes through all tail blocks that the table holds. One that is held twice comes twice.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockId> {
        let (window, state) = match self {
            Self::Window(window) => (Some(window.blocks.iter().copied()), None),
            Self::State(StateTable { from, to, kept, .. }) => {
                (None, Some(from.iter().chain(to).chain(kept.iter().map(|(_, block)| block)).copied()))
            }
        };
        window.into_iter().flatten().chain(state.into_iter().flatten())
    }

    /// Goes through all tail blocks that the table holds, so that the caller can replace them.
    pub(crate) fn blocks_mut(&mut self) -> impl Iterator<Item = &mut BlockId> {
        let (window, state) = match self {
            Self::Window(window) => (Some(window.blocks.iter_mut()), None),
            Self::State(StateTable { from, to, kept, .. }) => {
                (None, Some(from.iter_mut().chain(to).chain(kept.iter_mut().map(|(_, block)| block))))
            }
        };
        window.into_iter().flatten().chain(state.into_iter().flatten())
    }
}

impl TailTable {
    /// Returns the tail blocks that hold what was computed, in a sequence whose first `num_blocks` blocks have computed
    /// tokens.
    pub(crate) fn computed(&self, num_blocks: usize) -> impl Iterator<Item = BlockId> {
        let count = match self {
            Self::Window(window) => num_blocks.saturating_sub(window.first),
            Self::State(state) => usize::from(state.from.is_some()),
        };
        self.blocks().take(count)
    }

    /// Returns the slots that the table holds.
    pub(crate) fn slots(&self) -> &[SwapSlot] {
        match self {
            Self::Window(window) => &window.slots,
            Self::State(state) => &state.slots,
        }
    }

    /// Replaces the slots, and returns those that were held.
    pub(crate) fn set_slots(&mut self, slots: Vec<SwapSlot>) -> Vec<SwapSlot> {
        match self {
            Self::Window(WindowTable { slots: held, .. }) | Self::State(StateTable { slots: held, .. }) => {
                std::mem::replace(held, slots)
            }
        }
    }

    /// Puts `blocks` into a table without blocks: the blocks of a window; or the block of a state, if something is
    /// computed, and then the block to which the next pass writes, if it is another one.
    pub(crate) fn put_blocks(&mut self, blocks: Vec<BlockId>) {
        match self {
            Self::Window(window) => window.blocks = blocks.into(),
            Self::State(state) => {
                let mut blocks = blocks.into_iter();
                state.from = (!state.slots.is_empty()).then(|| blocks.next()).flatten();
                state.to = blocks.next();
            }
        }
    }

    /// Takes all tail blocks out of the table, and returns them.
    pub(crate) fn take_blocks(&mut self) -> Vec<BlockId> {
        match self {
            Self::Window(window) => std::mem::take(&mut window.blocks).into(),
            Self::State(StateTable { from, to, kept, .. }) => {
                from.take().into_iter().chain(to.take()).chain(kept.take().map(|(_, block)| block)).collect()
            }
        }
    }
}

impl TailTables {
    /// Makes a copy for a forked sequence, which holds the same blocks but takes its own for what it computes next. All
    /// tokens of the sequence are computed, and are in its first `num_filled` blocks. The caller adds the new holders.
    pub(crate) fn fork(&self, num_filled: usize) -> Self {
        let mut fork = self.clone();
        for table in &mut fork.groups {
            match table {
                TailTable::Window(window) => window.blocks.truncate(num_filled.saturating_sub(window.first)),
                TailTable::State(state) => (state.to, state.kept) = (None, None),
            }
        }
        fork
    }
}

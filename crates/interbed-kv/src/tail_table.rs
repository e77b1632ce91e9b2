//! The blocks of one group of layers that a sequence holds, where these layers need the tail of a sequence.

use std::collections::VecDeque;

use crate::ids::{BlockId, SwapSlot};

/// What a sequence holds of all groups that need its tail, and where hits of others are likely to end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TailTables {
    /// One table for each group; empty if no group needs tails.
    pub(crate) groups: Vec<TailTable>,
    /// The number of blocks of the prompt that another sequence with this prompt finds.
    pub(crate) prompt: usize,
    /// The number of blocks that the sequence had in common with others when it began.
    pub(crate) branch: usize,
}

/// What a sequence holds of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TailTable {
    /// Blocks of a window.
    Window(WindowTable),
    /// Blocks of states.
    State(StateTable),
}

/// The blocks of a window, in the order of the tokens.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct WindowTable {
    /// The number of blocks of the sequence before those that are held.
    pub(crate) first: usize,
    pub(crate) blocks: VecDeque<BlockId>,
    /// The slots of the parts of the blocks with computed tokens, block by block; empty while resident.
    pub(crate) slots: Vec<SwapSlot>,
}

/// The place of a sequence's state, and the place where the next pass leaves the state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StateTable {
    /// The state behind the computed tokens; `None` as long as nothing is computed.
    pub(crate) from: Option<BlockId>,
    /// The block that the next pass writes; `None` if it writes to `from`.
    pub(crate) to: Option<BlockId>,
    /// The state behind the number of blocks that is given here, which no pass writes over. Only a sequence that is
    /// longer than memory has it, so that the state can be stored once the sequence has ended.
    pub(crate) kept: Option<(usize, BlockId)>,
    /// The slots of the parts of the state behind the computed tokens; empty while resident, or as long as nothing is
    /// computed.
    pub(crate) slots: Vec<SwapSlot>,
}

impl WindowTable {
    /// Returns the number of the block behind those that are held.
    pub(crate) fn end(&self) -> usize {
        self.first + self.blocks.len()
    }

    /// Returns block number `index` of the sequence, which must be held.
    pub(crate) fn block(&self, index: usize) -> BlockId {
        self.blocks[index - self.first]
    }
}

impl TailTable {
    /// Goes through all blocks that are held. One that is held twice comes twice.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockId> {
        let (window, state) = match self {
            Self::Window(window) => (Some(window.blocks.iter().copied()), None),
            Self::State(StateTable { from, to, kept, .. }) => {
                (None, Some(from.iter().chain(to).chain(kept.iter().map(|(_, block)| block)).copied()))
            }
        };
        window.into_iter().flatten().chain(state.into_iter().flatten())
    }

    /// Goes through all blocks that are held, to replace them.
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
    /// Returns the blocks that hold what was computed, where `num_blocks` blocks have computed tokens.
    pub(crate) fn computed(&self, num_blocks: usize) -> impl Iterator<Item = BlockId> {
        let count = match self {
            Self::Window(window) => num_blocks.saturating_sub(window.first),
            Self::State(state) => usize::from(state.from.is_some()),
        };
        self.blocks().take(count)
    }

    /// Returns the slots that are held.
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

    /// Puts `blocks` in the place of those that were taken away: the blocks of a window, or the block of a state and
    /// the block that the next pass writes.
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

    /// Takes all blocks away.
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
    /// Makes a copy for another sequence, which holds the same blocks but takes its own for what it computes next. All
    /// tokens are computed, and are in the first `num_filled` blocks of the sequence.
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

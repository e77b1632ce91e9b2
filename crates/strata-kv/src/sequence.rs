//! What a sequence holds.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use crate::{AllocError, ChainRoot, SequenceId, SwapId, SwapSlot, TokenId, block_table::BlockTable};

/// Where the KV of a sequence is (K12).
///
/// | state | leaves it by |
/// |---|---|
/// | resident | `swap_out` → leaving |
/// | leaving | `finish_swap`: done → swapped, failed → freed |
/// | swapped | `swap_in` → arriving |
/// | arriving | `finish_swap`: done → resident, failed → freed |
///
/// `allocate` and `fork` begin a sequence, resident; `free` ends it in any state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequenceState {
    /// In blocks: it may be computed, appended to and forked.
    Resident,
    /// In blocks, from which this swap copies; they are not reused before it has finished.
    Leaving(SwapId),
    /// In slots of the swap pool. It holds no block.
    Swapped,
    /// In slots, from which this swap copies into blocks that must not be read before it has finished.
    Arriving(SwapId),
}

/// Block table, swap slots, and how much of them others can find.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) state: SequenceState,
    pub(crate) table: BlockTable,
    /// Where the blocks with computed tokens are in the swap pool; empty while resident. [logical block]
    pub(crate) slots: Vec<SwapSlot>,
    /// Tokens behind those of `slots`, none of them computed; empty unless leaving or swapped.
    pub(crate) uncomputed: Vec<TokenId>,
    /// Leading tokens whose KV has been computed, as far as was reported.
    pub(crate) num_computed: usize,
    /// Leading blocks of the table that are published, and were found or published as this sequence's.
    pub(crate) num_published: usize,
    /// Leading blocks of the table whose states have their hashes, published or not.
    pub(crate) num_hashed: usize,
    /// False without prefix caching, and after a reset: what was computed before it must not be found after it.
    pub(crate) publishing: bool,
    /// Where the sequence's chain starts.
    pub(crate) root: ChainRoot,
}

impl Sequence {
    /// Leading blocks of the table with tokens that have been computed, the last perhaps in part.
    pub(crate) fn num_computed_blocks(&self, block_size: usize) -> usize {
        self.num_computed.div_ceil(block_size)
    }

    pub(crate) fn expect_resident(&self, id: SequenceId) -> Result<(), AllocError> {
        match self.state {
            SequenceState::Resident => Ok(()),
            state => Err(AllocError::WrongState { id, state }),
        }
    }
}

/// Sequences by id. Each is looked up in every step, hence the plain hash; nothing depends on the map's order.
pub(crate) type SequenceMap = HashMap<SequenceId, Sequence, BuildHasherDefault<IdHasher>>;

/// Spreads numbers that the engine gives out one after the other, and nobody else chooses.
#[derive(Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u64(&mut self, number: u64) {
        // The map takes the lowest bits for the place and the highest for a tag: both must depend on all of the number.
        let product = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

//! Describes KV in flight: copies between blocks, swaps between blocks and the slots one tier below, and fetches from
//! any tier below.
//!
//! **The rule of all transfers:** KV moves only to a place that was reserved before. A transfer that failed, or whose
//! outcome is unknown, is a miss, never data: its destination is not read, and the KV is computed again.
//!
//! The blocks and slots of a swap or a fetch belong to it until the caller has reported its end, whatever happens to
//! the sequences that it serves. Nobody reports the end of a copy: the order of the copies protects its blocks, as
//! [`BlockCopy`] says.
//!
//! | state of a swap or fetch | leaves it by |
//! |---|---|
//! | begun | the caller's report → completed, or failed |
//! | completed | – : the destination is a location of the content |
//! | failed swap | – : the destination is free again, and sequences that waited for it have lost their KV |
//! | failed fetch | – : a sequence that waited for it keeps its blocks, whose KV must be computed |
//!
//! Copies and swaps have separate types, so that code for one is never given the other.

use std::collections::{BTreeMap, HashSet};

use crate::{
    block_bytes::BlockPart,
    ids::{BlockId, FetchId, SequenceId, SwapId, SwapSlot},
};

/// A copy of one block's KV to another block of the trunk or of the same tail group, which is a copy on write or a move
/// by compaction.
///
/// The device carries out copies in the order of [`BlockManager::take_copies`], before anything else touches the
/// blocks. This order protects source and destination: a later holder of either block also writes to it later.
///
/// [`BlockManager::take_copies`]: crate::BlockManager::take_copies
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockCopy {
    /// The block that the KV is copied from.
    pub source: BlockId,
    /// The block that the KV is copied to.
    pub destination: BlockId,
}

/// A transfer of one part of a block between memory and a slot one tier below, in the direction of its [`Swap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockSwap {
    /// The part in memory.
    pub part: BlockPart,
    /// The slot below memory.
    pub slot: SwapSlot,
}

/// The direction of a swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapDirection {
    /// KV moves from blocks of memory to slots of the tier below.
    Out,
    /// KV moves from slots of the tier below to blocks of memory.
    In,
}

/// Transfers that begin and end together. The caller carries them out in any order. When all transfers are done, or
/// when one has failed and none is in flight any more, the caller reports the outcome to
/// [`BlockManager::finish_swap`](crate::BlockManager::finish_swap).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap {
    /// The number that identifies the swap in the report.
    pub id: SwapId,
    /// Whether KV leaves memory or comes back to it.
    pub direction: SwapDirection,
    /// The transfers of the swap. Each part and each slot is listed once, however many sequences share it.
    pub transfers: Vec<BlockSwap>,
    /// Number of parts that need no transfer into memory, because their content is still findable there. 0 for a swap
    /// out.
    pub num_spared: usize,
    /// Number of units that will be available when the swap ends, as far as is known when the swap begins: those that
    /// only the swap group holds. 0 for a swap into memory.
    pub num_freed: usize,
}

/// The way in which a swap ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapOutcome {
    /// All transfers of the swap have completed and were verified.
    Done,
    /// At least one transfer has failed, and the swap group's sequences have lost their KV.
    Failed,
}

/// A swap in flight. It holds the block and the slot of each of its transfers.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) direction: SwapDirection,
    pub(crate) group: Vec<SequenceId>,
    pub(crate) transfers: Vec<BlockSwap>,
}

/// Blocks of one sequence that are filled from a tier below memory. The caller fills them in any order, and reports to
/// [`BlockManager::finish_fetch`](crate::BlockManager::finish_fetch) how many of the first ones it could fill. For a
/// fetch [ahead](crate::BlockManager::begin_fetch_ahead), it calls
/// [`BlockManager::finish_fetch_ahead`](crate::BlockManager::finish_fetch_ahead).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetch {
    /// The number that identifies the fetch in the report.
    pub id: FetchId,
    /// The sequence whose blocks the fetch fills.
    pub sequence: SequenceId,
    /// The trunk blocks to fill, in the order of the sequence's tokens.
    pub blocks: Vec<BlockId>,
    /// The tail blocks to fill with what the sequence needs to go on behind `blocks`: one list for each tail group of
    /// [`KvConfig::tails`](crate::KvConfig::tails), with the blocks of a window in the order of the tokens, or the one
    /// block of a state. If the fetch brings fewer of `blocks`, it may need fewer blocks of a window, and fills the
    /// first ones. Empty if the model has no tail groups, and for a fetch ahead.
    pub tails: Vec<Vec<BlockId>>,
}

/// All transfers that have begun and not ended.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    /// Copies between blocks, in the order in which they must be made.
    copies: Vec<BlockCopy>,
    flights: BTreeMap<SwapId, Flight>,
    fetches: BTreeMap<FetchId, Fetch>,
    started: u64,
}

impl Transfers {
    /// Adds a copy between blocks, to be [taken](Self::take_copies) by the caller.
    pub(crate) fn copy(&mut self, source: BlockId, destination: BlockId) {
        self.copies.push(BlockCopy { source, destination });
    }

    /// Replaces `copies` by the copies that were added since the last call, in the order in which they must be made.
    pub(crate) fn take_copies(&mut self, copies: &mut Vec<BlockCopy>) {
        copies.clear();
        std::mem::swap(copies, &mut self.copies);
    }

    /// Returns whether copies are still to be [taken](Self::take_copies).
    pub(crate) fn has_copies(&self) -> bool {
        !self.copies.is_empty()
    }

    /// Returns the id of the swap that begins next.
    pub(crate) fn next_id(&self) -> SwapId {
        SwapId(self.started)
    }

    /// Begins the transfers of `swap` for the sequences of `group`. The caller has reserved their blocks and slots and
    /// holds them for the swap.
    pub(crate) fn begin(&mut self, group: Vec<SequenceId>, swap: Swap) -> Swap {
        self.started += 1;
        self.flights.insert(swap.id, Flight { direction: swap.direction, group, transfers: swap.transfers.clone() });
        swap
    }

    /// Ends the transfers of a swap, completed or failed; the caller must release their blocks and slots. Returns
    /// `None` for a swap that is not in flight.
    pub(crate) fn end(&mut self, id: SwapId) -> Option<Flight> {
        self.flights.remove(&id)
    }

    pub(crate) fn flight(&self, id: SwapId) -> Option<&Flight> {
        self.flights.get(&id)
    }

    pub(crate) fn flights(&self) -> impl Iterator<Item = (SwapId, &Flight)> {
        self.flights.iter().map(|(&id, flight)| (id, flight))
    }

    /// Begins a fetch that fills `blocks` and `tails` of `sequence`. The caller holds the blocks for the fetch.
    pub(crate) fn begin_fetch(
        &mut self,
        sequence: SequenceId,
        blocks: Vec<BlockId>,
        tails: Vec<Vec<BlockId>>,
    ) -> Fetch {
        let fetch = Fetch { id: FetchId(self.started), sequence, blocks, tails };
        self.started += 1;
        self.fetches.insert(fetch.id, fetch.clone());
        fetch
    }

    /// Ends a fetch. The caller must release its blocks. Returns `None` if the fetch is not in flight.
    pub(crate) fn end_fetch(&mut self, id: FetchId) -> Option<Fetch> {
        self.fetches.remove(&id)
    }

    /// Returns the sequence of a fetch in flight; `None` if the fetch is not in flight.
    pub(crate) fn fetch(&self, id: FetchId) -> Option<SequenceId> {
        self.fetches.get(&id).map(|fetch| fetch.sequence)
    }

    /// Lists the trunk blocks and tail blocks that fetches in flight fill.
    pub(crate) fn fetched(&self) -> impl Iterator<Item = BlockId> {
        self.fetches.values().flat_map(|fetch| fetch.blocks.iter().chain(fetch.tails.iter().flatten())).copied()
    }

    /// Returns the blocks that swaps and fetches in flight read or write.
    pub(crate) fn pinned(&self) -> HashSet<BlockId> {
        let swapped = self.flights.values().flat_map(|flight| &flight.transfers).map(|transfer| transfer.part.block);
        swapped.chain(self.fetched()).collect()
    }
}

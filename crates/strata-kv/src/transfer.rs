//! KV on its way from a place to another: copies between blocks, and swaps between blocks and the slots one tier below.
//!
//! **The rule of all transfers:** nothing moves without a place to go. The destination is reserved before a transfer
//! begins, and source and destination belong to the transfer until it has ended, whatever becomes of the sequences that
//! wanted it. A transfer that failed, or of which nobody can tell, is a miss, never data: what its destination holds is
//! not read, and the KV is computed again.
//!
//! | state | leaves it by |
//! |---|---|
//! | begun | the driver's report → completed, or failed |
//! | completed | – : the destination is a location of the content |
//! | failed | – : the destination is free again, and who waited for it has lost its KV |
//!
//! The two kinds are types of their own: whoever carries out one is never handed the other.

use std::collections::{BTreeMap, HashSet};

use crate::ids::{BlockId, SequenceId, SwapId, SwapSlot};

/// One block's worth of KV on its way to another block: a copy on write, or a move that compacts.
///
/// The device carries copies out in the order of [`BlockManager::take_copies`], before anything else touches a block.
/// That order holds source and destination: whoever is given one of them later writes later.
///
/// [`BlockManager::take_copies`]: crate::BlockManager::take_copies
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockCopy {
    /// Where the KV is.
    pub source: BlockId,
    /// Where it is to be as well.
    pub destination: BlockId,
}

/// One block's worth of KV on its way between memory and the tier below, in the direction of its [`Swap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockSwap {
    /// Its place in memory.
    pub block: BlockId,
    /// Its place one tier below.
    pub slot: SwapSlot,
}

/// Which way KV goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapDirection {
    /// From blocks to slots.
    Out,
    /// From slots to blocks.
    In,
}

/// Transfers that begin and end together. The driver carries them out in any order; when all are done, or one has
/// failed and nothing is in flight any more, it reports so to
/// [`BlockManager::finish_swap`](crate::BlockManager::finish_swap).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap {
    /// Names it in the report.
    pub id: SwapId,
    /// Which way.
    pub direction: SwapDirection,
    /// Each block and each slot once, however many sequences share it.
    pub transfers: Vec<BlockSwap>,
    /// Blocks that need no transfer in, since their content can still be found in memory.
    pub num_spared: usize,
    /// Blocks that others can have when it ends, as far as can be told when it begins: those that nobody outside the
    /// group holds. None come free on the way in.
    pub num_freed: usize,
}

/// How a swap ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapOutcome {
    /// All its transfers have completed, verified.
    Done,
    /// Some have failed. The group has lost its KV.
    Failed,
}

/// A swap in flight. It holds the block and the slot of each of its transfers.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) direction: SwapDirection,
    pub(crate) group: Vec<SequenceId>,
    pub(crate) transfers: Vec<BlockSwap>,
}

/// All transfers that have begun and not ended.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    /// Between blocks, in order.
    copies: Vec<BlockCopy>,
    flights: BTreeMap<SwapId, Flight>,
    started: u64,
}

impl Transfers {
    /// Begins a transfer between blocks.
    pub(crate) fn copy(&mut self, source: BlockId, destination: BlockId) {
        self.copies.push(BlockCopy { source, destination });
    }

    /// Hands over the transfers between blocks: they complete in this order.
    pub(crate) fn take_copies(&mut self, copies: &mut Vec<BlockCopy>) {
        copies.clear();
        std::mem::swap(copies, &mut self.copies);
    }

    /// Names the swap that is begun next.
    pub(crate) fn next_id(&self) -> SwapId {
        SwapId(self.started)
    }

    /// Begins the transfers of `swap`, whose places its caller has reserved and holds for it.
    pub(crate) fn begin(&mut self, group: Vec<SequenceId>, swap: Swap) -> Swap {
        self.started += 1;
        self.flights.insert(swap.id, Flight { direction: swap.direction, group, transfers: swap.transfers.clone() });
        swap
    }

    /// Ends the transfers of a swap, either way: its places are the caller's to release. None for one that is not under
    /// way.
    pub(crate) fn end(&mut self, id: SwapId) -> Option<Flight> {
        self.flights.remove(&id)
    }

    pub(crate) fn flight(&self, id: SwapId) -> Option<&Flight> {
        self.flights.get(&id)
    }

    pub(crate) fn flights(&self) -> impl Iterator<Item = (SwapId, &Flight)> {
        self.flights.iter().map(|(&id, flight)| (id, flight))
    }

    /// Blocks that swaps in flight read or write.
    pub(crate) fn pinned(&self) -> HashSet<BlockId> {
        self.flights.values().flat_map(|flight| &flight.transfers).map(|transfer| transfer.block).collect()
    }
}

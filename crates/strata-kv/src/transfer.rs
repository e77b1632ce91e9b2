//! KV on its way from a place to another.

use std::collections::{BTreeMap, HashSet};

use crate::ids::{BlockId, SequenceId, SwapId, SwapSlot};

/// Where one block's worth of KV can lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvPlace {
    /// In memory.
    Block(BlockId),
    /// One tier below.
    Slot(SwapSlot),
}

/// One block's worth of KV on its way: a copy on write, a move that compacts, a swap out or in.
///
/// **The rule of all transfers:** nothing moves without a place to go. The destination is reserved before a transfer begins,
/// and source and destination belong to the transfer until it has ended, whatever becomes of the sequences that wanted it.
/// A transfer that failed, or of which nobody can tell, is a miss, never data: what its destination holds is not read, and
/// the KV is computed again.
///
/// | state | leaves it by |
/// |---|---|
/// | begun | the driver's report → completed, or failed |
/// | completed | – : the destination is a location of the content |
/// | failed | – : the destination is free again, and who waited for it has lost its KV |
///
/// Transfers between blocks are carried out by the device in the order of [`BlockManager::take_copies`], before anything
/// else touches a block. That order holds source and destination: whoever is given one of them later writes later.
///
/// [`BlockManager::take_copies`]: crate::BlockManager::take_copies
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// Where the KV is.
    pub source: KvPlace,
    /// Where it is to be as well.
    pub destination: KvPlace,
}

impl Transfer {
    /// From a block to another.
    pub fn copy(source: BlockId, destination: BlockId) -> Self {
        Self { source: KvPlace::Block(source), destination: KvPlace::Block(destination) }
    }

    /// Between a block and a slot, this way.
    pub fn swap(direction: SwapDirection, block: BlockId, slot: SwapSlot) -> Self {
        let (block, slot) = (KvPlace::Block(block), KvPlace::Slot(slot));
        match direction {
            SwapDirection::Out => Self { source: block, destination: slot },
            SwapDirection::In => Self { source: slot, destination: block },
        }
    }

    /// Source and destination of a transfer between blocks, as those of [`take_copies`] are; none of any other.
    ///
    /// [`take_copies`]: crate::BlockManager::take_copies
    pub fn blocks(self) -> Option<(BlockId, BlockId)> {
        match (self.source, self.destination) {
            (KvPlace::Block(source), KvPlace::Block(destination)) => Some((source, destination)),
            _ => None,
        }
    }

    /// The block and the slot of a transfer between memory and the tier below, as those of a [`Swap`] are, whichever way it
    /// goes; none of any other.
    pub fn block_and_slot(self) -> Option<(BlockId, SwapSlot)> {
        match (self.source, self.destination) {
            (KvPlace::Block(block), KvPlace::Slot(slot)) | (KvPlace::Slot(slot), KvPlace::Block(block)) => {
                Some((block, slot))
            }
            _ => None,
        }
    }
}

/// Which way KV goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapDirection {
    /// From blocks to slots.
    Out,
    /// From slots to blocks.
    In,
}

/// Transfers that begin and end together. The driver carries them out in any order; when all are done, or one has failed and
/// nothing is under way any more, it reports so to [`BlockManager::finish_swap`](crate::BlockManager::finish_swap).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap {
    /// Names it in the report.
    pub id: SwapId,
    /// Which way.
    pub direction: SwapDirection,
    /// Each block and each slot once, however many sequences share it.
    pub transfers: Vec<Transfer>,
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

/// A swap under way. It holds the block and the slot of each of its transfers.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) direction: SwapDirection,
    pub(crate) group: Vec<SequenceId>,
    pub(crate) transfers: Vec<Transfer>,
}

/// All transfers that have begun and not ended.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    /// Between blocks, in order.
    copies: Vec<Transfer>,
    flights: BTreeMap<SwapId, Flight>,
    started: u64,
}

impl Transfers {
    /// Begins a transfer between blocks.
    pub(crate) fn copy(&mut self, source: BlockId, destination: BlockId) {
        self.copies.push(Transfer::copy(source, destination));
    }

    /// Hands over the transfers between blocks: they complete in this order.
    pub(crate) fn take_copies(&mut self, copies: &mut Vec<Transfer>) {
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

    /// Ends the transfers of a swap, either way: its places are the caller's to release. None for one that is not under way.
    pub(crate) fn end(&mut self, id: SwapId) -> Option<Flight> {
        self.flights.remove(&id)
    }

    pub(crate) fn flight(&self, id: SwapId) -> Option<&Flight> {
        self.flights.get(&id)
    }

    pub(crate) fn flights(&self) -> impl Iterator<Item = (SwapId, &Flight)> {
        self.flights.iter().map(|(&id, flight)| (id, flight))
    }

    /// Blocks that swaps under way read or write.
    pub(crate) fn pinned(&self) -> HashSet<BlockId> {
        let transfers = self.flights.values().flat_map(|flight| &flight.transfers);
        transfers.filter_map(|transfer| transfer.block_and_slot()).map(|(block, _)| block).collect()
    }
}

//! Spares swaps the writing of blocks that the store has. The slot remembers where the store has the block's content.
//! The segment with this content is held until the slot is used for something else or is free.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use interbed_kv::{
    BlockBytes, BlockId, BlockLabel, BlockSwap, KvTierConfig, RecordPlace, SlotThreads, SlotTier, SwapEnded, SwapId,
    SwapSlot, SwapTook, TierPlace, TokenId,
};

use super::{DiskTier, Purpose};
use crate::jobs::Expected;
use crate::record::unpack;
use crate::shape::RecordShape;

/// The inverse of the share of the store's segments that may be held for slots; the other segments can still be
/// emptied.
const SEGMENTS_SHARE: u32 = 4;

/// The inverse of the share of the memory for buffers that kept slots may take. They may take the room for
/// [`SLOTS_MIN`] slots if that is more.
const MEMORY_SHARE: usize = 32;
const SLOTS_MIN: usize = 64;

/// Place in the store of a slot's content, and what that content must be.
struct KeptSlot {
    record: RecordPlace,
    expected: Expected,
}

/// A swap whose blocks are being read.
struct Reading {
    id: SwapId,
    records_left: usize,
    began: Instant,
    bytes: u64,
    failed: Option<String>,
}

/// Slots whose contents the store has, and swaps that read such contents.
pub(super) struct KeptSlots {
    /// Maximum number of slots that contents are kept for.
    most: usize,
    kept: HashMap<SwapSlot, KeptSlot>,
    /// Number of slots that hold each segment. [segment]
    pub(super) held: HashMap<u32, usize>,
    reading: Vec<Reading>,
    ended: VecDeque<SwapEnded>,
}

impl KeptSlots {
    /// Creates room for the slots of a store whose buffers take about `wanted` bytes.
    pub(super) fn new(shape: &RecordShape, wanted: usize) -> Self {
        let most = Self::most(shape, wanted);
        Self { most, kept: HashMap::new(), held: HashMap::new(), reading: Vec::new(), ended: VecDeque::new() }
    }

    /// Returns the number of bytes of memory that the kept slots take at most.
    pub(super) fn bytes(shape: &RecordShape, wanted: usize) -> usize {
        Self::most(shape, wanted) * Self::slot_bytes(shape)
    }

    fn most(shape: &RecordShape, wanted: usize) -> usize {
        (wanted / MEMORY_SHARE / Self::slot_bytes(shape)).max(SLOTS_MIN)
    }

    /// Returns the number of bytes of a slot's entry, in a hash map that doubles when it grows, and of its tokens.
    fn slot_bytes(shape: &RecordShape) -> usize {
        3 * size_of::<(SwapSlot, KeptSlot)>() + shape.block_size() * size_of::<TokenId>() + 16
    }

    /// Returns whether nothing is being read.
    pub(super) fn is_settled(&self) -> bool {
        self.reading.is_empty()
    }

    /// Reports the swaps of which all records have come.
    fn settle(&mut self) {
        let ended = self.reading.extract_if(.., |swap| swap.records_left == 0).map(|swap| {
            let took = SwapTook { bytes: swap.bytes, seconds: swap.began.elapsed().as_secs_f64() };
            SwapEnded { id: swap.id, outcome: swap.failed.map_or(Ok(took), Err) }
        });
        self.ended.extend(ended);
    }
}

impl SlotTier for DiskTier {
    fn threads(&self) -> Arc<dyn SlotThreads> {
        Arc::new(self.workers.threads())
    }

    fn keep_slot(&mut self, slot: SwapSlot, label: Option<BlockLabel>) -> bool {
        self.release_slot(slot);
        let Some(BlockLabel { key, parent, tokens, .. }) = label else { return false };
        let Some(TierPlace { record, index }) = self.tier.find(key) else { return false };
        let most = self.most_held_for_slots();
        let held = &mut self.slots.held;
        let is_full = !held.contains_key(&record.segment) && held.len() >= most;
        if is_full || self.slots.kept.len() >= self.slots.most {
            return false;
        }
        *held.entry(record.segment).or_default() += 1;
        self.tier.hold(record.segment);
        let expected = Expected { index, key, content: Some((parent, tokens)) };
        self.slots.kept.insert(slot, KeptSlot { record, expected });
        self.figures.swap_spared_bytes += self.shape.block_bytes() as u64;
        true
    }

    fn retain_slots(&mut self, is_used: &dyn Fn(SwapSlot) -> bool) {
        let unused: Vec<_> = self.slots.kept.keys().copied().filter(|&slot| !is_used(slot)).collect();
        unused.into_iter().for_each(|slot| self.release_slot(slot));
    }

    fn fetch_slots(&mut self, id: SwapId, transfers: &mut Vec<BlockSwap>) -> bool {
        let mut records: Vec<(RecordPlace, Vec<BlockId>, Vec<Expected>)> = Vec::new();
        transfers.retain(|BlockSwap { block, slot }| {
            let Some(KeptSlot { record, expected }) = self.slots.kept.get(slot) else { return true };
            match records.iter_mut().rev().find(|(other, ..)| other == record) {
                Some((_, blocks, all)) => {
                    blocks.push(*block);
                    all.push(expected.clone());
                }
                None => records.push((*record, vec![*block], vec![expected.clone()])),
            }
            false
        });
        if records.is_empty() {
            return false;
        }
        let (records_left, began) = (records.len(), Instant::now());
        self.slots.reading.push(Reading { id, records_left, began, bytes: 0, failed: None });
        for (record, blocks, expected) in records {
            self.read(record, expected, Purpose::Slots(id, blocks));
        }
        true
    }

    fn poll_slots(&mut self, blocks: &mut dyn BlockBytes, wait: Duration) -> Option<SwapEnded> {
        let deadline = Instant::now() + wait;
        loop {
            while let Some(done) = self.workers.done(Duration::ZERO) {
                self.take(done, blocks);
            }
            if let Some(ended) = self.slots.ended.pop_front() {
                return Some(ended);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.slots.is_settled() {
                return None;
            }
            let done = self.workers.done(left)?;
            self.take(done, blocks);
        }
    }
}

impl DiskTier {
    /// Returns the maximum number of segments that are held for slots.
    pub(super) fn most_held_for_slots(&self) -> usize {
        most_held(self.tier.config())
    }

    /// Returns the number of slots whose contents the store keeps.
    pub fn num_kept_slots(&self) -> usize {
        self.slots.kept.len()
    }

    fn release_slot(&mut self, slot: SwapSlot) {
        let Some(KeptSlot { record, .. }) = self.slots.kept.remove(&slot) else { return };
        if let Some(count) = self.slots.held.get_mut(&record.segment) {
            *count -= 1;
            if *count == 0 {
                self.slots.held.remove(&record.segment);
            }
        }
        self.tier.release(record.segment);
    }

    /// Fills the blocks `into` from a record that was read, or notes why the record could not be read.
    pub(super) fn slots_were_read(
        &mut self,
        id: SwapId,
        into: &[BlockId],
        (record, expected): (RecordPlace, &[Expected]),
        bytes: Result<&[u8], String>,
        blocks: &mut dyn BlockBytes,
    ) {
        let Some(swap) = self.slots.reading.iter_mut().find(|swap| swap.id == id) else { return };
        swap.records_left -= 1;
        match bytes {
            Ok(bytes) => {
                for (&block, Expected { index, .. }) in into.iter().zip(expected) {
                    let (shape, count, index) = (&self.shape, record.count.into(), usize::from(*index));
                    blocks.fill(block, &mut |block| unpack(shape, count, index, bytes, block));
                    swap.bytes += shape.block_bytes() as u64;
                }
            }
            Err(reason) => swap.failed = swap.failed.take().or(Some(reason)),
        }
        self.slots.settle();
    }
}

/// Returns the number of segments that may be held for slots.
pub(super) fn most_held(config: &KvTierConfig) -> usize {
    (config.num_segments / SEGMENTS_SHARE) as usize
}

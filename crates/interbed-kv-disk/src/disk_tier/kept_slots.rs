//! Remembers where the blocks of slots lie in a store. A segment with such blocks is held until all of their slots are
//! used for something else or are free.

use std::collections::HashMap;

use interbed_kv::{BlockKey, RecordPlace, SwapSlot, TierPlace, TokenId};

use crate::jobs::Expected;

/// Key of the block before a block in its chain, and the tokens of the block.
type BlockContent = (BlockKey, Box<[TokenId]>);

/// Place of a slot's block, and what the block must be.
#[derive(Clone)]
struct KeptSlot {
    record: RecordPlace,
    index: u16,
    key: BlockKey,
    /// Content of a block that was not written for the slot, but was found by its key.
    found: Option<Box<BlockContent>>,
}

/// Slots whose blocks lie in a store.
pub(super) struct KeptSlots {
    /// Places of the slots' blocks. [slot]
    kept: Vec<Option<KeptSlot>>,
    num_kept: usize,
    /// Number of slots that hold each segment. [segment]
    held: HashMap<u32, usize>,
    /// Maximum number of segments that slots hold; the other segments can still be emptied.
    segments_max: usize,
}

impl KeptSlots {
    pub(super) fn new(num_slots: usize, segments_max: usize) -> Self {
        Self { kept: vec![None; num_slots], num_kept: 0, held: HashMap::new(), segments_max }
    }

    /// Returns the number of bytes that a slot takes, for blocks of `block_size` tokens that may be found by their
    /// keys, or for blocks without keys if `block_size` is 0.
    pub(super) fn slot_bytes(block_size: usize) -> usize {
        let content = size_of::<BlockContent>() + block_size * size_of::<TokenId>() + 32;
        size_of::<Option<KeptSlot>>() + if block_size == 0 { 0 } else { content }
    }

    pub(super) fn num_slots(&self) -> usize {
        self.kept.len()
    }

    pub(super) fn num_kept(&self) -> usize {
        self.num_kept
    }

    /// Returns the number of further segments that slots may hold.
    pub(super) fn segments_left(&self) -> usize {
        self.segments_max.saturating_sub(self.held.len())
    }

    /// Returns the maximum number of segments that slots hold.
    pub(super) fn segments_max(&self) -> usize {
        self.segments_max
    }

    pub(super) fn holds(&self, segment: u32) -> bool {
        self.held.contains_key(&segment)
    }

    /// Notes that the block of `slot`, which keeps none yet, lies at `place` under `key`. `found` is what the block
    /// must be if it was not written for this slot.
    pub(super) fn keep(
        &mut self,
        slot: SwapSlot,
        TierPlace { record, index }: TierPlace,
        key: BlockKey,
        found: Option<BlockContent>,
    ) {
        let kept = &mut self.kept[slot.index()];
        debug_assert!(kept.is_none(), "a slot is released before it is used again");
        *kept = Some(KeptSlot { record, index, key, found: found.map(Box::new) });
        self.num_kept += 1;
        *self.held.entry(record.segment).or_default() += 1;
    }

    /// Forgets the block of `slot`. Returns the segment that the slot has held, if it has held one.
    pub(super) fn forget(&mut self, slot: SwapSlot) -> Option<u32> {
        let segment = self.kept[slot.index()].take()?.record.segment;
        self.num_kept -= 1;
        if let Some(count) = self.held.get_mut(&segment) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&segment);
            }
        }
        Some(segment)
    }

    /// Returns the record with the block of `slot`, and the block in it.
    pub(super) fn get(&self, slot: SwapSlot) -> Option<(RecordPlace, Expected)> {
        let KeptSlot { record, index, key, found } = self.kept.get(slot.index())?.as_ref()?;
        Some((*record, Expected { index: *index, key: *key, content: found.as_deref().cloned() }))
    }

    /// Lists the slots that keep a block.
    pub(super) fn slots(&self) -> impl Iterator<Item = SwapSlot> {
        let kept = (0..).zip(&self.kept).filter(|(_, kept)| kept.is_some());
        // The lowest slots are used first, so that all have mostly come up long before the last slot.
        kept.map(|(number, _)| SwapSlot(number)).take(self.num_kept)
    }

    /// Checks the invariants that hold between calls.
    pub(super) fn assert_sound(&self) {
        assert_eq!(self.kept.iter().flatten().count(), self.num_kept);
        assert_eq!(self.held.values().sum::<usize>(), self.num_kept, "each kept slot holds its segment");
        assert!(self.held.len() <= self.segments_max);
    }
}

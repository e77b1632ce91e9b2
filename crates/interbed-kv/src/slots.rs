//! Keeps track of the slots one tier below: which are free, and which content each holds.

use crate::{contents::ContentId, ids::SwapSlot};

/// Says for each slot whether it is free, or which content it holds and how many sequences and transfers hold the slot.
#[derive(Debug)]
pub(crate) struct Slots {
    entries: Vec<Entry>, // [slot]
    /// The free slots; the last one is taken next.
    free: Vec<SwapSlot>,
}

#[derive(Debug, Clone)]
struct Entry {
    holders: u32,
    /// The content of the slot, which is meaningless while the slot has no holder.
    content: ContentId,
}

/// Stands in place of a content for a slot with a part of a tail block.
const OF_TAIL: ContentId = ContentId(u32::MAX);

impl Slots {
    pub(crate) fn new(num_slots: usize) -> Self {
        Self {
            entries: vec![Entry { holders: 0, content: ContentId(0) }; num_slots],
            // The lowest slot is taken first, so that a swap file grows no longer than necessary.
            free: (0..num_slots as u32).rev().map(SwapSlot).collect(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn num_free(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn num_used(&self) -> usize {
        self.len() - self.num_free()
    }

    /// Takes a free slot for `content`, with one holder.
    ///
    /// # Panics
    /// Panics if no slot is free; callers check that first.
    pub(crate) fn take(&mut self, content: ContentId) -> SwapSlot {
        let slot = self.free.pop().expect("a slot is taken only when one is free");
        self.entries[slot.index()] = Entry { holders: 1, content };
        slot
    }

    /// Takes a free slot for a part of a tail block, with one holder.
    ///
    /// # Panics
    /// Panics if no slot is free; callers check that first.
    pub(crate) fn take_for_tail(&mut self) -> SwapSlot {
        self.take(OF_TAIL)
    }

    /// Returns whether `slot`, which must have a holder, holds a part of a tail block.
    pub(crate) fn is_of_tail(&self, slot: SwapSlot) -> bool {
        self.content(slot) == OF_TAIL
    }

    /// Adds one holder to `slot`, which must have a holder.
    pub(crate) fn hold(&mut self, slot: SwapSlot) {
        let holders = &mut self.entries[slot.index()].holders;
        assert!(*holders > 0, "{slot} is held once more, but nobody holds it");
        *holders += 1;
    }

    /// Removes a holder of `slot`. When the last holder leaves, the slot becomes free, and the call returns the slot's
    /// content, unless the slot held a part of a tail block.
    #[must_use]
    pub(crate) fn release(&mut self, slot: SwapSlot) -> Option<ContentId> {
        let Entry { holders, content } = &mut self.entries[slot.index()];
        *holders = holders.checked_sub(1).expect("a released slot is held");
        if *holders > 0 {
            return None;
        }
        self.free.push(slot);
        Some(*content).filter(|&content| content != OF_TAIL)
    }

    /// Returns the content of `slot`, which must have a holder.
    pub(crate) fn content(&self, slot: SwapSlot) -> ContentId {
        self.entries[slot.index()].content
    }

    pub(crate) fn is_free(&self, slot: SwapSlot) -> bool {
        self.entries[slot.index()].holders == 0
    }

    pub(crate) fn holders(&self, slot: SwapSlot) -> u32 {
        self.entries[slot.index()].holders
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = SwapSlot> + use<> {
        (0..self.entries.len() as u32).map(SwapSlot)
    }
}

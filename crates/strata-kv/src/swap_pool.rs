//! The slots of the swap pool: who holds them, and which tokens' KV is in each (K12).

use crate::{SwapSlot, TokenId};

/// Slots that are free or held by at least one table or swap under way. Tokens live with the slots, so that what comes
/// back can be compared with what is findable, and be published again.
#[derive(Debug)]
pub(crate) struct SwapPool {
    block_size: usize,
    pub(crate) holders: Vec<u32>, // [slot]
    tokens: Vec<TokenId>,         // [slot, position]
    pub(crate) free: Vec<SwapSlot>,
}

impl SwapPool {
    pub(crate) fn new(num_slots: usize, block_size: usize) -> Self {
        Self {
            block_size,
            holders: vec![0; num_slots],
            tokens: vec![0; num_slots * block_size],
            // The lowest goes first: a file is then no longer than it must be.
            free: (0..num_slots as u32).rev().map(SwapSlot).collect(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.holders.len()
    }

    pub(crate) fn used(&self) -> usize {
        self.len() - self.free.len()
    }

    /// A free slot for one holder, with these tokens.
    ///
    /// # Panics
    /// When none is free, which callers test first.
    pub(crate) fn take(&mut self, tokens: &[TokenId]) -> SwapSlot {
        let slot = self.free.pop().expect("a slot is taken only when one is free");
        self.holders[slot.index()] = 1;
        self.tokens[slot.index() * self.block_size..][..tokens.len()].copy_from_slice(tokens);
        slot
    }

    /// One more holder of `slot`.
    pub(crate) fn hold(&mut self, slot: SwapSlot) {
        assert!(self.holders[slot.index()] > 0, "{slot} is held once more, but nobody holds it");
        self.holders[slot.index()] += 1;
    }

    /// One holder less; the last frees the slot.
    pub(crate) fn release(&mut self, slot: SwapSlot) {
        let holders = &mut self.holders[slot.index()];
        *holders = holders.checked_sub(1).expect("a released slot is held");
        if *holders == 0 {
            self.free.push(slot);
        }
    }

    pub(crate) fn tokens(&self, slot: SwapSlot) -> &[TokenId] {
        &self.tokens[slot.index() * self.block_size..][..self.block_size]
    }
}

//! A device and a swap pool in which the KV of a token is a fingerprint of that token and all tokens before it. They
//! carry out the manager's lists at random times, and fail now and then.

use crate::{BlockCopy, BlockId, BlockManager, BlockPart, BlockSwap, Resize, Swap, SwapDirection, SwapId, SwapOutcome};

use super::{Rng, naive::Print};

/// The content of memory in which nothing was written; no token has this fingerprint.
const POISON: Print = u64::MAX;

pub(super) struct Device {
    block_size: usize,
    blocks: Vec<Print>, // [block, position]
    slots: Vec<Print>,  // [slot, position]
    /// Whether each block has memory, as far as the device was told.
    memory: Vec<bool>, // [block]
    /// The swaps in flight, each with its remaining transfers.
    swaps: Vec<Swap>,
}

impl Device {
    pub fn new(num_blocks: usize, num_slots: usize, block_size: usize) -> Self {
        Self {
            block_size,
            blocks: vec![POISON; num_blocks * block_size],
            slots: vec![POISON; num_slots * block_size],
            memory: vec![true; num_blocks],
            swaps: Vec::new(),
        }
    }

    /// Carries out the pending copies and the change of size. Blocks get memory only after others have lost theirs, so
    /// that at no time more blocks have memory than before or after the change, whichever is more.
    pub fn flush(&mut self, manager: &mut BlockManager) {
        let Resize { came, left } = manager.take_resize();
        let mut copies = Vec::new();
        manager.take_copies(&mut copies);
        for BlockCopy { source, destination } in copies {
            let (source, destination) = (self.range(source), self.range(destination));
            self.blocks.copy_within(source, destination.start);
        }
        for block in left {
            let range = self.range(block);
            self.blocks[range].fill(POISON);
            self.memory[block.index()] = false;
        }
        came.iter().for_each(|block| self.memory[block.index()] = true);
        assert_eq!(self.memory.iter().filter(|&&has| has).count(), manager.present());
    }

    /// Returns the fingerprint at a position of a sequence.
    pub fn read(&self, table: &[BlockId], at: usize) -> Print {
        self.blocks[self.range(table[at / self.block_size]).start + at % self.block_size]
    }

    pub fn write(&mut self, table: &[BlockId], at: usize, print: Print) {
        let range = self.range(table[at / self.block_size]);
        self.blocks[range.start + at % self.block_size] = print;
    }

    /// Begins a swap. The copies that were pending must have been carried out before.
    pub fn start(&mut self, swap: Swap) {
        self.swaps.push(swap);
    }

    pub fn num_swaps(&self) -> usize {
        self.swaps.len()
    }

    /// Continues a random swap, and returns it if it has ended. A swap that fails leaves poison in its destinations.
    pub fn go_on(&mut self, rng: &mut Rng) -> Option<(SwapId, SwapOutcome)> {
        if self.swaps.is_empty() {
            return None;
        }
        let chosen = rng.below(self.swaps.len());
        let fails = rng.once_in(64);
        let mut swap = self.swaps.swap_remove(chosen);
        let count = if fails { swap.transfers.len() } else { 1 + rng.below(swap.transfers.len() + 1) };
        for _ in 0..count.min(swap.transfers.len()) {
            let BlockSwap { part: BlockPart { block, .. }, slot } =
                swap.transfers.swap_remove(rng.below(swap.transfers.len()));
            let (block, slot) = (self.range(block), slot.index() * self.block_size);
            let (block, slot) = (&mut self.blocks[block], &mut self.slots[slot..slot + self.block_size]);
            match (swap.direction, fails) {
                (SwapDirection::Out, false) => slot.copy_from_slice(block),
                (SwapDirection::Out, true) => slot.fill(POISON),
                (SwapDirection::In, false) => block.copy_from_slice(slot),
                (SwapDirection::In, true) => block.fill(POISON),
            }
        }
        match swap {
            swap if fails => Some((swap.id, SwapOutcome::Failed)),
            swap if swap.transfers.is_empty() && !rng.once_in(4) => Some((swap.id, SwapOutcome::Done)),
            swap => {
                self.swaps.push(swap);
                None
            }
        }
    }

    /// Returns where a block's memory is.
    fn range(&self, block: BlockId) -> std::ops::Range<usize> {
        assert!(self.memory[block.index()], "{block} is used, but has no memory");
        let start = block.index() * self.block_size;
        start..start + self.block_size
    }
}

//! Simulated swap space: contents move when a swap ends, so that code that touches blocks or slots in flight is found
//! out.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use interbed_kv::{
    BlockBytes, BlockLabel, BlockPart, BlockSwap, SlotTier, Swap, SwapDirection, SwapEnded, SwapFailure, SwapSlot,
    SwapTook, SwapTrial,
};

use super::{Controls, SLOT_BYTES};

pub struct SimSwap {
    controls: Arc<Controls>,
    block_bytes: usize,
    /// What slots hold. [slot]
    slots: HashMap<u32, Vec<u8>>,
    /// Blocks that are to be filled, and are forgotten at the next opportunity.
    stale: Vec<BlockPart>,
    /// Swaps in flight, with the polls that they still take.
    in_flight: VecDeque<(Swap, u64)>,
    started: u64,
}

impl SimSwap {
    pub fn new(block_size: usize, controls: Arc<Controls>) -> Self {
        let (slots, in_flight) = (HashMap::new(), VecDeque::new());
        let block_bytes = block_size * SLOT_BYTES;
        Self { controls, block_bytes, slots, stale: Vec::new(), in_flight, started: 0 }
    }
}

impl SlotTier for SimSwap {
    fn num_slots(&self) -> usize {
        usize::MAX - self.controls.swap_slots_missing.load(Ordering::Relaxed)
    }

    fn trial(&self) -> SwapTrial {
        SwapTrial { bytes: 1 << 20, write_seconds: 1e-9, read_seconds: 1e-9 }
    }

    fn start_swap(&mut self, swap: &Swap, _label: &dyn Fn(BlockPart) -> Option<BlockLabel>) {
        if swap.direction == SwapDirection::In {
            self.stale.extend(swap.transfers.iter().map(|transfer| transfer.part));
        }
        self.started += 1;
        self.in_flight.push_back((swap.clone(), self.started * 7 % 5));
    }

    fn poll_swaps(&mut self, blocks: &mut dyn BlockBytes, wait: Duration) -> Option<SwapEnded> {
        let len = self.block_bytes;
        self.stale.drain(..).for_each(|part| blocks.fill(part, len, &mut |bytes| bytes.fill(0)));
        if self.controls.hold_swaps.load(Ordering::Relaxed) {
            std::thread::sleep(wait.min(Duration::from_millis(1)));
            return None;
        }
        let (_, polls) = self.in_flight.front_mut()?;
        if *polls > 0 && wait.is_zero() {
            *polls -= 1;
            return None;
        }
        let (swap, _) = self.in_flight.pop_front()?;
        let every = self.controls.fail_every_swap.load(Ordering::Relaxed);
        if every > 0 && swap.id.0 % every == every - 1 {
            // Every second time, it may be for want of room.
            let is_refused = swap.direction == SwapDirection::Out && (swap.id.0 / every).is_multiple_of(2);
            let broken = || SwapFailure::Broken("the cable is loose".into());
            return Some(SwapEnded {
                id: swap.id,
                outcome: Err(if is_refused { SwapFailure::NoRoom } else { broken() }),
            });
        }
        for &BlockSwap { part, slot } in &swap.transfers {
            match swap.direction {
                SwapDirection::Out => {
                    let mut bytes = vec![0; self.block_bytes];
                    blocks.read(part, &mut bytes).unwrap();
                    self.slots.insert(slot.0, bytes);
                }
                SwapDirection::In => {
                    blocks.fill(part, len, &mut |bytes| bytes.copy_from_slice(&self.slots[&slot.0]));
                }
            }
        }
        let bytes = (swap.transfers.len() * self.block_bytes) as u64;
        Some(SwapEnded { id: swap.id, outcome: Ok(SwapTook { bytes, seconds: 1e-9 }) })
    }

    fn num_kept_slots(&self) -> usize {
        self.slots.len()
    }

    fn retain_slots(&mut self, is_used: &dyn Fn(SwapSlot) -> bool) {
        self.slots.retain(|&slot, _| is_used(SwapSlot(slot)));
    }
}

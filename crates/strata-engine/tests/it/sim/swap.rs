//! Simulated swap space: contents move when a swap ends, so that code that touches blocks or slots in flight is found
//! out.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Duration;

use strata_engine::{KvSwap, SwapEnded, SwapTook, SwapTrial};
use strata_kv::{BlockSwap, Swap, SwapDirection};

use super::SimRunner;

#[derive(Default)]
pub struct SimSwap {
    /// Fingerprints. [slot, position]
    slots: HashMap<(u32, usize), u64>,
    /// Swaps in flight, with the polls that they still take.
    in_flight: VecDeque<(Swap, u64)>,
    started: u64,
}

impl KvSwap for SimRunner {
    fn num_slots(&self) -> usize {
        usize::MAX - self.controls.swap_slots_missing.load(Ordering::Relaxed)
    }

    fn trial(&self) -> SwapTrial {
        SwapTrial { bytes: 1 << 20, write_seconds: 1e-9, read_seconds: 1e-9 }
    }

    fn start(&mut self, swap: &Swap) {
        if swap.direction == SwapDirection::In {
            let blocks: Vec<_> = swap.transfers.iter().map(|transfer| transfer.block.0).collect();
            self.forget(&blocks);
        }
        self.swap.started += 1;
        self.swap.in_flight.push_back((swap.clone(), self.swap.started * 7 % 5));
    }

    fn poll(&mut self, wait: Duration) -> Option<SwapEnded> {
        if self.controls.hold_swaps.load(Ordering::Relaxed) {
            std::thread::sleep(wait.min(Duration::from_millis(1)));
            return None;
        }
        let (_, polls) = self.swap.in_flight.front_mut()?;
        if *polls > 0 && wait.is_zero() {
            *polls -= 1;
            return None;
        }
        let (swap, _) = self.swap.in_flight.pop_front()?;
        let every = self.controls.fail_every_swap.load(Ordering::Relaxed);
        if every > 0 && swap.id.0 % every == every - 1 {
            return Some(SwapEnded { id: swap.id, outcome: Err("the cable is loose".into()) });
        }
        for &BlockSwap { block, slot } in &swap.transfers {
            for position in 0..self.block_size {
                let (block, slot) = ((block.0, position), (slot.0, position));
                match swap.direction {
                    SwapDirection::Out => {
                        self.swap.slots.remove(&slot);
                        self.swap.slots.extend(self.slots.get(&block).map(|&fingerprint| (slot, fingerprint)));
                    }
                    SwapDirection::In => {
                        self.slots.extend(self.swap.slots.get(&slot).map(|&fingerprint| (block, fingerprint)));
                    }
                }
            }
        }
        Some(SwapEnded { id: swap.id, outcome: Ok(SwapTook { bytes: 64, seconds: 1e-9 }) })
    }
}

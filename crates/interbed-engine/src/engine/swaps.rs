//! Copies and swaps of KV blocks, between passes.

use std::collections::HashMap;
use std::time::Duration;

use interbed_kv::{SwapDirection, SwapId};
use interbed_kv_disk::{KvThreads, SwapEnded, SwapStore, SwapTook};

use super::Worker;
use crate::scheduler::StepPlan;

/// What became of a swap, or of a part of it.
type Outcome = Result<SwapTook, String>;

/// Swap space, and the swaps that it shares with KV on disk.
pub(super) struct Swaps {
    store: Option<Box<dyn SwapStore>>,
    /// Swaps of which some blocks come from KV on disk and some from the store, and what became of the part that has
    /// ended.
    parted: HashMap<SwapId, Option<Outcome>>,
}

impl Swaps {
    pub(super) fn new(store: Option<Box<dyn SwapStore>>) -> Self {
        Self { store, parted: HashMap::new() }
    }

    /// From now on these threads move blocks; no swap is in flight.
    pub(super) fn share_threads(&mut self, threads: KvThreads) {
        self.store.iter_mut().for_each(|store| store.share_threads(threads.clone()));
    }

    /// A swap, or a part of it, has ended: if it was the last, the whole.
    fn join(parted: &mut HashMap<SwapId, Option<Outcome>>, SwapEnded { id, outcome }: SwapEnded) -> Option<SwapEnded> {
        let outcome = match parted.remove(&id) {
            None => outcome,
            Some(None) => {
                parted.insert(id, Some(outcome));
                return None;
            }
            Some(Some(other)) => other.and_then(|other| {
                outcome
                    .map(|took| SwapTook { bytes: took.bytes + other.bytes, seconds: took.seconds.max(other.seconds) })
            }),
        };
        Some(SwapEnded { id, outcome })
    }
}

impl Worker {
    /// Makes the copies that the block manager has decided on.
    pub(super) fn copy_blocks(&mut self) {
        // What was evicted may be overwritten by a copy.
        self.store_blocks();
        self.scheduler.take_copies(&mut self.copies);
        if !self.copies.is_empty() {
            self.runner.copy_blocks(&self.copies);
        }
    }

    /// Makes the step's copies, then hands its swaps over, so that they go on beside the pass.
    pub(super) fn begin_swaps(&mut self, plan: &StepPlan) {
        self.copy_blocks();
        if plan.swaps.is_empty() {
            return;
        }
        for planned in &plan.swaps {
            let mut swap = planned.clone();
            if let Some(disk) = &mut self.disk {
                let (tier, manager) = (&mut disk.disk.tier, self.scheduler.blocks());
                match swap.direction {
                    // What KV on disk has is not written again.
                    SwapDirection::Out => {
                        swap.transfers.retain(|copy| !tier.keep_slot(copy.slot, manager.label(copy.block)));
                    }
                    SwapDirection::In if tier.fetch_slots(swap.id, &mut swap.transfers) => {
                        self.swaps.parted.insert(swap.id, None);
                    }
                    SwapDirection::In => {}
                }
            }
            self.swaps.store.iter_mut().for_each(|store| store.start(&swap));
        }
        self.poll_swaps(Duration::ZERO);
    }

    /// Goes on with the swaps in flight, and takes in those that have ended; waits for one up to `wait`.
    pub(super) fn poll_swaps(&mut self, mut wait: Duration) {
        while self.scheduler.num_swaps() > 0
            && let Some(ended) = self.next_swap(wait)
        {
            wait = Duration::ZERO;
            let gave_up = self.scheduler.finish_swap(ended.id, ended.outcome.as_ref().map_err(|_| ()).copied());
            if let Err(reason) = ended.outcome {
                tracing::warn!("{} failed: {reason}; its KV is computed again", ended.id);
                if gave_up {
                    tracing::error!("swaps have failed too often; from now on all preempted KV is computed again");
                }
            }
        }
        if let Some(disk) = &mut self.disk {
            let manager = self.scheduler.blocks();
            disk.disk.tier.retain_slots(|slot| !manager.is_slot_free(slot));
        }
    }

    /// A swap that has ended, if there is one within `wait`.
    fn next_swap(&mut self, mut wait: Duration) -> Option<SwapEnded> {
        let blocks = self.runner.block_bytes()?;
        let store = self.swaps.store.as_mut()?;
        loop {
            // Whichever part has something in flight is waited for.
            let from_disk = match &mut self.disk {
                Some(disk) if !self.swaps.parted.is_empty() => disk.disk.tier.poll_slots(blocks, wait),
                _ => None,
            };
            let ended = match from_disk {
                Some(ended) => ended,
                None => store.poll(blocks, wait)?,
            };
            wait = Duration::ZERO;
            if let Some(ended) = Swaps::join(&mut self.swaps.parted, ended) {
                return Some(ended);
            }
        }
    }

    /// Learns how long a prompt token takes, from passes that computed mostly prompt tokens.
    pub(super) fn note_prefill(&mut self, plan: &StepPlan, elapsed: Duration) {
        if let Some(tokens) = plan.prefill_tokens() {
            self.scheduler.prefilled(tokens, elapsed.as_secs_f64());
        }
    }
}

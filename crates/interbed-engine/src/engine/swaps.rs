//! Between passes, the engine copies KV blocks and swaps them out and in.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use interbed_kv::{SlotThreads, SwapDirection, SwapEnded, SwapId, SwapStore, SwapTook};

use super::Worker;
use super::attached_tier::slot_tier;
use crate::scheduler::StepPlan;

/// The outcome of a swap or of a part of a swap; the error is a reason in words.
type Outcome = Result<SwapTook, String>;

/// The swap space, and the swaps that read a part of their blocks from a tier that has them.
pub(super) struct Swaps {
    store: Option<Box<dyn SwapStore>>,
    /// The swaps that read some blocks from a tier and the others from the store. The value is the outcome of the
    /// part that has ended, if one has.
    parted: HashMap<SwapId, Option<Outcome>>,
}

impl Swaps {
    pub(super) fn new(store: Option<Box<dyn SwapStore>>) -> Self {
        Self { store, parted: HashMap::new() }
    }

    /// Has `threads` move blocks from now on. No swap may be in flight.
    pub(super) fn share_threads(&mut self, threads: &Arc<dyn SlotThreads>) {
        self.store.iter_mut().for_each(|store| store.share_threads(Arc::clone(threads)));
    }

    /// Takes in a swap, or a part of one, that has ended. Returns the outcome of the whole swap if no other part is
    /// left.
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
    /// Makes the copies of blocks that the block manager has decided on.
    pub(super) fn copy_blocks(&mut self) {
        // A copy may overwrite a block that was evicted, so evicted blocks are staged first.
        self.store_blocks();
        self.scheduler.take_copies(&mut self.copies);
        if !self.copies.is_empty() {
            self.runner.copy_blocks(&self.copies);
        }
    }

    /// Makes the step's copies, then starts its swaps, so that the swaps run beside the pass.
    pub(super) fn begin_swaps(&mut self, plan: &StepPlan) {
        self.copy_blocks();
        if plan.swaps.is_empty() {
            return;
        }
        for planned in &plan.swaps {
            let mut swap = planned.clone();
            if let Some(tier) = slot_tier(&mut self.tiers) {
                let manager = self.scheduler.blocks();
                match swap.direction {
                    // Blocks that are already in the tier are not written again.
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

    /// Makes progress on the swaps in flight, and takes in those that have ended. Waits up to `wait` for the first one.
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
        if let Some(tier) = slot_tier(&mut self.tiers) {
            let manager = self.scheduler.blocks();
            tier.retain_slots(&|slot| !manager.is_slot_free(slot));
        }
    }

    /// Returns a swap that has ended, if one ends within `wait`.
    fn next_swap(&mut self, mut wait: Duration) -> Option<SwapEnded> {
        let blocks = self.runner.block_bytes()?;
        let store = self.swaps.store.as_mut()?;
        loop {
            // Each part waits only if it has something in flight.
            let tier = slot_tier(&mut self.tiers).filter(|_| !self.swaps.parted.is_empty());
            let ended = match tier.and_then(|tier| tier.poll_slots(blocks, wait)) {
                Some(ended) => ended,
                None => store.poll(blocks, wait)?,
            };
            wait = Duration::ZERO;
            if let Some(ended) = Swaps::join(&mut self.swaps.parted, ended) {
                return Some(ended);
            }
        }
    }

    /// Measures how long a prompt token takes, from passes that computed mostly prompt tokens.
    pub(super) fn note_prefill(&mut self, plan: &StepPlan, elapsed: Duration) {
        if let Some(tokens) = plan.prefill_tokens() {
            self.scheduler.prefilled(tokens, elapsed.as_secs_f64());
        }
    }
}

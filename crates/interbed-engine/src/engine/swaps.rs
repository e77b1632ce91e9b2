//! Between passes, the engine swaps KV blocks out and in.

use std::time::Duration;

use interbed_kv::{SlotTier, SwapFailure};

use super::Worker;
use super::attached_tier::AttachedTier;
use crate::scheduler::StepPlan;

/// Returns the tier that sequences are swapped to: `unnamed` if there is one, or else the nearest of `tiers` that takes
/// them.
pub(super) fn slot_tier<'a>(
    unnamed: &'a mut Option<Box<dyn SlotTier>>,
    tiers: &'a mut [AttachedTier],
) -> Option<&'a mut dyn SlotTier> {
    match unnamed {
        Some(tier) => Some(tier.as_mut()),
        None => tiers.iter_mut().find_map(|tier| tier.tier.slots()),
    }
}

impl Worker {
    /// Makes the step's copies, then starts its swaps, so that the swaps run beside the pass.
    pub(super) fn begin_swaps(&mut self, plan: &StepPlan) {
        self.move_blocks();
        if plan.swaps.is_empty() {
            return;
        }
        if let Some(tier) = slot_tier(&mut self.swap, &mut self.tiers) {
            let manager = self.scheduler.blocks();
            plan.swaps.iter().for_each(|swap| tier.start_swap(swap, &|part| manager.label_of(part)));
        }
        self.poll_swaps(Duration::ZERO);
    }

    /// Makes progress on the swaps in flight, and takes in those that have ended. Waits up to `wait` for the first one.
    pub(super) fn poll_swaps(&mut self, mut wait: Duration) {
        let Some(tier) = slot_tier(&mut self.swap, &mut self.tiers) else { return };
        let Some(blocks) = self.runner.block_bytes() else { return };
        while self.scheduler.num_swaps() > 0
            && let Some(ended) = tier.poll_swaps(blocks, wait)
        {
            wait = Duration::ZERO;
            let gave_up = self.scheduler.finish_swap(ended.id, ended.outcome.as_ref().copied());
            match ended.outcome {
                Ok(_) => {}
                Err(SwapFailure::NoRoom) => tracing::debug!("{} finds no room; its KV is computed again", ended.id),
                Err(SwapFailure::Broken(reason)) => {
                    tracing::warn!("{} failed: {reason}; its KV is computed again", ended.id);
                }
            }
            if gave_up {
                tracing::error!(
                    "swaps have failed too often; preempted KV is computed again, and they are tried later"
                );
            }
        }
        let manager = self.scheduler.blocks();
        if tier.num_kept_slots() > manager.num_used_slots() {
            tier.retain_slots(&|slot| !manager.is_slot_free(slot));
        }
    }

    /// Measures how long a prompt token takes, from passes that computed mostly prompt tokens.
    pub(super) fn note_prefill(&mut self, plan: &StepPlan, elapsed: Duration) {
        if let Some(tokens) = plan.prefill_tokens() {
            self.scheduler.prefilled(tokens, elapsed.as_secs_f64());
        }
    }
}

//! Copies and swaps of KV blocks, between passes.

use std::time::Duration;

use super::Worker;
use crate::scheduler::StepPlan;

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
        if let Some(swap) = self.runner.kv_swap() {
            plan.swaps.iter().for_each(|planned| swap.start(planned));
        }
        self.poll_swaps(Duration::ZERO);
    }

    /// Goes on with the swaps in flight, and takes in those that have ended; waits for one up to `wait`.
    pub(super) fn poll_swaps(&mut self, mut wait: Duration) {
        while self.scheduler.num_swaps() > 0
            && let Some(swap) = self.runner.kv_swap()
            && let Some(ended) = swap.poll(wait)
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
    }

    /// Learns how long a prompt token takes, from passes that computed mostly prompt tokens.
    pub(super) fn note_prefill(&mut self, plan: &StepPlan, elapsed: Duration) {
        if let Some(tokens) = plan.prefill_tokens() {
            self.scheduler.prefilled(tokens, elapsed.as_secs_f64());
        }
    }
}

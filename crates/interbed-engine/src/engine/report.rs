//! After each turn, the engine reports its figures and the changes of its cache.

use super::attached_tier::AttachedTier;
use super::{IDLE_STEPS_MAX, Worker};
use crate::{EngineStatus, KvStatus, SwapStatus};

impl Worker {
    /// Tells the watcher of the prefix cache what has changed in this turn.
    pub(super) fn tell_cache_changes(&mut self) {
        let Some(watcher) = &mut self.cache_watcher else { return };
        self.scheduler.take_cache_changes(&mut self.cache_changes);
        if !self.cache_changes.is_empty() {
            watcher.changed(&self.cache_changes);
        }
    }

    /// Publishes the figures for handles to read.
    pub(super) fn publish(&mut self) {
        let kv = self.scheduler.blocks().stats();
        let memory = self.runner.memory();
        let preemptions = self.scheduler.preemptions();
        let stuck = (self.idle_steps > IDLE_STEPS_MAX).then(|| {
            let (waiting, steps) = (self.scheduler.num_waiting(), self.idle_steps);
            let why = self.scheduler.first_wait().map(|wait| format!(" ({wait})")).unwrap_or_default();
            format!("{waiting} requests wait, but {steps} steps scheduled none{why}")
        });
        let status = EngineStatus {
            steps: self.totals.steps,
            pass_tokens: self.totals.pass_tokens,
            waiting: self.scheduler.num_waiting(),
            running: self.scheduler.num_running(),
            swapped: self.scheduler.num_swapped(),
            prompt_tokens: self.totals.prompt_tokens,
            generation_tokens: self.totals.generation_tokens,
            finished: self.totals.finished,
            preemptions: preemptions.recompute + preemptions.swap,
            preemptions_swap: preemptions.swap,
            swap: SwapStatus {
                slots_total: kv.swap_slots_total,
                slots_used: kv.swap_slots_used,
                block_bytes: memory.kv_block.0,
                blocks_out: kv.swapped_out_blocks,
                blocks_in: kv.swapped_in_blocks,
                failed: kv.swaps_failed,
            },
            kv: KvStatus {
                blocks_total: kv.blocks_total,
                blocks_used: kv.blocks_used,
                blocks_cached: kv.blocks_cached,
                blocks_free: kv.blocks_free,
                blocks_withdrawn: kv.blocks_withdrawn,
                bytes: memory.kv_block.0.saturating_mul(self.scheduler.blocks().present() as u64),
                slots_allocated: kv.slots_allocated,
                slots_empty: kv.slots_empty,
                prefix_query_tokens: self.totals.prompt_tokens,
                prefix_hit_tokens: self.totals.cached_tokens,
                evictions: kv.evictions,
                allocation_failures: kv.allocation_failures,
                blocks_merged: kv.blocks_merged,
                forks: kv.forks,
                copy_on_writes: kv.copy_on_writes,
                allocation_seconds: self.totals.allocation_seconds,
            },
            weights_bytes: memory.weights.0,
            tiers: self.tiers.iter().map(AttachedTier::status).collect(),
            longer_than_memory: self.long.len(),
            strips: self.strips_status(),
            stream: self.runner.stream_stats(),
            device: self.runner.device_stats(),
            leaks_found: self.totals.leaks_found,
            ..EngineStatus::default()
        };
        self.shared.publish(status, stuck);
    }
}

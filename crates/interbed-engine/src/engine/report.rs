//! After each turn, the engine reports its figures and the changes of its cache.

use std::time::Instant;

use super::attached_tier::AttachedTier;
use super::{IDLE_STEPS_MAX, Worker};
use crate::EngineStatus;

impl Worker {
    /// Tells the watcher of the prefix cache what has changed in this turn.
    pub(super) fn tell_cache_changes(&mut self) {
        let Some((watcher, changes)) = &mut self.cache else { return };
        self.scheduler.blocks_mut().take_changes(changes);
        if !changes.is_empty() {
            watcher.changed(changes);
        }
    }

    /// Publishes the figures for handles to read.
    pub(super) fn publish(&mut self) {
        let preemptions = self.scheduler.preemptions();
        let stuck = (self.idle_steps > IDLE_STEPS_MAX).then(|| {
            let (waiting, steps) = (self.scheduler.num_waiting(), self.idle_steps);
            let why = self.scheduler.first_wait().map(|wait| format!(" ({wait})")).unwrap_or_default();
            format!("{waiting} requests wait, but {steps} steps scheduled none{why}")
        });
        let status = EngineStatus {
            waiting: self.scheduler.num_waiting(),
            running: self.scheduler.num_running(),
            swapped: self.scheduler.num_swapped(),
            preemptions: preemptions.recompute + preemptions.swap,
            preemptions_swap: preemptions.swap,
            kv: self.scheduler.blocks().stats(),
            tails: self.scheduler.blocks().tail_stats(),
            memory: self.runner.memory(),
            tiers: self.tiers.iter().map(AttachedTier::status).collect(),
            longer_than_memory: self.long.len(),
            strips: self.strips_status(),
            stream: self.shared.board.stream_stats(),
            ..self.status.clone()
        };
        self.shared.publish(Instant::now(), status, stuck);
    }
}

//! Tiers below memory may be attached while the engine runs, once it is known whose KV they may hold.

use std::sync::mpsc::TryRecvError;

use super::Worker;
use super::attached_tier::{AttachedTier, frame_tier};
use super::swaps::slot_tier;
use crate::tiers_below::TierBelow;

impl Worker {
    /// Attaches `tiers`, nearest first. This is called before any swap has begun.
    pub(super) fn attach(&mut self, tiers: Vec<TierBelow>) {
        let Some(nearest) = tiers.first() else { return };
        let stores_generated = tiers.iter().any(|below| below.policy.mode.stores_generated());
        // All tiers name blocks in the same way.
        self.scheduler.name_contents(nearest.tier.key_chain().clone(), stores_generated);
        let num_blocks = self.config.kv.num_blocks;
        self.tiers = tiers.into_iter().map(|below| AttachedTier::new(below, num_blocks)).collect();
        if let Some((_, tier)) = frame_tier(&mut self.tiers).filter(|_| self.runner.streams_kv()) {
            self.scheduler.allow_long(tier.capacity_tokens());
        }
    }

    /// Lets sequences be swapped from now on, if there is a tier that takes them.
    pub(super) fn allow_swaps(&mut self) {
        let wanted = self.config.kv.num_swap_blocks;
        if let Some(tier) = slot_tier(&mut self.swap, &mut self.tiers).filter(|tier| tier.num_slots() >= wanted) {
            let trial = tier.trial();
            self.scheduler.set_swap_trial(self.runner.memory().kv_block.0, trial);
        }
    }

    /// Attaches the KV tiers that were still being opened when the engine started, if they are open by now.
    pub(super) fn attach_later(&mut self) {
        let Some(later) = self.later.as_ref().filter(|_| self.scheduler.num_swaps() == 0) else { return };
        let tiers = match later.tiers.try_recv() {
            Ok(tiers) => match TierBelow::check(&tiers) {
                Ok(()) => tiers,
                Err(reason) => {
                    tracing::error!("{reason}; KV is kept in memory alone");
                    Vec::new()
                }
            },
            Err(TryRecvError::Empty) => return,
            // The sender was dropped without sending, so no tiers will come.
            Err(TryRecvError::Disconnected) => Vec::new(),
        };
        self.later = None;
        self.scheduler.await_long(0);
        self.attach(tiers);
        self.allow_swaps();
    }
}

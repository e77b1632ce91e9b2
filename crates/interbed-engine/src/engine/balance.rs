//! Between passes, the engine divides memory between KV and its other users.

use super::Worker;
impl Worker {
    /// Divides memory between KV and its other users by the present demand. The pages of blocks that have left are
    /// given back before their memory is used for anything else. If blocks lie above the limit of usable blocks, this
    /// then moves a few of them down. On an idle engine, it moves all cached blocks together, because withdrawn blocks
    /// give more pages back if they lie side by side.
    pub(super) fn balance(&mut self) {
        // Blocks that are to be copied may be among the blocks that are about to leave.
        self.copy_blocks();
        self.give_back();
        let Self { scheduler, runner, tiers, .. } = self;
        let Some(memory) = runner.kv_memory() else {
            self.settled = true;
            return;
        };
        let mut demand = scheduler.kv_demand();
        // Blocks that leave memory are read back from a tier later, if reading is faster than computing.
        let finding = tiers.iter().filter(|tier| tier.tier.knows_contents());
        let fastest = |computing| finding.filter_map(|tier| tier.tier.read_seconds(1)).fold(computing, f64::min);
        demand.recompute = demand.recompute.map(fastest);
        let grant = memory.balance(demand);
        scheduler.set_usable_blocks(grant.blocks);
        self.store_blocks();
        self.give_back();
        let blocks_above = self.scheduler.blocks().blocks_above();
        let is_due = if self.scheduler.is_idle() { grant.settled } else { blocks_above > 0 };
        let moving = is_due && self.scheduler.compact();
        self.settled = grant.settled && !moving;
        if moving {
            self.copy_blocks();
            self.give_back();
        }
    }

    /// Gives back the memory of blocks that have left.
    fn give_back(&mut self) {
        let Some(memory) = self.runner.kv_memory() else { return };
        let left: Vec<_> = self.scheduler.blocks_mut().take_resize().left.iter().map(|block| block.0).collect();
        if !left.is_empty() {
            memory.give_back(&left);
        }
    }
}

//! Between passes, the engine divides memory between KV and its other users.

use interbed_kv::Resize;

use super::Worker;
use crate::runner::KvMemory;

impl Worker {
    /// Divides memory between KV and its other users by the present demand. The memory of blocks that have left is
    /// given back before their memory is used for anything else. If blocks lie above the limit of usable blocks, this
    /// then moves a few of them down. On an idle engine, it moves all cached blocks together, because withdrawn blocks
    /// give more pages back if they lie side by side.
    pub(super) fn balance(&mut self) {
        // Blocks that are to be copied may be among the blocks that are about to leave.
        self.copy_blocks();
        self.resize();
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
        self.resize();
        let blocks_above = self.scheduler.blocks().blocks_above();
        let is_due = if self.scheduler.is_idle() { grant.settled } else { blocks_above > 0 };
        let moving = is_due && self.scheduler.compact();
        self.settled = grant.settled && !moving;
        if moving {
            self.copy_blocks();
            self.resize();
        }
    }

    /// Tells the runner which blocks have come and left.
    fn resize(&mut self) {
        if let Some(memory) = self.runner.kv_memory() {
            tell(&self.scheduler.blocks_mut().take_resize(), memory);
        }
    }
}

/// Tells `memory` which blocks have come and left.
pub(super) fn tell(resize: &Resize, memory: &mut dyn KvMemory) {
    let [came, left] =
        [&resize.came, &resize.left].map(|blocks| blocks.iter().map(|block| block.0).collect::<Vec<_>>());
    if !(came.is_empty() && left.is_empty()) {
        memory.resize(&came, &left);
    }
}

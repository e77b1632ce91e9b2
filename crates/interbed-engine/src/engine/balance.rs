//! Between passes, the engine divides memory between KV and its other users.

use interbed_kv::{BlockId, Resize};

use super::Worker;
use crate::runner::Runner;

impl Worker {
    /// Divides memory between KV and its other users by the present demand. The memory of blocks that have left is
    /// given back before their memory is used for anything else. If blocks lie above the limit of usable blocks, this
    /// then moves a few of them down. On an idle engine, it moves all cached blocks together, because withdrawn blocks
    /// give more pages back if they lie side by side.
    pub(super) fn balance(&mut self) {
        self.move_blocks();
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
        self.move_blocks();
        let blocks_above = self.scheduler.blocks().blocks_above();
        let is_due = if self.scheduler.is_idle() { grant.settled } else { blocks_above > 0 };
        let moving = is_due && self.scheduler.compact();
        self.settled = grant.settled && !moving;
        if moving {
            self.move_blocks();
        }
    }

    /// Makes the copies of blocks that the block manager has decided on, and tells the runner which blocks have come
    /// and left.
    pub(super) fn move_blocks(&mut self) {
        // A copy may overwrite a block that was evicted, so evicted blocks are staged first.
        self.store_blocks();
        let Self { scheduler, runner, copies, .. } = self;
        scheduler.take_copies(copies);
        let mut resize = scheduler.blocks_mut().take_resize();
        // A block may have left again before it was copied to, with the sequence that it was for. Copies that are to
        // read it come later and are dropped first.
        while let Some(index) = copies.iter().rposition(|copy| {
            let is_read = || copies.iter().any(|other| other.source == copy.destination);
            resize.left.binary_search(&copy.destination).is_ok() && !is_read()
        }) {
            copies.remove(index);
        }
        if copies.iter().any(|copy| resize.came.binary_search(&copy.destination).is_ok()) {
            // What is copied to needs memory, and what is copied from is given back afterwards.
            let is_read = |block: &BlockId| copies.iter().any(|copy| copy.source == *block);
            let (read, left) = resize.left.into_iter().partition(is_read);
            tell(&Resize { came: std::mem::take(&mut resize.came), left }, runner.as_mut());
            resize.left = read;
        }
        if !copies.is_empty() {
            runner.copy_blocks(copies);
        }
        tell(&resize, runner.as_mut());
    }
}

/// Tells `runner` which blocks have come and left.
pub(super) fn tell(resize: &Resize, runner: &mut dyn Runner) {
    let [came, left] =
        [&resize.came, &resize.left].map(|blocks| blocks.iter().map(|block| block.0).collect::<Vec<_>>());
    if !(came.is_empty() && left.is_empty()) {
        runner.resize_blocks(&came, &left);
    }
}

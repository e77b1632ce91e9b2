//! Between passes, memory changes hands.

use super::Worker;
use super::disk::Disk;
use crate::runner::KvMemory;
use crate::scheduler::Scheduler;

impl Worker {
    /// Divides memory between KV and its other users by the present demand. The pages of blocks that have left are
    /// given back before that memory is used for anything else. What lies above the blocks that may be used then moves
    /// down, a few blocks at a time; on an idle engine all that is cached moves together: withdrawn blocks give more
    /// pages back if they lie side by side.
    pub(super) fn balance(&mut self) {
        // What is to be copied may lie in blocks that are about to leave.
        self.copy_blocks();
        let Self { scheduler, runner, disk, .. } = self;
        let Some(memory) = runner.kv_memory() else {
            self.settled = true;
            return;
        };
        give_back(scheduler, memory);
        let mut demand = scheduler.kv_demand();
        // What leaves memory comes back from disk, if that is the faster way.
        if let Some(reading) = disk.as_ref().and_then(Disk::block_seconds) {
            demand.recompute = demand.recompute.map(|computing| computing.min(reading));
        }
        let grant = memory.balance(demand);
        scheduler.set_usable_blocks(grant.blocks);
        self.store_blocks();
        let Self { scheduler, runner, .. } = self;
        runner.kv_memory().into_iter().for_each(|memory| give_back(scheduler, memory));
        let is_due = if scheduler.is_idle() { grant.settled } else { scheduler.blocks().blocks_above() > 0 };
        let moving = is_due && scheduler.compact();
        self.settled = grant.settled && !moving;
        if moving {
            self.copy_blocks();
            let Self { scheduler, runner, .. } = self;
            runner.kv_memory().into_iter().for_each(|memory| give_back(scheduler, memory));
        }
    }
}

fn give_back(scheduler: &mut Scheduler, memory: &mut dyn KvMemory) {
    let left: Vec<_> = scheduler.take_resize().left.iter().map(|block| block.0).collect();
    if !left.is_empty() {
        memory.give_back(&left);
    }
}

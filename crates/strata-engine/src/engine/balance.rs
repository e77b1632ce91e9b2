//! Between passes, memory changes hands (M4).

use super::Worker;
use crate::runner::KvMemory;
use crate::scheduler::Scheduler;

impl Worker {
    /// Divides memory between KV and whatever else wants it, as demand has become (M4). The pages of blocks that have left
    /// are given back before anybody counts on them.
    pub(super) fn balance(&mut self) {
        self.copy_blocks();
        let Self { scheduler, runner, .. } = self;
        let Some(memory) = runner.kv_memory() else {
            self.settled = true;
            return;
        };
        let give_back = |scheduler: &mut Scheduler, memory: &mut dyn KvMemory| {
            let left: Vec<_> = scheduler.take_resize().left.iter().map(|block| block.0).collect();
            if !left.is_empty() {
                memory.give_back(&left);
            }
        };
        give_back(scheduler, memory);
        let grant = memory.balance(scheduler.kv_demand());
        scheduler.set_usable_blocks(grant.blocks);
        give_back(scheduler, memory);
        self.settled = grant.settled;
    }

    /// Makes the copies that sequences which begin to differ need (K11), in one batch.
    pub(super) fn copy_blocks(&mut self) {
        self.scheduler.take_copies(&mut self.copies);
        if !self.copies.is_empty() {
            self.runner.copy_blocks(&self.copies);
        }
    }
}

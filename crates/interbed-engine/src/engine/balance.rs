//! Between passes, the engine divides memory between KV and its other users.

use interbed_kv::{BlockCopy, BlockId, Resize};

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
        let mut kept = copies.len();
        while let Some(index) = copies[..kept].iter().enumerate().rposition(|(index, copy)| {
            let is_read = || copies[index + 1..].iter().any(|later| later.source == copy.destination);
            resize.left.binary_search(&copy.destination).is_ok() && !is_read()
        }) {
            copies.remove(index);
            kept = index;
        }
        let has_changed =
            |block: &BlockId| [&resize.came, &resize.left].iter().any(|list| list.binary_search(block).is_ok());
        if copies.iter().any(|copy| has_changed(&copy.destination)) {
            copy_one_by_one(copies, &mut resize, runner.as_mut());
        } else if !copies.is_empty() {
            runner.copy_blocks(copies);
        }
        tell(&resize, runner.as_mut());
    }
}

/// Makes copies of which some go to blocks that have come. Their memory may be that of blocks which have left and are
/// still copied from. So each block that is copied to gets memory right before, and each block that has left keeps its
/// memory until it has been copied from: there is as much memory as when the block manager decided on the copy. Takes
/// the blocks that are told to `runner` out of `resize`.
fn copy_one_by_one(copies: &[BlockCopy], resize: &mut Resize, runner: &mut dyn Runner) {
    // A block that has left and come again since the last call has memory until it is told to have left.
    let is_copied_from = |block: &BlockId| copies.iter().any(|copy| copy.source == *block);
    let again = resize.came.iter().copied().filter(|block| !is_copied_from(block)).collect();
    tell(&Resize { came: Vec::new(), left: again }, runner);
    for (index, copy) in copies.iter().enumerate() {
        let is_needed = |block: &BlockId| copies[index..].iter().any(|later| later.source == *block);
        let is_copied_to = |block: &BlockId| *block == copy.destination;
        let (needed, left) = std::mem::take(&mut resize.left).into_iter().partition(is_needed);
        let (mut came, coming): (Vec<_>, _) = std::mem::take(&mut resize.came).into_iter().partition(is_copied_to);
        (resize.left, resize.came) = (needed, coming);
        // One that has left may have come for a copy that a later one reads.
        came.extend(resize.left.iter().copied().find(is_copied_to));
        tell(&Resize { came, left }, runner);
        runner.copy_blocks(std::slice::from_ref(copy));
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use interbed_model::{BatchSequence, KvBelow, LogitRow, Logits};

    use super::*;
    use crate::runner::PassError;

    /// A runner that has memory for two blocks.
    struct TwoBlocks {
        present: BTreeSet<u32>,
        copied: Vec<(u32, u32)>,
    }

    impl Runner for TwoBlocks {
        fn forward(
            &mut self,
            _: &[BatchSequence<'_>],
            _: &mut dyn KvBelow,
            _: &mut dyn FnMut(LogitRow, Logits<'_>),
        ) -> Result<(), PassError> {
            unreachable!("nothing is computed")
        }

        fn resize_blocks(&mut self, came: &[u32], left: &[u32]) {
            self.present.retain(|block| !left.contains(block));
            self.present.extend(came);
            assert!(self.present.len() <= 2, "{:?} have memory", self.present);
        }

        fn copy_blocks(&mut self, copies: &[BlockCopy]) {
            for copy in copies {
                assert!(self.present.contains(&copy.source.0) && self.present.contains(&copy.destination.0));
                self.copied.push((copy.source.0, copy.destination.0));
            }
        }
    }

    /// The block manager has withdrawn block 1 for 2, copied 0 to 2, withdrawn 0 for 1, copied 2 to 1, and withdrawn 2
    /// for 3. Only one of these steps fits into the memory at a time.
    #[test]
    fn copies_into_memory_that_other_blocks_have_left_need_no_more() {
        let blocks = |numbers: &[u32]| numbers.iter().copied().map(BlockId).collect::<Vec<_>>();
        let copy = |source, destination| BlockCopy { source: BlockId(source), destination: BlockId(destination) };
        let mut resize = Resize { came: blocks(&[1, 3]), left: blocks(&[0, 2]) };
        let mut runner = TwoBlocks { present: BTreeSet::from([0, 1]), copied: Vec::new() };
        copy_one_by_one(&[copy(0, 2), copy(2, 1)], &mut resize, &mut runner);
        tell(&resize, &mut runner);
        assert_eq!(runner.copied, [(0, 2), (2, 1)]);
        assert_eq!(runner.present, BTreeSet::from([1, 3]));
    }
}

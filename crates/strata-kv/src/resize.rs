//! How many blocks there are may change while sequences hold some (M4): memory comes from elsewhere, and goes back.

use crate::{BlockId, BlockManager, block_pool::BlockPool};

/// Blocks that have changed sides since the last report, each in the list of the side on which it is now, even if it was
/// there before; both in ascending order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resize {
    /// Blocks that may be used now. Their content is undefined.
    pub came: Vec<BlockId>,
    /// Blocks without content that are not used before they are reported to have come: their memory may be given back.
    pub left: Vec<BlockId>,
}

impl BlockManager {
    /// Changes how many blocks may be used; at least 1, and at most [`crate::KvConfig::num_blocks`], the number that
    /// `Never` refers to. Growing adds free blocks. Shrinking withdraws free blocks, then cached ones as the eviction
    /// policy picks them, never used ones: what is missing then is withdrawn when sequences let go of it.
    pub fn set_usable(&mut self, blocks: usize) {
        self.pool.set_usable(blocks.clamp(1, self.config.num_blocks));
    }

    /// How many blocks may be used; more are there only while they are used.
    pub fn usable(&self) -> usize {
        self.pool.usable
    }

    /// Blocks below the number of [`usable`](Self::usable) ones that are withdrawn. At least as many others lie above it,
    /// more only while sequences hold more blocks than may be used: [`compact`](Self::compact) has so many to bring down. In
    /// constant time.
    pub fn blocks_above(&self) -> usize {
        self.pool.num_holes
    }

    /// Blocks that are there: free, cached or used.
    pub fn present(&self) -> usize {
        self.pool.present()
    }

    /// What has come and left since the last call, which should be asked right after [`set_usable`](Self::set_usable) and
    /// [`compact`](Self::compact), and otherwise now and then: blocks come only by these two, and must have memory before
    /// anything uses them. A manager begins with all blocks, none of them reported. Copies that are yet to be taken may
    /// concern blocks of both lists: see [`take_copies`](Self::take_copies).
    /// Takes time in proportion to the pool, but none if there is nothing to report.
    pub fn take_resize(&mut self) -> Resize {
        let mut resize = Resize::default();
        if std::mem::take(&mut self.pool.num_resized) == 0 {
            return resize;
        }
        for (index, block) in self.pool.blocks.iter_mut().enumerate() {
            if std::mem::take(&mut block.resized) {
                let side = if block.withdrawn { &mut resize.left } else { &mut resize.came };
                side.push(BlockId(index as u32));
            }
        }
        resize
    }
}

impl BlockPool {
    /// Blocks that are not withdrawn.
    pub(crate) fn present(&self) -> usize {
        self.blocks.len() - self.num_withdrawn
    }

    pub(crate) fn set_usable(&mut self, usable: usize) {
        if usable != self.usable {
            self.cached.resize(usable);
        }
        let between = self.usable.min(usable)..self.usable.max(usable);
        let withdrawn = self.blocks[between].iter().filter(|block| block.withdrawn).count();
        match usable > self.usable {
            true => self.num_holes += withdrawn,
            false => self.num_holes -= withdrawn,
        }
        self.usable = usable;
        while self.present() < usable {
            let block = self.lowest_withdrawn();
            self.come(block);
            self.free.push_back(block);
        }
        self.withdraw_excess();
    }

    /// Withdraws unused blocks until there are no more than there should be. The free block that was used longest ago
    /// goes first: it is the least likely to be in the processor's caches, or was never written at all.
    pub(crate) fn withdraw_excess(&mut self) {
        while self.present() > self.usable && self.available() > 0 {
            let block = self.free.pop_back().unwrap_or_else(|| self.evict(None));
            self.leave(block);
        }
    }

    /// # Panics
    /// When none is withdrawn.
    pub(crate) fn lowest_withdrawn(&mut self) -> BlockId {
        while !self.blocks[self.first_withdrawn].withdrawn {
            self.first_withdrawn += 1;
        }
        BlockId(self.first_withdrawn as u32)
    }

    /// `block`, which was withdrawn, has memory from now on.
    pub(crate) fn come(&mut self, block: BlockId) {
        self.num_withdrawn -= 1;
        self.num_holes -= usize::from(block.index() < self.usable);
        self.report(block, false);
    }

    /// `block`, which was in no list, has no memory from now on. It is reported although its coming may not have been: it
    /// may have been written to meanwhile.
    pub(crate) fn leave(&mut self, block: BlockId) {
        self.num_withdrawn += 1;
        self.num_holes += usize::from(block.index() < self.usable);
        self.first_withdrawn = self.first_withdrawn.min(block.index());
        self.report(block, true);
    }

    fn report(&mut self, block: BlockId, withdrawn: bool) {
        let state = &mut self.blocks[block.index()];
        state.withdrawn = withdrawn;
        self.num_resized += usize::from(!std::mem::replace(&mut state.resized, true));
    }
}

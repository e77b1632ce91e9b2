//! How many blocks there are may change while sequences hold some (M4): memory comes from elsewhere, and goes back.

use crate::{BlockId, BlockManager, block_pool::BlockPool};

/// Blocks that have changed sides since the last report, each in the list of the side on which it is now, even if it was
/// there before.
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

    /// Blocks that are there: free, cached or used.
    pub fn present(&self) -> usize {
        self.pool.present()
    }

    /// What has come and left since the last call, which should be asked right after [`set_usable`](Self::set_usable) and
    /// [`compact`](Self::compact), and otherwise now and then: blocks come only by these two, and must have memory before
    /// anything uses them. A manager begins with all blocks, none of them reported. Copies that are yet to be taken may
    /// concern blocks of both lists: see [`take_copies`](Self::take_copies).
    pub fn take_resize(&mut self) -> Resize {
        let BlockPool { resized, blocks, .. } = &mut self.pool;
        resized.iter().for_each(|block| blocks[block.index()].resized = false);
        let (left, came) = resized.drain(..).partition(|block| blocks[block.index()].withdrawn);
        Resize { came, left }
    }
}

impl BlockPool {
    /// Blocks that are not withdrawn.
    pub(crate) fn present(&self) -> usize {
        self.blocks.len() - self.withdrawn.len()
    }

    pub(crate) fn set_usable(&mut self, usable: usize) {
        self.usable = usable;
        while self.present() < usable {
            let block = self.withdrawn.pop().expect("what is not present is withdrawn");
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
            self.withdrawn.push(block);
            self.leave(block);
        }
    }

    /// `block` has memory from now on.
    pub(crate) fn come(&mut self, block: BlockId) {
        self.report(block, false);
    }

    /// `block` has no memory from now on. It is reported although its coming may not have been: it may have been
    /// written to meanwhile.
    pub(crate) fn leave(&mut self, block: BlockId) {
        self.report(block, true);
    }

    fn report(&mut self, block: BlockId, withdrawn: bool) {
        let state = &mut self.blocks[block.index()];
        state.withdrawn = withdrawn;
        if !std::mem::replace(&mut state.resized, true) {
            self.resized.push(block);
        }
    }
}

//! How many blocks there are may change while sequences hold some (M4): memory comes from elsewhere, and goes back.

use crate::{BlockId, BlockManager, block_list::BlockList, block_pool::BlockPool};

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

    /// What has come and left since the last call. A manager begins with all blocks, none of them reported.
    pub fn take_resize(&mut self) -> Resize {
        let Resized { came, left } = &mut self.pool.resized;
        let drain = |list: &mut BlockList| std::iter::from_fn(|| list.pop_front()).collect();
        Resize { came: drain(came), left: drain(left) }
    }
}

/// What is to be reported.
#[derive(Debug)]
pub(crate) struct Resized {
    pub(crate) came: BlockList,
    pub(crate) left: BlockList,
}

impl Resized {
    pub(crate) fn new(num_blocks: usize) -> Self {
        Self { came: BlockList::new(num_blocks), left: BlockList::new(num_blocks) }
    }

    fn come(&mut self, block: BlockId) {
        if self.left.contains(block) {
            self.left.remove(block);
        }
        self.came.push_back(block);
    }

    fn leave(&mut self, block: BlockId) {
        if self.came.contains(block) {
            self.came.remove(block);
        }
        // Although its coming was not reported: it may have been written to meanwhile.
        self.left.push_back(block);
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
            let block = self.withdrawn.pop_front().expect("what is not present is withdrawn");
            self.free.push_back(block);
            self.resized.come(block);
        }
        self.withdraw_excess();
    }

    /// Withdraws unused blocks until there are no more than there should be. The free block that was used longest ago
    /// goes first: it is the least likely to be in the processor's caches, or was never written at all.
    pub(crate) fn withdraw_excess(&mut self) {
        while self.present() > self.usable && self.available() > 0 {
            let block = self.free.pop_back().unwrap_or_else(|| self.evict());
            self.withdrawn.push_front(block);
            self.resized.leave(block);
        }
    }
}

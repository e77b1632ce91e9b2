//! Reports the changes of the cache to others.

use super::BlockManager;
use crate::changes::{CacheChange, CacheChanges};

impl BlockManager {
    /// Begins to record which blocks become findable and which are lost, for [`take_changes`](Self::take_changes). It
    /// must be called before any block can be found.
    pub fn record_changes(&mut self) {
        self.cache.contents_mut().record_changes();
    }

    /// Moves the changes since the last call to `changes`, whose memory is used for later ones. Gives no change unless
    /// changes are [recorded](Self::record_changes).
    pub fn take_changes(&mut self, changes: &mut CacheChanges) {
        changes.clear();
        if let Some(recorded) = self.cache.contents_mut().changes() {
            std::mem::swap(recorded, changes);
        }
    }

    /// Lists all blocks that can be found, in no order, each as a change that stores the block.
    pub fn findable(&self) -> impl Iterator<Item = CacheChange<'_>> {
        let contents = self.cache.contents();
        let findable = self.cache.blocks().contents().filter(|&(_, content)| contents.is_findable(content));
        findable.map(|(_, content)| contents.as_stored(content))
    }
}

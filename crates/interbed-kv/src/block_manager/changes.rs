//! Tells others which contents of the cache can be found.

use super::BlockManager;
use crate::changes::{CacheChange, CacheChanges};

impl BlockManager {
    /// Begins to record which blocks become findable and which are lost, to be [taken](Self::take_changes). The call
    /// comes before any block can be found.
    pub fn record_changes(&mut self) {
        self.cache.contents_mut().record_changes();
    }

    /// Moves what has changed since the last call into `changes`, whose memory is used for later changes. Gives no
    /// change unless changes are [recorded](Self::record_changes).
    pub fn take_changes(&mut self, changes: &mut CacheChanges) {
        changes.clear();
        if let Some(recorded) = self.cache.contents_mut().changes() {
            std::mem::swap(recorded, changes);
        }
    }

    /// Lists all blocks that can be found, in no order, each as a [`CacheChange::Stored`].
    pub fn findable(&self) -> impl Iterator<Item = CacheChange<'_>> {
        let contents = self.cache.contents();
        let findable = self.cache.blocks().contents().filter(|&(_, content)| contents.is_findable(content));
        findable.map(|(_, content)| contents.as_stored(content))
    }
}

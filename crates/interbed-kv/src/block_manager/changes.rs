//! Reports which contents of the cache are findable, for indexes that are kept elsewhere.

use super::BlockManager;
use crate::changes::{CacheChange, CacheChanges};

impl BlockManager {
    /// Begins to record which contents become findable and which no longer are; [`take_changes`](Self::take_changes)
    /// returns what was recorded. Contents that are findable before this call are not among the changes;
    /// [`findable`](Self::findable) lists them.
    pub fn record_changes(&mut self) {
        self.cache.contents_mut().record_changes();
    }

    /// Replaces `changes` by what has changed since the last call; the memory of `changes` is used for later changes.
    /// Leaves `changes` empty unless changes are [recorded](Self::record_changes).
    pub fn take_changes(&mut self, changes: &mut CacheChanges) {
        changes.clear();
        if let Some(recorded) = self.cache.contents_mut().changes() {
            std::mem::swap(recorded, changes);
        }
    }

    /// Lists all findable contents, in no order, each as a [`CacheChange::Stored`].
    pub fn findable(&self) -> impl Iterator<Item = CacheChange<'_>> {
        let contents = self.cache.contents();
        let findable = self.cache.blocks().contents().filter(|&(_, content)| contents.is_findable(content));
        findable.map(|(_, content)| contents.as_stored(content))
    }
}

//! What others are told of the cache.

use super::BlockManager;
use crate::changes::{CacheChange, CacheChanges};

impl BlockManager {
    /// From now on changes of what can be found are recorded, to be [taken](Self::take_changes). To be called before
    /// anything can be found.
    pub fn record_changes(&mut self) {
        self.cache.contents_mut().record_changes();
    }

    /// Moves the changes since the last call to `changes`, whose memory is used for those to come. Nothing changes
    /// unless they are [recorded](Self::record_changes).
    pub fn take_changes(&mut self, changes: &mut CacheChanges) {
        changes.clear();
        if let Some(recorded) = self.cache.contents_mut().changes() {
            std::mem::swap(recorded, changes);
        }
    }

    /// All that can be found, in no order, each as a change that stores it.
    pub fn findable(&self) -> impl Iterator<Item = CacheChange<'_>> {
        let contents = self.cache.contents();
        let findable = self.cache.blocks().contents().filter(|&(_, content)| contents.is_findable(content));
        findable.map(|(_, content)| contents.as_stored(content))
    }
}

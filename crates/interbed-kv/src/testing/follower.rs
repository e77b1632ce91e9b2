//! Keeps an index of the cache from its changes alone, as another process would.

use std::collections::BTreeMap;

use crate::{BlockHash, BlockManager, CacheChange, CacheChanges, TokenId};

/// The hash of the block that a block continues, and the block's tokens.
type Entry = (Option<BlockHash>, Vec<TokenId>);

/// An index of the cache that is kept from its changes alone.
pub struct Follower {
    /// Whether a hash identifies a block. If hashes were made to collide, only the number of blocks per hash is
    /// compared.
    exact: bool,
    entries: BTreeMap<u64, Vec<Entry>>, // [hash]
    changes: CacheChanges,
}

impl Follower {
    /// Makes the index for a manager. `exact` says that the manager's hashes do not collide.
    pub fn new(exact: bool) -> Self {
        Self { exact, entries: BTreeMap::new(), changes: CacheChanges::default() }
    }

    /// Takes the manager's changes, checks that each makes sense, and compares the index with what can be found.
    ///
    /// # Panics
    /// Panics if the index differs from what can be found.
    pub fn follow(&mut self, manager: &mut BlockManager) {
        let mut changes = std::mem::take(&mut self.changes);
        manager.take_changes(&mut changes);
        changes.iter().for_each(|change| self.apply(change));
        self.changes = changes;
        let mut found: BTreeMap<u64, Vec<Entry>> = BTreeMap::new();
        for change in manager.findable() {
            let CacheChange::Stored { hash, parent, tokens } = change else { panic!("{change:?} stores nothing") };
            found.entry(hash.0).or_default().push((parent, tokens.to_vec()));
        }
        assert!(self.entries.keys().eq(found.keys()), "an index that follows the changes has other blocks");
        for (hash, entries) in &self.entries {
            assert_eq!(entries.len(), found[hash].len());
            assert!(!self.exact || *entries == found[hash], "{entries:?} are not {:?}", found[hash]);
        }
    }

    fn apply(&mut self, change: CacheChange<'_>) {
        match change {
            CacheChange::Stored { hash, parent, tokens } => {
                let known = parent.is_none_or(|parent| self.entries.contains_key(&parent.0));
                assert!(known, "{hash:?} continues a block that cannot be found");
                self.entries.entry(hash.0).or_default().push((parent, tokens.to_vec()));
            }
            CacheChange::Removed { hash } => {
                let entries = self.entries.get_mut(&hash.0).expect("only what was stored is removed");
                entries.pop();
                if entries.is_empty() {
                    self.entries.remove(&hash.0);
                    let continued = self.entries.values().flatten().any(|(parent, _)| *parent == Some(hash));
                    assert!(!self.exact || !continued, "{hash:?} was removed before what continues it");
                }
            }
            CacheChange::Cleared => self.entries.clear(),
        }
    }
}

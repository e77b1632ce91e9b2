//! The roots of published chains. Each root is stored once, and a content names its root by a number of four bytes.

use std::collections::HashMap;

use crate::hash::{BlockHash, ChainHasher, ChainRoot};

/// Number of an entry of a [`RootTable`], valid while the entry has a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RootId(pub(crate) u32);

#[derive(Debug)]
struct Entry {
    root: ChainRoot,
    hash: BlockHash,
    holders: u32,
}

/// Table of roots by number. Equal roots have equal numbers, so that comparing parents is comparing numbers.
#[derive(Debug, Default)]
pub(crate) struct RootTable {
    ids: HashMap<ChainRoot, RootId>,
    entries: Vec<Option<Entry>>, // [root]
    vacant: Vec<RootId>,
}

impl RootTable {
    /// Returns the number of `root`; `None` if nothing holds the root.
    pub(crate) fn find(&self, root: &ChainRoot) -> Option<RootId> {
        self.ids.get(root).copied()
    }

    /// Returns the number of `root`, and adds one holder.
    pub(crate) fn hold(&mut self, root: &ChainRoot, hasher: &ChainHasher) -> RootId {
        if let Some(id) = self.find(root) {
            self.hold_again(id);
            return id;
        }
        let entry = Some(Entry { root: root.clone(), hash: hasher.root(root), holders: 1 });
        let id = self.vacant.pop().unwrap_or(RootId(self.entries.len() as u32));
        match self.entries.get_mut(id.0 as usize) {
            Some(vacant) => *vacant = entry,
            None => self.entries.push(entry),
        }
        self.ids.insert(root.clone(), id);
        id
    }

    pub(crate) fn hold_again(&mut self, id: RootId) {
        self.entry_mut(id).holders += 1;
    }

    /// Removes one holder of a root; the last one removes the entry.
    pub(crate) fn release(&mut self, id: RootId) {
        let entry = self.entry_mut(id);
        entry.holders -= 1;
        if entry.holders == 0
            && let Some(entry) = self.entries[id.0 as usize].take()
        {
            self.ids.remove(&entry.root);
            self.vacant.push(id);
        }
    }

    pub(crate) fn root(&self, id: RootId) -> &ChainRoot {
        &self.entry(id).root
    }

    pub(crate) fn hash(&self, id: RootId) -> BlockHash {
        self.entry(id).hash
    }

    pub(crate) fn holders(&self, id: RootId) -> u32 {
        self.entry(id).holders
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    fn entry(&self, id: RootId) -> &Entry {
        self.entries[id.0 as usize].as_ref().expect("a root is named by its holders only")
    }

    fn entry_mut(&mut self, id: RootId) -> &mut Entry {
        self.entries[id.0 as usize].as_mut().expect("a root is named by its holders only")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_roots_share_a_number_until_the_last_holder_goes() {
        let (mut table, hasher) = (RootTable::default(), ChainHasher::new(1));
        let [a, b] = ["a", "b"].map(|salt| ChainRoot::new(Some(salt), 0));
        let first = table.hold(&a, &hasher);
        assert_eq!(table.hold(&a.clone(), &hasher), first);
        let second = table.hold(&b, &hasher);
        assert_ne!(first, second);
        assert_eq!((table.hash(second), table.holders(first)), (hasher.root(&b), 2));
        table.release(first);
        assert_eq!(table.find(&a), Some(first));
        table.release(first);
        assert_eq!((table.find(&a), table.len()), (None, 1));
        // The number is used again for the next root.
        let c = ChainRoot::new(None, 7);
        assert_eq!((table.hold(&c, &hasher), table.find(&c)), (first, Some(first)));
    }
}

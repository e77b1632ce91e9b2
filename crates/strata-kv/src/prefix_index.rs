//! From a block's hash to the blocks that carry it: a hash table threaded through arrays, which never allocates.

use crate::{BlockHash, BlockId};

const NONE: u32 = u32::MAX;

/// Most blocks in one bucket. Honest hashes never come near it; hashes made to collide cannot make look-ups slow.
pub(crate) const BUCKET_MAX: usize = 32;

/// Multimap from hash to block. Different contents under one hash stand side by side; none replaces another.
#[derive(Debug)]
pub(crate) struct PrefixIndex {
    heads: Vec<u32>, // [bucket]
    next: Vec<u32>,  // [block]
}

impl PrefixIndex {
    /// For block ids below `capacity`.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { heads: vec![NONE; capacity.next_power_of_two()], next: vec![NONE; capacity] }
    }

    /// Blocks that may carry `hash`, and others of its bucket: the caller compares contents anyway.
    pub(crate) fn candidates(&self, hash: BlockHash) -> impl Iterator<Item = BlockId> {
        let mut at = self.heads[self.bucket(hash)];
        std::iter::from_fn(move || {
            let block = (at != NONE).then_some(BlockId(at))?;
            at = self.next[block.index()];
            Some(block)
        })
    }

    /// Adds `block`, which must not be in the index. False, with nothing changed, when its bucket is full.
    #[must_use]
    pub(crate) fn insert(&mut self, hash: BlockHash, block: BlockId) -> bool {
        if self.candidates(hash).take(BUCKET_MAX).count() == BUCKET_MAX {
            return false;
        }
        let bucket = self.bucket(hash);
        self.next[block.index()] = std::mem::replace(&mut self.heads[bucket], block.0);
        true
    }

    /// Takes `block` out, which was inserted under `hash`.
    pub(crate) fn remove(&mut self, hash: BlockHash, block: BlockId) {
        let bucket = self.bucket(hash);
        let next = self.next[block.index()];
        let before = self.candidates(hash).find(|before| self.next[before.index()] == block.0);
        match before {
            Some(before) => self.next[before.index()] = next,
            None => {
                assert_eq!(self.heads[bucket], block.0, "{block} is not in the index that it is removed from");
                self.heads[bucket] = next;
            }
        }
        self.next[block.index()] = NONE;
    }

    fn bucket(&self, hash: BlockHash) -> usize {
        // The length is a power of two.
        hash.0 as usize & (self.heads.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_hashes_stand_side_by_side() {
        let mut index = PrefixIndex::new(4);
        let hash = BlockHash(9);
        let blocks = [BlockId(2), BlockId(0), BlockId(3)];
        assert!(blocks.iter().all(|&block| index.insert(hash, block)));
        let found = |index: &PrefixIndex| index.candidates(hash).collect::<Vec<_>>();
        assert_eq!(found(&index), [BlockId(3), BlockId(0), BlockId(2)]);
        index.remove(hash, BlockId(0));
        assert_eq!(found(&index), [BlockId(3), BlockId(2)]);
        index.remove(hash, BlockId(3));
        index.remove(hash, BlockId(2));
        assert_eq!(found(&index), []);
    }

    #[test]
    fn a_full_bucket_takes_no_more() {
        let mut index = PrefixIndex::new(BUCKET_MAX + 1);
        let blocks = |count: usize| (0..count as u32).map(BlockId);
        assert!(blocks(BUCKET_MAX).all(|block| index.insert(BlockHash(0), block)));
        assert!(!index.insert(BlockHash(0), BlockId(BUCKET_MAX as u32)));
        index.remove(BlockHash(0), BlockId(7));
        assert!(index.insert(BlockHash(0), BlockId(BUCKET_MAX as u32)));
    }
}

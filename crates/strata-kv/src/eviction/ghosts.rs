//! What was evicted lately, known by hash alone.

use crate::{BlockHash, BlockId, prefix_index::PrefixIndex};

/// The last `capacity` hashes that were inserted, less those taken since. Contents may share one; then one is taken for
/// the other, which harms nobody. Where more hashes fall together than honest ones do, some are lost.
#[derive(Debug)]
pub(super) struct Ghosts {
    hashes: Vec<BlockHash>, // [slot], below `capacity` in use
    /// From hash to slot; the index calls it a block.
    index: PrefixIndex,
    /// The slot to be overwritten next.
    oldest: usize,
    capacity: usize,
}

impl Ghosts {
    /// `capacity` of 0 is taken for 1.
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self { hashes: vec![BlockHash::default(); capacity], index: PrefixIndex::new(capacity), oldest: 0, capacity }
    }

    /// Keeps at most `capacity` from now on, of which 0 is taken for 1, and no more than at the start.
    pub(super) fn resize(&mut self, capacity: usize) {
        let capacity = capacity.clamp(1, self.hashes.len());
        (capacity..self.capacity).for_each(|slot| self.forget(slot));
        self.capacity = capacity;
        self.oldest %= capacity;
    }

    pub(super) fn insert(&mut self, hash: BlockHash) {
        self.forget(self.oldest);
        self.hashes[self.oldest] = hash;
        // Where the index has no room for it, this ghost is lost.
        let _ = self.index.insert(hash, BlockId(self.oldest as u32));
        self.oldest = (self.oldest + 1) % self.capacity;
    }

    /// Whether `hash` was there; it is not any more.
    pub(super) fn take(&mut self, hash: BlockHash) -> bool {
        let slot = self.index.candidates(hash).find(|slot| self.hashes[slot.index()] == hash);
        if let Some(slot) = slot {
            self.index.remove(hash, slot);
        }
        slot.is_some()
    }

    fn forget(&mut self, slot: usize) {
        let (hash, slot) = (self.hashes[slot], BlockId(slot as u32));
        if self.index.candidates(hash).any(|other| other == slot) {
            self.index.remove(hash, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix_index::BUCKET_MAX;

    #[test]
    fn the_latest_are_known_once() {
        let mut ghosts = Ghosts::new(100);
        (0..1000).for_each(|number| ghosts.insert(BlockHash(number)));
        assert!((0..900).all(|number| !ghosts.take(BlockHash(number))));
        assert!((900..1000).all(|number| ghosts.take(BlockHash(number))));
        assert!((0..1000).all(|number| !ghosts.take(BlockHash(number))));
    }

    #[test]
    fn fewer_are_known_in_less_room() {
        let mut ghosts = Ghosts::new(100);
        (0..100).for_each(|number| ghosts.insert(BlockHash(number)));
        ghosts.resize(10);
        (100..200).for_each(|number| ghosts.insert(BlockHash(number)));
        assert!((0..190).all(|number| !ghosts.take(BlockHash(number))));
        assert!((190..200).all(|number| ghosts.take(BlockHash(number))));
        ghosts.resize(1000);
        (200..300).for_each(|number| ghosts.insert(BlockHash(number)));
        assert!((200..300).all(|number| ghosts.take(BlockHash(number))));
    }

    #[test]
    fn hashes_that_fall_together_are_lost_and_harm_no_others() {
        let mut ghosts = Ghosts::new(100);
        ghosts.insert(BlockHash(1));
        (0..99).for_each(|_| ghosts.insert(BlockHash(7)));
        assert!(ghosts.take(BlockHash(1)));
        assert_eq!((0..100).filter(|_| ghosts.take(BlockHash(7))).count(), BUCKET_MAX);
        assert!(!Ghosts::new(0).take(BlockHash(0)));
    }
}

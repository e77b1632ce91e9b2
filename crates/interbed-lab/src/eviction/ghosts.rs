//! The contents that were evicted recently, known by their hashes alone.

use interbed_kv::BlockHash;

const NONE: u32 = u32::MAX;

/// The most hashes in one bucket. Ordinary hashes never fill a bucket; the limit keeps look-ups fast where hashes were
/// made to collide.
const BUCKET_MAX: usize = 32;

/// The last `capacity` hashes that were inserted, without those that were taken since. If two contents have the same
/// hash, one is mistaken for the other, which is harmless. If more than [`BUCKET_MAX`] hashes share a bucket, some are
/// lost.
#[derive(Debug)]
pub(super) struct Ghosts {
    hashes: Vec<BlockHash>, // [slot], below `capacity` in use
    /// The first slot of each bucket; the slots of one bucket form a list through `next`.
    heads: Vec<u32>, // [bucket]
    next: Vec<u32>,         // [slot]
    /// The slot that is overwritten next.
    oldest: usize,
    capacity: usize,
}

impl Ghosts {
    /// Creates an empty set of at most `capacity` hashes, where 0 counts as 1.
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self {
            hashes: vec![BlockHash::default(); capacity],
            heads: vec![NONE; capacity.next_power_of_two()],
            next: vec![NONE; capacity],
            oldest: 0,
            capacity,
        }
    }

    /// Keeps at most `capacity` hashes from now on, where 0 counts as 1. A capacity above the initial one counts as the
    /// initial one.
    pub(super) fn resize(&mut self, capacity: usize) {
        let capacity = capacity.clamp(1, self.hashes.len());
        (capacity..self.capacity).for_each(|slot| self.forget(slot));
        self.capacity = capacity;
        self.oldest %= capacity;
    }

    pub(super) fn insert(&mut self, hash: BlockHash) {
        let slot = self.oldest;
        self.forget(slot);
        self.hashes[slot] = hash;
        // If the bucket is full, the hash is lost.
        if self.bucket(hash).take(BUCKET_MAX).count() < BUCKET_MAX {
            let head = self.bucket_of(hash);
            self.next[slot] = std::mem::replace(&mut self.heads[head], slot as u32);
        }
        self.oldest = (slot + 1) % self.capacity;
    }

    /// Removes `hash`, and returns whether it was there.
    pub(super) fn take(&mut self, hash: BlockHash) -> bool {
        let slot = self.bucket(hash).find(|&slot| self.hashes[slot] == hash);
        slot.map(|slot| self.forget(slot)).is_some()
    }

    /// Removes `slot` from its bucket, if it is in one.
    fn forget(&mut self, slot: usize) {
        let head = self.bucket_of(self.hashes[slot]);
        let before = self.bucket(self.hashes[slot]).take_while(|&other| other != slot).last();
        // A slot that was lost or taken before is in no bucket, and nothing follows it.
        let next = std::mem::replace(&mut self.next[slot], NONE);
        if self.heads[head] == slot as u32 {
            self.heads[head] = next;
        } else if let Some(before) = before.filter(|&before| self.next[before] == slot as u32) {
            self.next[before] = next;
        }
    }

    fn bucket(&self, hash: BlockHash) -> impl Iterator<Item = usize> {
        let mut at = self.heads[self.bucket_of(hash)];
        std::iter::from_fn(move || {
            let slot = (at != NONE).then_some(at as usize)?;
            at = self.next[slot];
            Some(slot)
        })
    }

    fn bucket_of(&self, hash: BlockHash) -> usize {
        // The number of buckets is a power of two.
        hash.0 as usize & (self.heads.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

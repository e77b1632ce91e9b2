//! What was evicted lately, known by hash alone.

use strata_kv::BlockHash;

const NONE: u32 = u32::MAX;

/// Most hashes in one bucket. Honest ones never come near it; hashes made to collide cannot make look-ups slow.
const BUCKET_MAX: usize = 32;

/// The last `capacity` hashes that were inserted, less those taken since. Contents may share one; then one is taken for
/// the other, which harms nobody. Where more hashes fall together than honest ones do, some are lost.
#[derive(Debug)]
pub(super) struct Ghosts {
    hashes: Vec<BlockHash>, // [slot], below `capacity` in use
    /// Slots of one bucket are threaded through `next`.
    heads: Vec<u32>, // [bucket]
    next: Vec<u32>,         // [slot]
    /// The slot to be overwritten next.
    oldest: usize,
    capacity: usize,
}

impl Ghosts {
    /// `capacity` of 0 is taken for 1.
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

    /// Keeps at most `capacity` from now on, of which 0 is taken for 1, and no more than at the start.
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
        // Where its bucket is full, this ghost is lost.
        if self.bucket(hash).take(BUCKET_MAX).count() < BUCKET_MAX {
            let head = self.bucket_of(hash);
            self.next[slot] = std::mem::replace(&mut self.heads[head], slot as u32);
        }
        self.oldest = (slot + 1) % self.capacity;
    }

    /// Whether `hash` was there; it is not any more.
    pub(super) fn take(&mut self, hash: BlockHash) -> bool {
        let slot = self.bucket(hash).find(|&slot| self.hashes[slot] == hash);
        slot.map(|slot| self.forget(slot)).is_some()
    }

    /// Takes `slot` out of its bucket, if it is there.
    fn forget(&mut self, slot: usize) {
        let head = self.bucket_of(self.hashes[slot]);
        let before = self.bucket(self.hashes[slot]).take_while(|&other| other != slot).last();
        // Lost or taken before, it is in no bucket, and nothing follows it.
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
        // The length is a power of two.
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

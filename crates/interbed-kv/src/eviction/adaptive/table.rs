//! A bounded table of contents, known by hash.

use std::num::NonZeroU16;

use super::past::Past;

const WAYS: usize = 8;

/// Entry of a content in the table; 8 bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// Time when the content was last used.
    pub(super) used: u32,
    /// Bits of the content's hash. They are not zero, so that an `Option<Entry>` takes no more space.
    tag: NonZeroU16,
    pub(super) past: Past,
}

/// Hash table in sets of 8, in which the least recently used entry of a full set is replaced. A few contents are
/// mistaken for others, which is harmless: one in four thousand, doubling with every doubling of the number of sets
/// beyond 2^14.
#[derive(Debug)]
pub(super) struct Table {
    sets: Vec<[Option<Entry>; WAYS]>,
}

impl Table {
    pub(super) fn new(entries: usize) -> Self {
        Self { sets: vec![[None; WAYS]; entries.div_ceil(WAYS)] }
    }

    /// Forgets everything, and has room for `entries` entries from now on, at most as many as at the start.
    pub(super) fn restart(&mut self, entries: usize) {
        self.sets.clear();
        self.sets.resize(entries.div_ceil(WAYS), [None; WAYS]);
    }

    pub(super) fn get(&mut self, hash: u32) -> Option<&mut Entry> {
        self.set_of(hash).iter_mut().flatten().find(|entry| entry.tag == tag(hash))
    }

    pub(super) fn take(&mut self, hash: u32) -> Option<Entry> {
        let known = |entry: &&mut Option<Entry>| entry.is_some_and(|entry| entry.tag == tag(hash));
        self.set_of(hash).iter_mut().find(known)?.take()
    }

    /// Adds, at `now`, a content that is not in the table, and returns the entry that it replaces.
    pub(super) fn insert(&mut self, hash: u32, used: u32, past: Past, now: u32) -> Option<Entry> {
        let idle = |entry: &&mut Option<Entry>| entry.map_or(u32::MAX, |entry| now.wrapping_sub(entry.used));
        let oldest = self.set_of(hash).iter_mut().max_by_key(idle).expect("a set has ways");
        oldest.replace(Entry { used, tag: tag(hash), past })
    }

    pub(super) fn num_sets(&self) -> usize {
        self.sets.len()
    }

    /// Returns the number of the set of `hash`: the upper bits of the hash, scaled to the number of sets.
    pub(super) fn place(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.sets.len() as u64) >> 32) as usize
    }

    pub(super) fn set(&self, place: usize) -> impl Iterator<Item = &Entry> {
        self.sets[place].iter().flatten()
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.sets.as_slice())
    }

    fn set_of(&mut self, hash: u32) -> &mut [Option<Entry>; WAYS] {
        let place = self.place(hash);
        &mut self.sets[place]
    }
}

/// Returns bits 3 to 17 of the hash. The bits below choose whether the hash is sampled, and the uppermost bits choose
/// the set. In tables of more than 2^14 sets, some of the bits that choose the set are in the tag too, where they
/// distinguish nothing.
fn tag(hash: u32) -> NonZeroU16 {
    NonZeroU16::MIN | (hash >> 3 << 1) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unused_of_a_full_set_gives_way() {
        let mut table = Table::new(WAYS);
        let hash = |number: u32| number << 8;
        assert!((0..8).all(|number| table.insert(hash(number), 100 - number, Past::default(), 100).is_none()));
        assert_eq!(table.insert(hash(8), 101, Past::default(), 101).map(|entry| entry.used), Some(93));
        assert!(table.get(hash(7)).is_none());
        assert_eq!(table.take(hash(3)).map(|entry| entry.used), Some(97));
        assert!(table.take(hash(3)).is_none());
        assert_eq!(table.set(0).count(), 7);
    }

    #[test]
    fn an_entry_takes_eight_bytes() {
        assert_eq!(size_of::<Option<Entry>>(), 8);
    }
}

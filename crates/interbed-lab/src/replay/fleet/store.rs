//! The remote tier is a store that all servers share. It is keyed by content, and forgets what was not used for the
//! longest time.

use std::collections::BTreeSet;

use super::chains::ContentNumber;

/// The contents that any server can fetch. What a server computes is written to the store at once, unless the store has
/// it.
///
/// Writing again what a server evicts and the store has lost up to doubled the bytes on Mooncake's trace, for a point
/// more with one router and a point less with another. The store learns of what it is asked for and given, but of no
/// hit in a server's own memory. The tail of a prompt counts as used before its head, so that the store forgets the
/// tail first: nobody can use a tail without its head.
#[derive(Debug)]
pub(super) struct Store {
    capacity: usize,
    last_uses: Vec<u64>, // [content], 0 while it is not here
    order: BTreeSet<(u64, ContentNumber)>,
    uses: u64,
    written: u64,
}

impl Store {
    /// Creates an empty store of `capacity` blocks, for contents below `distinct`.
    pub fn new(capacity: usize, distinct: usize) -> Self {
        Self { capacity, last_uses: vec![0; distinct], order: BTreeSet::new(), uses: 0, written: 0 }
    }

    /// Returns how many of `wanted`, from the first on, are in the store, so that a server fetches them.
    pub fn fetch(&mut self, wanted: &[ContentNumber]) -> usize {
        let found = wanted.iter().take_while(|&&content| self.contains(content)).count();
        wanted[..found].iter().rev().for_each(|&content| self.touch(content));
        found
    }

    /// Writes those of `contents` that the store does not have. A server has computed them, and gives them in the order
    /// of the prompt.
    pub fn take(&mut self, contents: &[ContentNumber]) {
        contents.iter().rev().for_each(|&content| self.write(content));
    }

    /// Returns the number of blocks that all servers together have written.
    pub fn written(&self) -> u64 {
        self.written
    }

    fn contains(&self, content: ContentNumber) -> bool {
        self.last_uses[content as usize] > 0
    }

    fn write(&mut self, content: ContentNumber) {
        if !self.contains(content) {
            self.written += 1;
        }
        self.touch(content);
        while self.order.len() > self.capacity
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.last_uses[oldest as usize] = 0;
        }
    }

    fn touch(&mut self, content: ContentNumber) {
        self.uses += 1;
        let before = std::mem::replace(&mut self.last_uses[content as usize], self.uses);
        self.order.remove(&(before, content));
        self.order.insert((self.uses, content));
    }
}

#[cfg(test)]
mod tests {
    use interbed_kv::testing::Rng;

    use super::*;

    #[test]
    fn the_longest_unused_is_forgotten_tails_first() {
        let mut store = Store::new(3, 10);
        store.take(&[1, 2, 3]);
        assert_eq!((store.fetch(&[1, 2, 3]), store.fetch(&[2, 9]), store.written()), (3, 1, 3));
        // The block that was longest not asked for gives way.
        store.take(&[4]);
        assert_eq!((store.fetch(&[1, 3]), store.fetch(&[2]), store.fetch(&[4]), store.written()), (1, 1, 1, 4));
        // What is here is not written again.
        store.take(&[4, 2]);
        assert_eq!(store.written(), 4);
    }

    #[test]
    fn of_a_prompt_that_is_larger_the_head_stays() {
        let mut store = Store::new(2, 10);
        store.take(&[1, 2, 3, 4]);
        assert_eq!((store.fetch(&[1, 2, 3]), store.written()), (2, 4));
    }

    #[test]
    fn behaves_like_a_list() {
        let mut random = Rng(7);
        for capacity in [1, 2, 5, 20] {
            let (mut store, mut list, mut written) = (Store::new(capacity, 30), Vec::new(), 0);
            for _ in 0..2000 {
                let contents: Vec<u32> = (0..=random.below(6)).map(|_| random.below(30) as u32).collect();
                let asked = random.once_in(3);
                let used = match asked {
                    true => contents.iter().take_while(|content| list.contains(*content)).count(),
                    false => contents.len(),
                };
                match asked {
                    true => assert_eq!(store.fetch(&contents), used),
                    false => store.take(&contents),
                }
                for content in contents[..used].iter().rev() {
                    written += u64::from(!list.contains(content));
                    list.retain(|other| other != content);
                    list.push(*content);
                    if list.len() > capacity {
                        list.remove(0);
                    }
                }
                assert_eq!(store.written(), written);
            }
        }
    }
}

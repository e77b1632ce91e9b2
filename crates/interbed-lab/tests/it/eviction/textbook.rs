//! Compares the textbook policies with plain versions of them.

use std::collections::VecDeque;

use interbed_kv::{BlockHash, BlockId, Content, EvictionKind, EvictionPolicy, OwnerId};
use interbed_lab::eviction::policy;

use interbed_kv::testing::{Rng, mix};
/// A cache of chains of one block, which drives its policy as the block manager does. It has one block more than may be
/// used, so that what is cached can move.
struct Flat {
    policy: Box<dyn EvictionPolicy>,
    keys: Vec<Option<u64>>, // [block]
    usable: usize,
}

impl Flat {
    fn new(kind: EvictionKind, usable: usize) -> Self {
        let mut policy = kind.build(usable + 1);
        policy.resize(usable);
        Self { policy, keys: vec![None; usable + 1], usable }
    }

    /// Caches `key`, and returns whether it was cached before. Its block may move while it is held, and any other block
    /// at any time.
    fn access(&mut self, key: u64, rng: &mut Rng) -> bool {
        if rng.once_in(4) {
            self.move_one(rng.below(self.keys.len()));
        }
        let found = self.keys.iter().position(|&other| other == Some(key));
        let mut index = found.unwrap_or_else(|| match self.policy.len() < self.usable {
            true => self.vacant(),
            false => self.policy.victim(OwnerId(0)).expect("all are cached").index(),
        });
        let block = BlockId(index as u32);
        match found {
            Some(_) => self.policy.hit(block),
            None => self.policy.publish(block, Content { hash: BlockHash(mix(key)), parent: None, owner: OwnerId(0) }),
        }
        self.keys[index] = Some(key);
        if rng.once_in(4) {
            index = self.move_one(index);
        }
        self.policy.insert(BlockId(index as u32), true);
        found.is_some()
    }

    /// Moves the content of a block, if it has any, to a block that has none, and returns the latter.
    fn move_one(&mut self, from: usize) -> usize {
        let to = self.vacant();
        if self.keys[from].is_some() {
            self.policy.moved(BlockId(from as u32), BlockId(to as u32));
            self.keys.swap(from, to);
        }
        to
    }

    fn vacant(&self) -> usize {
        self.keys.iter().position(Option::is_none).expect("a block is spare")
    }
}

/// The policies as in textbooks: lists of keys, the next to be evicted first, which are searched from end to end.
#[derive(Default)]
struct Textbook {
    capacity: usize,
    lists: [VecDeque<(u64, usize)>; 2], // keys with their uses
    ghosts: VecDeque<Option<u64>>,
}

impl Textbook {
    fn find(&self, key: u64) -> Option<(usize, usize)> {
        let place = |list: usize| Some((list, self.lists[list].iter().position(|&(other, _)| other == key)?));
        place(0).or_else(|| place(1))
    }

    fn is_full(&self) -> bool {
        self.lists[0].len() + self.lists[1].len() == self.capacity
    }

    fn push_ghost(&mut self, key: u64, capacity: usize) {
        self.ghosts.push_back(Some(key));
        if self.ghosts.len() > capacity.max(1) {
            self.ghosts.pop_front();
        }
    }

    fn take_ghost(&mut self, key: u64) -> bool {
        let ghost = self.ghosts.iter_mut().find(|ghost| **ghost == Some(key));
        ghost.map(|ghost| *ghost = None).is_some()
    }

    fn lru(&mut self, key: u64) -> bool {
        let found = self.find(key);
        match found {
            Some((_, at)) => drop(self.lists[0].remove(at)),
            None if self.is_full() => drop(self.lists[0].pop_front()),
            None => {}
        }
        self.lists[0].push_back((key, 0));
        found.is_some()
    }

    fn slru(&mut self, key: u64) -> bool {
        let Some((list, at)) = self.find(key) else {
            if self.is_full() && self.lists[0].pop_front().is_none() {
                self.lists[1].pop_front();
            }
            self.lists[0].push_back((key, 0));
            return false;
        };
        self.lists[list].remove(at);
        self.lists[1].push_back((key, 0));
        if self.lists[1].len() > self.capacity / 2 {
            let oldest = self.lists[1].pop_front().unwrap();
            self.lists[0].push_back(oldest);
        }
        true
    }

    fn lfu(&mut self, key: u64) -> bool {
        let found = self.find(key);
        let uses = found.map_or(0, |(_, at)| self.lists[0].remove(at).unwrap().1 + 1);
        if found.is_none() && self.is_full() {
            let least = (0..self.capacity).min_by_key(|&at| self.lists[0][at].1).unwrap();
            self.lists[0].remove(least);
        }
        self.lists[0].push_back((key, uses));
        found.is_some()
    }

    fn two_queue(&mut self, key: u64) -> bool {
        if let Some((list, at)) = self.find(key) {
            if list == 1 {
                let entry = self.lists[1].remove(at).unwrap();
                self.lists[1].push_back(entry);
            }
            return true;
        }
        if self.is_full() {
            if self.lists[0].len() > self.capacity / 4 || self.lists[1].is_empty() {
                let (evicted, _) = self.lists[0].pop_front().unwrap();
                self.push_ghost(evicted, self.capacity / 2);
            } else {
                self.lists[1].pop_front();
            }
        }
        let list = usize::from(self.take_ghost(key));
        self.lists[list].push_back((key, 0));
        false
    }

    fn s3_fifo(&mut self, key: u64) -> bool {
        if let Some((list, at)) = self.find(key) {
            let uses = &mut self.lists[list][at].1;
            *uses = (*uses + 1).min(3);
            return true;
        }
        while self.is_full() {
            if self.lists[0].len() > self.capacity / 10 || self.lists[1].is_empty() {
                let (oldest, uses) = self.lists[0].pop_front().unwrap();
                match uses {
                    0 | 1 => self.push_ghost(oldest, self.capacity),
                    _ => self.lists[1].push_back((oldest, 0)),
                }
            } else {
                let (oldest, uses) = self.lists[1].pop_front().unwrap();
                if uses > 0 {
                    self.lists[1].push_back((oldest, uses - 1));
                }
            }
        }
        let list = usize::from(self.take_ghost(key));
        self.lists[list].push_back((key, 0));
        false
    }
}

#[test]
fn known_policies_do_what_textbooks_say() {
    type Access = fn(&mut Textbook, u64) -> bool;
    let textbooks: [(&str, Access); 5] = [
        ("lru", Textbook::lru),
        ("slru", Textbook::slru),
        ("lfu", Textbook::lfu),
        ("s3-fifo", Textbook::s3_fifo),
        ("2q", Textbook::two_queue),
    ];
    for (name, access) in textbooks {
        let kind = policy(name).expect("a textbook's");
        for (seed, capacity) in [1, 2, 9, 39, 100].into_iter().enumerate() {
            let (mut flat, mut textbook) = (Flat::new(kind, capacity), Textbook { capacity, ..Textbook::default() });
            let mut rng = Rng(seed as u64);
            let mut hits = 0;
            for step in 0..6000 {
                // A few keys are used often and many seldom, and the keys change as time goes on.
                let key = (rng.below(200) * rng.below(200) / 100 + step / 1000 * 20) as u64;
                let hit = flat.access(key, &mut rng);
                assert_eq!(hit, access(&mut textbook, key), "{kind} of {capacity}, seed {seed}, step {step}");
                hits += usize::from(hit);
            }
            assert!(hits > 0, "{kind} of {capacity} never found anything");
        }
    }
}

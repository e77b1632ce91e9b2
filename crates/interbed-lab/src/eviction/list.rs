//! A linked list of block ids in an array. Every operation takes O(1), also the removal from the middle.

use interbed_kv::BlockId;

const NONE: u32 = u32::MAX;
/// The value of `previous` for a block that is in no list. Block ids are far below it (see
/// [`interbed_kv::BLOCKS_MAX`]).
const ABSENT: u32 = u32::MAX - 1;

/// A doubly linked list of block ids below a fixed capacity. Each block is in it at most once.
#[derive(Debug)]
pub(super) struct BlockList {
    links: Vec<Link>, // [block]
    head: u32,
    tail: u32,
    len: usize,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    previous: u32,
    next: u32,
}

impl BlockList {
    pub(super) fn new(capacity: usize) -> Self {
        Self { links: vec![Link { previous: ABSENT, next: NONE }; capacity], head: NONE, tail: NONE, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn contains(&self, block: BlockId) -> bool {
        self.links[block.index()].previous != ABSENT
    }

    pub(super) fn front(&self) -> Option<BlockId> {
        (self.head != NONE).then_some(BlockId(self.head))
    }

    pub(super) fn push_front(&mut self, block: BlockId) {
        self.link(block, NONE, self.head);
    }

    pub(super) fn push_back(&mut self, block: BlockId) {
        self.link(block, self.tail, NONE);
    }

    /// Removes `block`, wherever it is in the list.
    pub(super) fn remove(&mut self, block: BlockId) {
        assert!(self.contains(block), "{block} is not in the list that it is removed from");
        let Link { previous, next } = self.links[block.index()];
        match previous {
            NONE => self.head = next,
            previous => self.links[previous as usize].next = next,
        }
        match next {
            NONE => self.tail = previous,
            next => self.links[next as usize].previous = previous,
        }
        self.links[block.index()] = Link { previous: ABSENT, next: NONE };
        self.len -= 1;
    }

    /// Puts `to`, which must not be in the list, in the place of `from`.
    pub(super) fn replace(&mut self, from: BlockId, to: BlockId) {
        let Link { previous, next } = self.links[from.index()];
        self.remove(from);
        self.link(to, previous, next);
    }

    fn link(&mut self, block: BlockId, previous: u32, next: u32) {
        assert!(!self.contains(block), "{block} is in the list already");
        self.links[block.index()] = Link { previous, next };
        match previous {
            NONE => self.head = block.0,
            previous => self.links[previous as usize].next = block.0,
        }
        match next {
            NONE => self.tail = block.0,
            next => self.links[next as usize].previous = block.0,
        }
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn behaves_like_a_deque() {
        let mut list = BlockList::new(8);
        let mut expect = VecDeque::new();
        let mut state = 1u64;
        for _ in 0..6000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let block = BlockId((state >> 60) as u32 % 8);
            if list.contains(block) {
                let other = BlockId((state >> 50) as u32 % 8);
                match state >> 40 & 1 {
                    0 if !list.contains(other) => {
                        list.replace(block, other);
                        *expect.iter_mut().find(|place| **place == block).unwrap() = other;
                    }
                    _ => {
                        list.remove(block);
                        expect.retain(|&other| other != block);
                    }
                }
            } else if state >> 41 & 1 == 0 {
                list.push_front(block);
                expect.push_front(block);
            } else {
                list.push_back(block);
                expect.push_back(block);
            }
            assert_eq!((list.len(), list.front()), (expect.len(), expect.front().copied()));
            assert!((0..8).map(BlockId).all(|block| list.contains(block) == expect.contains(&block)));
        }
    }

    #[test]
    fn is_emptied_from_front_to_back() {
        let mut list = BlockList::new(3);
        [2, 0, 1].into_iter().for_each(|block| list.push_back(BlockId(block)));
        let taken = std::iter::from_fn(|| list.front().inspect(|&block| list.remove(block)));
        assert_eq!(taken.collect::<Vec<_>>(), [2, 0, 1].map(BlockId));
    }

    #[test]
    #[should_panic(expected = "in the list already")]
    fn a_block_cannot_be_queued_twice() {
        let mut list = BlockList::new(1);
        list.push_back(BlockId(0));
        list.push_front(BlockId(0));
    }
}

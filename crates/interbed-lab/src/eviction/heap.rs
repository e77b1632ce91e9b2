//! A priority queue of blocks from which any block can be removed.

use interbed_kv::BlockId;

use super::step;

const ABSENT: u32 = u32::MAX;
/// The number of children of a node. A shallow heap touches fewer cache lines than a deep one.
const ARITY: usize = 4;

/// Blocks with one key each, of which the least comes first. Operations take O(log n) and allocate nothing.
#[derive(Debug)]
pub(super) struct Heap {
    keys: Vec<u64>,      // [block]
    positions: Vec<u32>, // [block], in `order`
    order: Vec<u32>,     // no parent's key is above its children's
}

impl Heap {
    /// Creates an empty heap for block ids below `num_blocks`.
    pub(super) fn new(num_blocks: usize) -> Self {
        Self { keys: vec![0; num_blocks], positions: vec![ABSENT; num_blocks], order: Vec::with_capacity(num_blocks) }
    }

    /// Adds `block`, which must not be in the heap.
    pub(super) fn push(&mut self, block: BlockId, key: u64) {
        debug_assert!(!self.contains(block), "{block} is in the heap already");
        self.keys[block.index()] = key;
        self.order.push(block.0);
        self.sift_up(self.order.len() - 1, block.0);
    }

    /// Removes and returns a block with the least key.
    pub(super) fn pop(&mut self) -> Option<BlockId> {
        let least = BlockId(*self.order.first()?);
        self.remove(least);
        Some(least)
    }

    /// Removes `block`, if it is in the heap.
    pub(super) fn remove(&mut self, block: BlockId) {
        let at = std::mem::replace(&mut self.positions[block.index()], ABSENT);
        let Some(last) = (at != ABSENT).then(|| self.order.pop()).flatten() else { return };
        let at = at as usize;
        if at < self.order.len() {
            let at = self.sift_up(at, last);
            self.sift_down(at, last);
        }
    }

    /// Puts `to`, which must not be in the heap, in the place of `from`, if `from` is in the heap.
    pub(super) fn moved(&mut self, from: BlockId, to: BlockId) {
        debug_assert!(!self.contains(to), "{to} is in the heap already");
        let at = std::mem::replace(&mut self.positions[from.index()], ABSENT);
        self.keys[to.index()] = self.keys[from.index()];
        self.positions[to.index()] = at;
        if at != ABSENT {
            self.order[at as usize] = to.0;
        }
    }

    pub(super) fn contains(&self, block: BlockId) -> bool {
        self.positions[block.index()] != ABSENT
    }

    /// Moves `block` up from `at` to the position where it belongs, and returns that position.
    fn sift_up(&mut self, mut at: usize, block: u32) -> usize {
        while at > 0 {
            step();
            let parent = (at - 1) / ARITY;
            let above = self.order[parent];
            if self.keys[above as usize] <= self.keys[block as usize] {
                break;
            }
            self.put(at, above);
            at = parent;
        }
        self.put(at, block);
        at
    }

    /// Moves `block` down from `at` to the position where it belongs.
    fn sift_down(&mut self, mut at: usize, block: u32) {
        loop {
            step();
            let children = (ARITY * at + 1).min(self.order.len())..(ARITY * at + ARITY + 1).min(self.order.len());
            let least = children.min_by_key(|&child| self.keys[self.order[child] as usize]);
            let Some(child) = least.filter(|&child| self.keys[self.order[child] as usize] < self.keys[block as usize])
            else {
                return self.put(at, block);
            };
            self.put(at, self.order[child]);
            at = child;
        }
    }

    fn put(&mut self, at: usize, block: u32) {
        self.order[at] = block;
        self.positions[block as usize] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn random_operations_match_a_naive_queue() {
        let mut heap = Heap::new(40);
        let mut expect = BTreeMap::new();
        let mut state = 5u64;
        for _ in 0..30_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (block, other) = (BlockId((state >> 33) as u32 % 40), BlockId((state >> 42) as u32 % 40));
            match state >> 60 {
                0..8 if !expect.contains_key(&block) => {
                    let key = state >> 50 & 15;
                    heap.push(block, key);
                    expect.insert(block, key);
                }
                8..11 => {
                    heap.remove(block);
                    expect.remove(&block);
                }
                11..14 => {
                    let least = heap.pop();
                    let key = least.and_then(|block| expect.remove(&block));
                    assert!(expect.values().all(|&other| key.is_some_and(|key| key <= other)));
                }
                14.. if !expect.contains_key(&other) && block != other => {
                    heap.moved(block, other);
                    if let Some(key) = expect.remove(&block) {
                        expect.insert(other, key);
                    }
                }
                _ => {}
            }
            assert!((0..40).map(BlockId).all(|block| heap.contains(block) == expect.contains_key(&block)));
        }
        assert!(!expect.is_empty());
    }
}

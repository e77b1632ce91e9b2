//! Queues of blocks, with the state that decides which of the blocks may be evicted.

use interbed_kv::BlockId;

use super::{list::BlockList, step};

/// A set of `QUEUES` queues (at most 256), of which each block is in at most one. Every operation takes O(1).
///
/// A block at the front of a queue that is held or has children would be in the way of those behind it.
/// [`set_aside`](Self::set_aside) removes such a block; as soon as the block may be evicted, it returns to the front of
/// the same queue. So no queue is ever searched.
#[derive(Debug)]
pub(super) struct Queues<const QUEUES: usize> {
    lists: [BlockList; QUEUES],
    states: Vec<State>, // [block]
    cached: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    standing: Standing,
    cached: bool,
    leaf: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Standing {
    #[default]
    Nowhere,
    Queued(u8),
    /// The block was removed from this queue, and returns to its front once it may be evicted.
    Aside(u8),
}

impl<const QUEUES: usize> Queues<QUEUES> {
    /// Creates empty queues for block ids below `num_blocks`.
    pub(super) fn new(num_blocks: usize) -> Self {
        Self {
            lists: std::array::from_fn(|_| BlockList::new(num_blocks)),
            states: vec![State::default(); num_blocks],
            cached: 0,
        }
    }

    /// Returns the number of cached blocks, whether they are in a queue or in none.
    pub(super) fn cached(&self) -> usize {
        self.cached
    }

    pub(super) fn is_cached(&self, block: BlockId) -> bool {
        self.states[block.index()].cached
    }

    /// Returns the number of blocks in `queue`, without those that are set aside.
    pub(super) fn len(&self, queue: usize) -> usize {
        self.lists[queue].len()
    }

    pub(super) fn front(&self, queue: usize) -> Option<BlockId> {
        self.lists[queue].front()
    }

    /// Returns the queue that `block` is in or was set aside from.
    pub(super) fn queue(&self, block: BlockId) -> Option<usize> {
        match self.states[block.index()].standing {
            Standing::Nowhere => None,
            Standing::Queued(queue) | Standing::Aside(queue) => Some(queue.into()),
        }
    }

    /// Puts `block` at the back of `queue`, and removes it from any other queue.
    pub(super) fn push_back(&mut self, queue: usize, block: BlockId) {
        self.remove(block);
        self.lists[queue].push_back(block);
        self.states[block.index()].standing = Standing::Queued(queue as u8);
    }

    /// Removes `block` from its queue, if it is in one.
    pub(super) fn remove(&mut self, block: BlockId) {
        if let Standing::Queued(queue) = std::mem::take(&mut self.states[block.index()].standing) {
            self.lists[usize::from(queue)].remove(block);
        }
    }

    /// Returns whether `block` may be evicted, which is so if it is a cached leaf.
    pub(super) fn is_evictable(&self, block: BlockId) -> bool {
        let state = self.states[block.index()];
        state.cached && state.leaf
    }

    /// Removes `block`, which must be queued and must not be evictable, from its queue until it may be evicted.
    pub(super) fn set_aside(&mut self, block: BlockId) {
        debug_assert!(!self.is_evictable(block), "{block} would never come back");
        let queue = self.queue(block).expect("a block that is set aside was in a queue");
        self.remove(block);
        self.states[block.index()].standing = Standing::Aside(queue as u8);
    }

    /// Removes and forgets the first block of `queue` that may be evicted, and returns it. The blocks before it are set
    /// aside.
    pub(super) fn pop_evictable(&mut self, queue: usize) -> Option<BlockId> {
        while let Some(block) = self.front(queue) {
            step();
            if self.is_evictable(block) {
                self.forget(block);
                return Some(block);
            }
            self.set_aside(block);
        }
        None
    }

    /// Marks `block` as cached, and as a leaf if `leaf` is set.
    pub(super) fn set_cached(&mut self, block: BlockId, leaf: bool) {
        let state = &mut self.states[block.index()];
        assert!(!state.cached, "{block} is cached already");
        (state.cached, state.leaf) = (true, leaf);
        self.cached += 1;
        self.bring_back(block);
    }

    /// Marks `block`, which must be cached, as a leaf.
    pub(super) fn set_leaf(&mut self, block: BlockId) {
        self.states[block.index()].leaf = true;
        self.bring_back(block);
    }

    /// Marks `block` as not cached; the block stays in its queue.
    pub(super) fn set_held(&mut self, block: BlockId) {
        let state = &mut self.states[block.index()];
        self.cached -= usize::from(std::mem::take(&mut state.cached));
    }

    /// Forgets everything about `block`.
    pub(super) fn forget(&mut self, block: BlockId) {
        self.set_held(block);
        self.remove(block);
    }

    /// Puts `to`, which must be in no queue and not cached, in the place of `from`.
    pub(super) fn moved(&mut self, from: BlockId, to: BlockId) {
        let state = self.states[from.index()];
        debug_assert!(self.queue(to).is_none() && !self.is_cached(to), "{to} has a place already");
        if let Standing::Queued(queue) = state.standing {
            self.lists[usize::from(queue)].replace(from, to);
        }
        self.states[from.index()] = State::default();
        self.states[to.index()] = state;
    }

    fn bring_back(&mut self, block: BlockId) {
        if let Standing::Aside(queue) = self.states[block.index()].standing
            && self.is_evictable(block)
        {
            self.lists[usize::from(queue)].push_front(block);
            self.states[block.index()].standing = Standing::Queued(queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_in_the_way_comes_first_once_it_may_be_evicted() {
        let mut queues = Queues::<1>::new(3);
        for block in (0..3).map(BlockId) {
            queues.set_cached(block, block != BlockId(0));
            queues.push_back(0, block);
        }
        assert_eq!(queues.pop_evictable(0), Some(BlockId(1)));
        queues.set_leaf(BlockId(0));
        assert_eq!([(); 3].map(|()| queues.pop_evictable(0)), [Some(BlockId(0)), Some(BlockId(2)), None]);
    }
}

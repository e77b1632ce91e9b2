//! The policy 2Q, which has a queue for blocks seen once and an LRU list for blocks that came back.

use interbed_kv::{BlockHash, BlockId, Content, EvictionPolicy, OwnerId};

use super::{ghosts::Ghosts, queues::Queues};

const IN: usize = 0;
const MAIN: usize = 1;

/// Sends fresh blocks through a queue, a quarter of the pool, whether they are found there or not. A content that is
/// computed again soon after its eviction from that queue goes to the main list, which is ordered by the last use.
#[derive(Debug)]
pub struct TwoQueue {
    queues: Queues<2>,
    ghosts: Ghosts,
    records: Vec<Record>, // [block]
    in_max: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Record {
    hash: BlockHash,
    /// Whether the content was evicted recently.
    returned: bool,
}

impl TwoQueue {
    /// Creates a policy for block ids below `num_blocks`.
    pub fn new(num_blocks: usize) -> Self {
        Self {
            queues: Queues::new(num_blocks),
            ghosts: Ghosts::new(num_blocks / 2),
            records: vec![Record::default(); num_blocks],
            in_max: num_blocks / 4,
        }
    }
}

impl EvictionPolicy for TwoQueue {
    fn publish(&mut self, block: BlockId, content: Content) {
        let returned = self.ghosts.take(content.hash);
        self.records[block.index()] = Record { hash: content.hash, returned };
    }

    fn hit(&mut self, block: BlockId) {
        self.queues.set_held(block);
    }

    fn insert(&mut self, block: BlockId, leaf: bool) {
        self.queues.set_cached(block, leaf);
        if self.records[block.index()].returned {
            self.queues.push_back(MAIN, block);
        } else if self.queues.queue(block).is_none() {
            self.queues.push_back(IN, block);
        }
    }

    fn became_leaf(&mut self, block: BlockId) {
        self.queues.set_leaf(block);
    }

    fn victim(&mut self, _: OwnerId) -> Option<BlockId> {
        if self.queues.len(IN) <= self.in_max
            && let Some(victim) = self.queues.pop_evictable(MAIN)
        {
            return Some(victim);
        }
        let Some(victim) = self.queues.pop_evictable(IN) else { return self.queues.pop_evictable(MAIN) };
        self.ghosts.insert(self.records[victim.index()].hash);
        Some(victim)
    }

    fn forget(&mut self, block: BlockId) {
        self.queues.forget(block);
    }

    fn moved(&mut self, from: BlockId, to: BlockId) {
        self.queues.moved(from, to);
        self.records[to.index()] = self.records[from.index()];
    }

    fn resize(&mut self, usable: usize) {
        self.in_max = usable / 4;
        self.ghosts.resize(usable / 2);
    }

    fn contains(&self, block: BlockId) -> bool {
        self.queues.is_cached(block)
    }

    fn len(&self) -> usize {
        self.queues.cached()
    }
}

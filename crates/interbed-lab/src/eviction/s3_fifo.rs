//! The policy S3-FIFO, which has two queues of blocks and one of ghosts.

use interbed_kv::{BlockHash, BlockId, Content, EvictionPolicy, OwnerId};

use super::{ghosts::Ghosts, queues::Queues, step};

const SMALL: usize = 0;
const MAIN: usize = 1;
/// The greatest number of uses that is counted for a block.
const USES_MAX: u8 = 3;
/// A block that was found more often than this moves from the small queue to the main one.
const USES_OF_ONE_HIT_WONDERS: u8 = 1;

/// Sends fresh blocks through a small queue, a tenth of the pool, and evicts those that reach its end without having
/// been found repeatedly. The other blocks, and those that come back soon after their eviction, go to the main queue. A
/// block stays there for one more round for each time that it was found.
#[derive(Debug)]
pub struct S3Fifo {
    queues: Queues<2>,
    ghosts: Ghosts,
    records: Vec<Record>, // [block]
    small_max: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Record {
    hash: BlockHash,
    uses: u8,
    /// Whether the content was evicted recently.
    returned: bool,
}

impl S3Fifo {
    /// Creates a policy for block ids below `num_blocks`.
    pub fn new(num_blocks: usize) -> Self {
        Self {
            queues: Queues::new(num_blocks),
            ghosts: Ghosts::new(num_blocks),
            records: vec![Record::default(); num_blocks],
            small_max: num_blocks / 10,
        }
    }
}

impl EvictionPolicy for S3Fifo {
    fn publish(&mut self, block: BlockId, content: Content) {
        let returned = self.ghosts.take(content.hash);
        self.records[block.index()] = Record { hash: content.hash, uses: 0, returned };
    }

    fn hit(&mut self, block: BlockId) {
        self.queues.set_held(block);
        let uses = &mut self.records[block.index()].uses;
        *uses = (*uses + 1).min(USES_MAX);
    }

    fn insert(&mut self, block: BlockId, leaf: bool) {
        self.queues.set_cached(block, leaf);
        if self.queues.queue(block).is_none() {
            let queue = if self.records[block.index()].returned { MAIN } else { SMALL };
            self.queues.push_back(queue, block);
        }
    }

    fn became_leaf(&mut self, block: BlockId) {
        self.queues.set_leaf(block);
    }

    fn victim(&mut self, _: OwnerId) -> Option<BlockId> {
        loop {
            step();
            let (small, main) = (self.queues.front(SMALL), self.queues.front(MAIN));
            let queue = if self.queues.len(SMALL) > self.small_max || main.is_none() { SMALL } else { MAIN };
            let block = if queue == SMALL { small? } else { main? };
            let Record { uses, hash, .. } = &mut self.records[block.index()];
            if queue == MAIN && *uses > 0 {
                *uses -= 1;
                self.queues.push_back(MAIN, block);
            } else if *uses > USES_OF_ONE_HIT_WONDERS {
                *uses = 0;
                self.queues.push_back(MAIN, block);
            } else if !self.queues.is_evictable(block) {
                self.queues.set_aside(block);
            } else {
                if queue == SMALL {
                    self.ghosts.insert(*hash);
                }
                self.queues.forget(block);
                return Some(block);
            }
        }
    }

    fn forget(&mut self, block: BlockId) {
        self.queues.forget(block);
    }

    fn moved(&mut self, from: BlockId, to: BlockId) {
        self.queues.moved(from, to);
        self.records[to.index()] = self.records[from.index()];
    }

    fn resize(&mut self, usable: usize) {
        self.small_max = usable / 10;
        self.ghosts.resize(usable);
    }

    fn contains(&self, block: BlockId) -> bool {
        self.queues.is_cached(block)
    }

    fn len(&self) -> usize {
        self.queues.cached()
    }
}

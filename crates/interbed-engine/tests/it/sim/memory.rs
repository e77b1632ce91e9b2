//! The memory of a runner whose layers keep tails: as much as all blocks of the first group take.

use std::collections::HashSet;
use std::ops::Range;

use interbed_kv::TailConfig;

/// The bytes of a block of the first group.
pub const BLOCK_BYTES: usize = 100;

/// Which blocks have memory. Blocks of all groups share it, and there is not a byte more than the budget.
pub struct SimMemory {
    /// The numbers of each group's blocks, and the bytes of one.
    groups: Vec<(Range<u32>, usize)>,
    present: HashSet<u32>,
    free: usize,
}

impl SimMemory {
    /// The memory of `blocks` blocks of the first group, which no block has yet.
    pub fn new(blocks: usize, tails: &[TailConfig]) -> Self {
        let free = blocks * BLOCK_BYTES;
        let mut groups = vec![(0..blocks as u32, BLOCK_BYTES)];
        for tail in tails {
            let first = groups.last().unwrap().0.end;
            groups.push((first..first + (free / tail.block_bytes) as u32, tail.block_bytes));
        }
        Self { groups, present: HashSet::new(), free }
    }

    /// Takes the memory of the blocks `left`, and then gives the blocks `came` theirs.
    pub fn resize(&mut self, came: &[u32], left: &[u32]) {
        for &block in left.iter().chain(came) {
            if self.present.remove(&block) {
                self.free += self.bytes(block);
            }
        }
        for &block in came {
            assert!(self.present.insert(block), "block {block} came twice");
            let left = self.free.checked_sub(self.bytes(block));
            self.free = left.unwrap_or_else(|| panic!("{} bytes are left for block {block}", self.free));
        }
    }

    /// Asserts that a block, which is to be used, has memory.
    pub fn check(&self, block: u32) {
        assert!(self.present.contains(&block), "block {block} has no memory");
    }

    /// The number of a block's group.
    pub fn group(&self, block: u32) -> usize {
        self.groups.iter().position(|(numbers, _)| numbers.contains(&block)).expect("there is such a block")
    }

    fn bytes(&self, block: u32) -> usize {
        self.groups[self.group(block)].1
    }
}

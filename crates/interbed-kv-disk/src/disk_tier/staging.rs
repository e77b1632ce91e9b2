//! Gathers blocks that will be the next record.

use std::time::{Duration, Instant};

use interbed_kv::BlockKey;

use crate::jobs::Staged;

/// Time that a block waits for others with which it is written.
const GATHER: Duration = Duration::from_millis(200);

/// Blocks that will be the next record, and memory for blocks that are to be written.
pub(super) struct Staging {
    blocks: Vec<Staged>,
    /// Time at which the first of the blocks came.
    since: Option<Instant>,
    free: Vec<Vec<u8>>,
    pub(super) num_buffers: usize,
}

impl Staging {
    pub(super) fn new(num_buffers: usize, block_bytes: usize) -> Self {
        let free = (0..num_buffers).map(|_| vec![0; block_bytes]).collect();
        Self { blocks: Vec::new(), since: None, free, num_buffers }
    }

    pub(super) fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn has(&self, key: BlockKey) -> bool {
        self.blocks.iter().any(|block| block.label.key == key)
    }

    /// Returns whether the blocks have waited for others long enough.
    pub(super) fn is_due(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= GATHER)
    }

    pub(super) fn add(&mut self, block: Staged) {
        self.since.get_or_insert_with(Instant::now);
        self.blocks.push(block);
    }

    /// Takes all blocks out, to be written.
    pub(super) fn take(&mut self) -> Vec<Staged> {
        self.since = None;
        std::mem::take(&mut self.blocks)
    }

    /// Returns the number of buffers that are free.
    pub(super) fn room(&self) -> usize {
        self.free.len()
    }

    pub(super) fn take_buffer(&mut self) -> Option<Vec<u8>> {
        self.free.pop()
    }

    /// Takes `count` buffers, which must be free.
    pub(super) fn take_buffers(&mut self, count: usize) -> Vec<Vec<u8>> {
        self.free.split_off(self.free.len() - count)
    }

    pub(super) fn give_back(&mut self, buffers: impl IntoIterator<Item = Vec<u8>>) {
        self.free.extend(buffers);
    }
}

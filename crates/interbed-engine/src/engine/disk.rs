//! Between passes, the engine writes KV blocks to disk and reads them back.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use interbed_kv::{BlockBytes, BlockId, BlockKey, Evicted, FetchEnded, FetchId, Wanted};

use super::gone::Gone;
use super::idle_blocks::IdleBlocks;
use crate::kv_disk::{KvDisk, KvDiskMode, KvDiskStatus};
use crate::scheduler::Scheduler;

/// The class of blocks that are stored before anything is known of their use.
const FRESH: u8 = u8::MAX;

/// The class of blocks that are stored because nobody has used them for a while.
const IDLE: u8 = u8::MAX - 1;

/// The store on disk, and the blocks that wait to be written to it.
pub(super) struct Disk {
    pub(super) disk: KvDisk,
    /// The blocks that are to be stored when there are buffers for them, the oldest first.
    fresh: VecDeque<(BlockId, BlockKey)>,
    idle: IdleBlocks,
    status: KvDiskStatus,
}

impl Disk {
    /// Creates the state for an engine with `num_blocks` blocks in memory.
    pub(super) fn new(disk: KvDisk, num_blocks: usize) -> Self {
        Self {
            idle: IdleBlocks::new(disk.idle_after, num_blocks),
            disk,
            fresh: VecDeque::new(),
            status: KvDiskStatus::default(),
        }
    }

    pub(super) fn status(&self, longer_than_memory: usize) -> KvDiskStatus {
        KvDiskStatus { store: self.disk.tier.stats(), longer_than_memory, ..self.status }
    }

    /// Returns whether no block waits to be written and nothing is in flight.
    pub(super) fn is_settled(&self) -> bool {
        self.fresh.is_empty() && self.idle.is_empty() && self.disk.tier.is_settled()
    }

    /// Returns how many of `keys`, counted from the first, can be read.
    pub(super) fn look_up(&mut self, keys: &[BlockKey]) -> usize {
        self.disk.tier.look_up(keys)
    }

    /// Returns how many of the first `found` blocks are to be computed rather than read. Computing all of them takes
    /// `computing` seconds, if that is known.
    pub(super) fn recomputed(&mut self, found: usize, computing: Option<f64>) -> usize {
        let reading = self.block_seconds().map(|seconds| found as f64 * seconds);
        let computed = self.disk.recompute.blocks(found, reading, computing);
        self.status.recomputed += u64::from(found > 0 && computed == found);
        computed
    }

    /// Returns the measured seconds that reading one block takes; `None` if no read was measured.
    pub(super) fn block_seconds(&self) -> Option<f64> {
        let rate = self.disk.tier.stats().read_rate;
        (rate > 0.0).then(|| self.disk.tier.block_bytes() as f64 / rate)
    }

    /// Begins to read `wanted`. `is_shared` says whether the blocks in front of them are computed meanwhile.
    pub(super) fn fetch(&mut self, id: FetchId, wanted: Vec<Wanted>, is_shared: bool) {
        self.status.shared += u64::from(is_shared);
        self.disk.tier.fetch(id, wanted);
    }

    /// Makes progress on what is in flight. Returns a fetch that has ended, if one ends within `wait`.
    pub(super) fn poll(&mut self, blocks: &mut dyn BlockBytes, wait: Duration) -> Option<FetchEnded> {
        self.disk.tier.poll(blocks, wait)
    }

    /// Counts a fetch that has ended. Its blocks have `block_size` tokens each.
    pub(super) fn note_fetch(&mut self, ended: &FetchEnded, block_size: usize) {
        self.status.fetches += 1;
        self.status.fetch_seconds += ended.seconds;
        self.status.fetches_cut += u64::from(ended.filled < ended.wanted);
        self.status.fetched_tokens += (ended.filled * block_size) as u64;
    }

    /// Stages blocks that are to be stored, as far as there are buffers: first those that were evicted, then those that
    /// were computed, then those that have been idle.
    pub(super) fn store(&mut self, gone: &Gone, scheduler: &Scheduler, blocks: &mut dyn BlockBytes) {
        let Self { disk, fresh, idle, .. } = self;
        for Evicted { block, label, class } in &gone.evicted {
            if disk.tier.wants(label.key, *class) {
                disk.tier.stage(label.clone(), *class, *block, blocks);
            }
        }
        let now = Instant::now();
        if disk.mode == KvDiskMode::Evict {
            idle.add(gone.computed.iter().copied(), now);
        } else {
            fresh.extend(&gone.computed);
        }
        idle.add(gone.unstored.iter().copied(), now);
        // A quarter of the buffers is left for evicted blocks.
        let kept = disk.tier.buffers() / 4;
        while disk.tier.room() > kept
            && let Some((block, key)) = fresh.pop_front()
        {
            if let Some(label) = scheduler.label(block, key)
                && disk.tier.wants(key, FRESH)
            {
                disk.tier.stage(label, FRESH, block, blocks);
            }
        }
        while disk.tier.room() > kept
            && let Some((block, key)) = idle.take(now)
        {
            let Some(label) = scheduler.label(block, key) else { continue };
            if scheduler.blocks().is_held(block) && !idle.is_hurried() {
                idle.add([(block, key)], now);
            } else if disk.tier.wants(key, IDLE) {
                disk.tier.stage(label, IDLE, block, blocks);
            }
        }
    }

    /// Makes all idle blocks due for storing now, because the engine stops.
    pub(super) fn hurry(&mut self) {
        self.idle.hurry(Instant::now());
    }

    /// Writes staged blocks at once, instead of waiting until more blocks can be written with them.
    pub(super) fn flush(&mut self) {
        self.disk.tier.flush();
    }

    /// Writes an index of the store for the next process.
    pub(super) fn leave_index(&self) {
        self.disk.tier.leave_index();
    }
}

//! What goes to disk between passes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use interbed_kv::{BlockBytes, BlockId, BlockKey, Evicted, FetchEnded, FetchId, Wanted};

use super::gone::Gone;
use super::idle_blocks::IdleBlocks;
use crate::kv_disk::{KvDisk, KvDiskMode, KvDiskStatus};
use crate::scheduler::Scheduler;

/// The class of blocks that are stored before anything is known of their use.
const FRESH: u8 = u8::MAX;

/// The class of blocks that are stored since nobody has used them for a while.
const IDLE: u8 = u8::MAX - 1;

/// KV on disk, and what is on its way there.
pub(super) struct Disk {
    pub(super) disk: KvDisk,
    /// Blocks that are to be stored when there are buffers for them, the oldest first.
    fresh: VecDeque<(BlockId, BlockKey)>,
    idle: IdleBlocks,
    status: KvDiskStatus,
}

impl Disk {
    /// With `num_blocks` blocks in memory.
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

    /// Whether nothing waits to be written, or is in flight.
    pub(super) fn is_settled(&self) -> bool {
        self.fresh.is_empty() && self.idle.is_empty() && self.disk.tier.is_settled()
    }

    /// How many of `keys`, the first ones, can be read.
    pub(super) fn look_up(&mut self, keys: &[BlockKey]) -> usize {
        self.disk.tier.look_up(keys)
    }

    /// How many of the first `found` blocks, which would be computed in so many seconds, are computed rather than read.
    pub(super) fn recomputed(&mut self, found: usize, computing: Option<f64>) -> usize {
        let reading = self.block_seconds().map(|seconds| found as f64 * seconds);
        let computed = self.disk.recompute.blocks(found, reading, computing);
        self.status.recomputed += u64::from(found > 0 && computed == found);
        computed
    }

    /// Seconds in which a block is read, as far as that was measured.
    pub(super) fn block_seconds(&self) -> Option<f64> {
        let rate = self.disk.tier.stats().read_rate;
        (rate > 0.0).then(|| self.disk.tier.block_bytes() as f64 / rate)
    }

    /// Begins to read `wanted`; `is_shared` if what comes before them is computed meanwhile.
    pub(super) fn fetch(&mut self, id: FetchId, wanted: Vec<Wanted>, is_shared: bool) {
        self.status.shared += u64::from(is_shared);
        self.disk.tier.fetch(id, wanted);
    }

    /// Goes on with what is in flight, and returns a fetch that has ended, if one does within `wait`.
    pub(super) fn poll(&mut self, blocks: &mut dyn BlockBytes, wait: Duration) -> Option<FetchEnded> {
        self.disk.tier.poll(blocks, wait)
    }

    /// A fetch has ended whose blocks have `block_size` tokens.
    pub(super) fn note_fetch(&mut self, ended: &FetchEnded, block_size: usize) {
        self.status.fetches += 1;
        self.status.fetch_seconds += ended.seconds;
        self.status.fetches_cut += u64::from(ended.filled < ended.wanted);
        self.status.fetched_tokens += (ended.filled * block_size) as u64;
    }

    /// Copies blocks that are to be stored: those that were evicted, then those that were computed, then those that
    /// have been idle, as far as there are buffers.
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
        // Some buffers are left for what is evicted.
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

    /// The engine stops: what is idle is stored now.
    pub(super) fn hurry(&mut self) {
        self.idle.hurry(Instant::now());
    }

    /// Has written what waits for others.
    pub(super) fn flush(&mut self) {
        self.disk.tier.flush();
    }

    /// Leaves an index behind, for the next process.
    pub(super) fn leave_index(&self) {
        self.disk.tier.leave_index();
    }
}

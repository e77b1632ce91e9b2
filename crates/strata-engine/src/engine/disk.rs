//! What goes to disk between passes, and what comes back.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use strata_kv::{BlockId, BlockKey, Evicted, FetchId};
use strata_kv_disk::{FetchEnded, Wanted};

use super::Worker;
use super::idle_blocks::IdleBlocks;
use crate::event::FoundOnDisk;
use crate::kv_disk::{KvDisk, KvDiskMode, KvDiskStatus};
use crate::scheduler::{Admitted, StepPlan};

/// The class of blocks that are stored before anything is known of their use.
const FRESH: u8 = u8::MAX;

/// The class of blocks that are stored since nobody has used them for a while.
const IDLE: u8 = u8::MAX - 1;

/// How long an engine that stops goes on storing what waits for that.
const LAST_WRITES: Duration = Duration::from_secs(10);

/// KV on disk, and what is on its way.
pub(super) struct Disk {
    pub(super) disk: KvDisk,
    /// Blocks that are to be stored when there are buffers for them, the oldest first.
    fresh: VecDeque<(BlockId, BlockKey)>,
    idle: IdleBlocks,
    /// Those who wait for a fetch.
    pub(super) waiting: HashMap<FetchId, Waits>,
    status: KvDiskStatus,
}

/// One who waits for a fetch, and of whom nobody has heard yet.
pub(super) struct Waits {
    pub(super) admitted: Admitted,
    /// Whether it computes what comes before that.
    pub(super) is_ahead: bool,
}

impl Disk {
    /// With `num_blocks` blocks in memory.
    pub(super) fn new(disk: KvDisk, num_blocks: usize) -> Self {
        Self {
            idle: IdleBlocks::new(disk.idle_after, num_blocks),
            disk,
            fresh: VecDeque::new(),
            waiting: HashMap::new(),
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
}

impl Worker {
    /// Sequences that were admitted and have a prefix on disk wait for it, unless computing it is faster.
    pub(super) fn begin_fetches(&mut self, plan: &mut StepPlan) {
        for index in (0..plan.admitted.len()).rev() {
            let Some(Disk { disk, waiting, status, .. }) = &mut self.disk else { return };
            let id = plan.admitted[index].id;
            if self.scheduler.sequence(id).is_long {
                self.resume_long(id, plan, index);
                continue;
            }
            let keys = self.scheduler.missing_keys(id);
            let found = disk.tier.look_up(&keys);
            let tokens = |blocks: usize| blocks * self.scheduler.blocks().block_size();
            plan.admitted[index].disk = Some(FoundOnDisk { tokens: tokens(found), ..FoundOnDisk::default() });
            if found == 0 {
                continue;
            }
            let (rate, bytes) = (disk.tier.stats().read_rate, found as f64 * disk.tier.block_bytes() as f64);
            let reading = (rate > 0.0).then(|| bytes / rate);
            let computed = disk.recompute.blocks(found, reading, self.scheduler.recompute_seconds(found));
            plan.admitted[index].disk.iter_mut().for_each(|disk| disk.computed = tokens(computed));
            if computed == found {
                status.recomputed += 1;
                continue;
            }
            let first = self.scheduler.sequence(id).computed / self.scheduler.blocks().block_size();
            let Some(root) = self.scheduler.blocks().parent_key(id) else { continue };
            let fetch = match computed {
                0 => self.scheduler.begin_fetch(id, found, plan),
                _ => self.scheduler.begin_fetch_ahead(id, first + computed, found - computed, plan),
            };
            let Some(fetch) = fetch else { continue };
            status.shared += u64::from(computed > 0);
            let parents = std::iter::once(root).chain(keys.iter().copied());
            let missing = parents.zip(&keys).zip(first..).skip(computed);
            let wanted = missing.zip(&fetch.blocks).map(|(((parent, &key), index), &block)| Wanted {
                key,
                parent,
                tokens: self.scheduler.block_tokens(id, index).into(),
                block,
            });
            disk.tier.fetch(fetch.id, wanted.collect());
            let waits = Waits { admitted: plan.admitted.remove(index), is_ahead: computed > 0 };
            waiting.insert(fetch.id, waits);
        }
    }

    /// Copies blocks that are to be stored, before anything writes to them: those that were evicted, then those that
    /// were computed, then those that have been idle, as far as there are buffers.
    pub(super) fn store_blocks(&mut self) {
        self.store_long();
        let Some(Disk { disk, fresh, idle, .. }) = &mut self.disk else { return };
        let evicted = self.scheduler.take_evicted();
        let Some(blocks) = self.runner.block_bytes() else { return };
        for Evicted { block, label, class } in evicted {
            if disk.tier.wants(label.key, class) {
                disk.tier.stage(label, class, block, blocks);
            }
        }
        let (computed, now) = (self.scheduler.take_fresh(), Instant::now());
        if disk.mode == KvDiskMode::Evict {
            idle.add(computed, now);
        } else {
            fresh.extend(computed);
        }
        idle.add(self.scheduler.take_unstored(), now);
        // Some buffers are left for what is evicted.
        let kept = disk.tier.buffers() / 4;
        while disk.tier.room() > kept
            && let Some((block, key)) = fresh.pop_front()
        {
            if let Some(label) = self.scheduler.label(block, key)
                && disk.tier.wants(key, FRESH)
            {
                disk.tier.stage(label, FRESH, block, blocks);
            }
        }
        while disk.tier.room() > kept
            && let Some((block, key)) = idle.take(now)
        {
            let Some(label) = self.scheduler.label(block, key) else { continue };
            if self.scheduler.blocks().is_held(block) && !idle.is_hurried() {
                idle.add([(block, key)], now);
            } else if disk.tier.wants(key, IDLE) {
                disk.tier.stage(label, IDLE, block, blocks);
            }
        }
    }

    /// Goes on with what is in flight, and takes in fetches that have ended; waits for one up to `wait`.
    pub(super) fn poll_disk(&mut self, mut wait: Duration) {
        loop {
            let (Some(disk), Some(blocks)) = (&mut self.disk, self.runner.block_bytes()) else { return };
            let Some(ended) = disk.disk.tier.poll(blocks, wait) else { break };
            wait = Duration::ZERO;
            self.finish_fetch(ended);
        }
        self.store_blocks();
    }

    fn finish_fetch(&mut self, ended: FetchEnded) {
        let FetchEnded { id, filled, wanted, seconds, .. } = ended;
        let Some(Disk { waiting, status, .. }) = &mut self.disk else { return };
        let waits = waiting.remove(&id);
        let tokens = filled * self.scheduler.blocks().block_size();
        let finished = match &waits {
            Some(Waits { admitted, is_ahead: true }) => {
                let cached = admitted.cached + tokens;
                self.scheduler.finish_fetch_ahead(id, filled).map(|sequence| (sequence, cached))
            }
            _ => self.scheduler.finish_fetch(id, filled),
        };
        status.fetches += 1;
        status.fetch_seconds += seconds;
        status.fetches_cut += u64::from(filled < wanted);
        status.fetched_tokens += tokens as u64;
        if let (Some((sequence, cached)), Some(Waits { admitted, .. })) = (finished, waits) {
            let group = self.scheduler.sequence(sequence).group;
            let disk = admitted.disk.map(|disk| FoundOnDisk { loaded: disk.loaded + tokens, seconds, ..disk });
            let admitted = Admitted { cached, disk, ..admitted };
            self.on_group(group, |group, stage| group.admitted(&admitted, stage));
        }
    }

    /// Fetches in flight.
    pub(super) fn num_fetches(&self) -> usize {
        self.scheduler.num_fetches()
    }

    /// The engine stops: what waits to be stored is, for a while.
    pub(super) fn finish_disk(&mut self) {
        let now = Instant::now();
        let deadline = now + LAST_WRITES;
        self.disk.iter_mut().for_each(|disk| disk.idle.hurry(now));
        while self.disk.as_ref().is_some_and(|disk| !disk.is_settled()) && Instant::now() < deadline {
            self.poll_disk(Duration::ZERO);
            self.disk.iter_mut().for_each(|disk| disk.disk.tier.flush());
            std::thread::sleep(Duration::from_millis(1));
        }
        self.disk.iter().for_each(|disk| disk.disk.tier.leave_index());
    }
}

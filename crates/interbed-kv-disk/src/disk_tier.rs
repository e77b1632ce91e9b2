//! Drives the tier on disk. The engine's thread calls it between passes.

mod carrying;
mod fetches;
mod kept_frames;
mod kept_slots;
mod opening;
mod options;
mod reads;
mod staging;
mod swaps;
mod unnamed;
mod writes;

use std::sync::Arc;
use std::time::{Duration, Instant};

use interbed_kv::{
    BlockBytes, BlockKey, BlockLabel, BlockPart, FetchEnded, FetchId, FrameTier, KeyChain, LowerTier, MissingKeys,
    SlotTier, Tier, TierFigures, TierPlace, Wanted, WantedTails,
};

use crate::ages::Ages;
use crate::frames::Frames;
use crate::index_file;
use crate::jobs::{Blocks, Done, Expected, Purpose, Staged};
use crate::recovery::Recovered;
use crate::store::Store;
use crate::workers::Workers;
use carrying::Carrying;
use fetches::{Brings, Fetches};
pub use options::{DiskOptions, DiskTierError, SlotRoom};
use reads::{Reads, by_record};
use staging::Staging;
use swaps::Swaps;
pub use unnamed::SwapShape;
use writes::Writes;

/// Longest time for which a stopping engine goes on writing.
const LAST_WRITES: Duration = Duration::from_secs(10);

/// A tier of KV storage below the KV blocks in memory. It writes blocks to disk and reads them back. One thread calls
/// the methods of the tier. The tier starts threads of its own, which read from the disk and write to it.
pub struct DiskTier {
    store: Arc<Store>,
    chain: KeyChain,
    tier: Tier,
    workers: Workers,
    staging: Staging,
    reads: Reads,
    fetches: Fetches,
    carrying: Option<Carrying>,
    frames: Frames,
    swaps: Swaps,
    writes: Writes,
    ages: Ages,
    figures: TierFigures,
    recovered: Recovered,
}

impl LowerTier for DiskTier {
    fn name(&self) -> &'static str {
        "disk"
    }

    fn key_chain(&self) -> &KeyChain {
        &self.chain
    }

    /// Returns how many of `keys` the store has and a sequence can use. These keys count as looked up, and so does the
    /// key behind them.
    fn look_up(&mut self, keys: &MissingKeys, _computing: Option<f64>) -> usize {
        let found = keys.keys().iter().take_while(|&&key| self.tier.find(key).is_some()).count();
        let usable = keys.usable(found, &self.chain, |key| self.tier.find(key).is_some());
        // Where tails end the use, the next content may be there, and is of no use.
        let missed = usize::from(usable == found);
        keys.keys().iter().take(usable + missed).for_each(|&key| self.tier.looked_up(key));
        keys.tail_keys(usable, &self.chain).for_each(|key| self.tier.looked_up(key));
        usable
    }

    fn knows_contents(&self) -> bool {
        true
    }

    fn read_seconds(&self, blocks: usize) -> Option<f64> {
        let rate = self.reads.rate;
        (rate > 0.0).then(|| blocks as f64 * (self.store.shape.block_bytes() as f64 / rate))
    }

    fn fetch(&mut self, id: FetchId, mut wanted: Vec<Wanted>, tails: Option<WantedTails>, _computing: Option<f64>) {
        let blocks = wanted.len();
        if let Some(tails) = &tails {
            wanted.extend(tails.behind(blocks, &wanted, &self.chain));
        }
        let kind = if tails.is_some() { Brings::AllOf { blocks } } else { Brings::FirstOf { blocks } };
        // What has gone meanwhile stays unfilled.
        let found = wanted.iter().map_while(|wanted| {
            let TierPlace { record, index } = self.tier.find(wanted.key)?;
            let content = Some((wanted.parent, wanted.tokens.clone()));
            Some((record, (Expected { index, key: wanted.key, content }, wanted.part)))
        });
        let mut records = by_record(found);
        if tails.is_some() && records.iter().map(|(_, parts)| parts.len()).sum::<usize>() < wanted.len() {
            // Without one of them, the others are of no use.
            records.clear();
        }
        let num_found: usize = records.iter().map(|(_, blocks)| blocks.len()).sum();
        let parts = wanted[..num_found].iter().map(|wanted| wanted.part).collect();
        self.fetches.begin(id, (kind, wanted.len()), parts, records.len());
        for (record, blocks) in records {
            let (expected, into) = blocks.into_iter().unzip();
            self.read(record, expected, Purpose::Fetch(id, into));
        }
    }

    fn is_reading(&self) -> bool {
        self.reads.num > 0
    }

    fn poll(&mut self, blocks: &mut dyn BlockBytes, wait: Duration) -> Option<FetchEnded> {
        self.wait_for(blocks, wait, |tier, _| {
            if tier.staging.is_due() {
                tier.flush();
            }
            tier.sweep();
            tier.try_to_grow();
            (tier.fetches.next_ended(), tier.fetches.is_settled())
        })
    }

    /// Returns whether a block should be staged now. [`Tier::wants`](interbed_kv::Tier::wants) explains `class`.
    fn wants(&mut self, key: BlockKey, class: u8) -> bool {
        !self.writes.are_paused() && !self.staging.has(key) && self.tier.wants(key, class)
    }

    fn lacks(&self, key: BlockKey) -> bool {
        !self.writes.are_paused() && !self.staging.has(key) && !self.tier.knows(key)
    }

    fn room(&self) -> usize {
        self.staging.room()
    }

    fn buffers(&self) -> usize {
        self.staging.num_buffers
    }

    fn stage(&mut self, label: BlockLabel, class: u8, part: BlockPart, blocks: &mut dyn BlockBytes) -> bool {
        let allowed = self.writes.budget.take(self.store.shape.block_bytes() as u64, Instant::now());
        let Some(buffer) = allowed.then(|| self.staging.take_buffer()).flatten() else {
            self.figures.refused_blocks += 1;
            return false;
        };
        self.copy(buffer, (label, class), part, blocks)
    }

    fn flush(&mut self) {
        let blocks = self.staging.take();
        if blocks.is_empty() {
            return;
        }
        self.reclaim();
        let contents: Vec<_> = blocks.iter().map(|block| (block.label.key, block.class)).collect();
        match self.tier.reserve(&contents) {
            Some(record) => self.write(record, Blocks::Staged(blocks)),
            None => {
                self.figures.refused_blocks += blocks.len() as u64;
                self.let_go(blocks);
            }
        }
        self.reclaim();
        self.go_on_carrying();
    }

    fn is_settled(&self) -> bool {
        let written = self.staging.num_blocks() == 0 && self.writes.are_settled();
        // What still waits to be swapped out is of no use to a later process.
        written && self.fetches.is_settled() && self.carrying.is_none() && self.reads.num == 0
    }

    fn last_writes(&self) -> Duration {
        LAST_WRITES
    }

    fn leave_index(&self) {
        let ages = self.ages.all();
        let listed = index_file::list(&self.tier, |record| ages.get(&record).copied().unwrap_or(0));
        if let Err(error) = self.store.leave_index(&listed) {
            tracing::warn!("{error}; the next start reads all headers");
        }
    }

    fn figures(&self) -> TierFigures {
        TierFigures {
            blocks: self.tier.len(),
            bytes_used: self.tier.bytes_used(),
            counts: self.tier.counts(),
            queued_blocks: self.figures.queued_blocks + self.staging.num_blocks(),
            queued_reads: self.reads.num,
            paused_until: self.writes.pause.until,
            read_rate: self.reads.rate,
            ..self.figures
        }
    }

    fn frames(&mut self) -> Option<&mut dyn FrameTier> {
        Some(self)
    }

    fn slots(&mut self) -> Option<&mut dyn SlotTier> {
        (self.swaps.kept.num_slots() > 0).then_some(self)
    }
}

impl DiskTier {
    /// Returns statistics about the data that the store found on disk when it was opened.
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// Copies `part` into `buffer`, to be written with the next record. Returns false if the part cannot be read; it is
    /// not stored then.
    fn copy(
        &mut self,
        mut buffer: Vec<u8>,
        (label, class): (BlockLabel, u8),
        part: BlockPart,
        blocks: &mut dyn BlockBytes,
    ) -> bool {
        let read = blocks.read(part, &mut buffer);
        match &read {
            Ok(()) => self.add(Staged { label, class, bytes: buffer, since: None }),
            Err(reason) => {
                tracing::warn!("a KV block is not stored: {reason}");
                self.figures.refused_blocks += 1;
                self.staging.give_back([buffer]);
            }
        }
        read.is_ok()
    }

    fn add(&mut self, staged: Staged) {
        self.staging.add(staged);
        if self.staging.num_blocks() >= self.store.shape.blocks_per_record() {
            self.flush();
        }
    }

    /// Takes in what the threads have done, and calls `next`, again and again, until it returns what is waited for, or
    /// `true` because nothing is in flight any more, or until `wait` is over.
    fn wait_for<T>(
        &mut self,
        blocks: &mut dyn BlockBytes,
        wait: Duration,
        mut next: impl FnMut(&mut Self, &mut dyn BlockBytes) -> (Option<T>, bool),
    ) -> Option<T> {
        let deadline = Instant::now() + wait;
        loop {
            while let Some(done) = self.workers.done(Duration::ZERO) {
                self.take(done, blocks);
            }
            let (ended, is_settled) = next(self, blocks);
            let left = deadline.saturating_duration_since(Instant::now());
            if ended.is_some() || is_settled || left.is_zero() {
                return ended;
            }
            let done = self.workers.done(left)?;
            self.take(done, blocks);
        }
    }

    fn take(&mut self, done: Done, blocks: &mut dyn BlockBytes) {
        match done {
            Done::Written { job, outcome } => self.written(job, outcome),
            Done::Synced { blocks, well } => self.synced(blocks, well),
            Done::Read { job, outcome, seconds } => self.was_read(job, outcome, seconds, blocks),
        }
    }

    /// Forgets records that are too old to be read, from time to time.
    fn sweep(&mut self) {
        let older = self.ages.sweep();
        if !older.is_empty() {
            let expired = self.tier.forget(|_, place| older.contains(&place.record));
            self.figures.expired_blocks += expired as u64;
        }
    }

    /// Checks the invariants that hold between calls.
    ///
    /// # Panics
    /// Panics if an invariant does not hold.
    pub fn assert_sound(&self) {
        self.tier.assert_sound();
        self.frames.assert_sound();
        self.swaps.kept.assert_sound();
        if self.is_settled() {
            assert_eq!(self.staging.room(), self.staging.num_buffers, "a block's buffer is lost");
            assert_eq!(self.reads.buffers.len(), self.reads.num_buffers, "a record's buffer is lost");
        }
    }
}

impl Drop for DiskTier {
    fn drop(&mut self) {
        // The threads finish what was submitted before they end.
        self.flush();
    }
}

#[cfg(test)]
mod tests;

//! Drives the tier on disk. The engine's thread calls it between passes.

mod carrying;
mod kept_frames;
mod kept_slots;
mod options;
mod swaps;
mod unnamed;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use interbed_io::{AlignedBuffer, DIRECT_ALIGN};
use interbed_kv::{
    BlockBytes, BlockId, BlockKey, BlockLabel, FetchEnded, FetchId, FrameTier, KeyChain, KvTierConfig, LowerTier, Pause,
    RecordPlace, SlotTier, SwapFailure, SwapId, Tier, TierFigures, TierPlace, Wanted, WriteBudget,
};

use crate::ages::Ages;
use crate::directory::SegmentSpace;
use crate::frames::Frames;
use crate::index_file;
use crate::jobs::{Blocks, Done, Expected, ReadJob, Staged, WriteFailure, WriteJob, now};
use crate::record::{Header, Seal, unpack};
use crate::recovery::{Recovered, recover};
use crate::shape::RecordShape;
use crate::store::Store;
use crate::workers::Workers;
use carrying::Carrying;
use kept_slots::KeptSlots;
pub use options::{DiskOptions, DiskTierError, SlotRoom};
use swaps::Swaps;
pub use unnamed::SwapShape;

/// Number of threads that read.
const READERS: usize = 6;

/// Number of bytes of a segment of a large store.
const SEGMENT_BYTES: u64 = 256 << 20;

/// Minimum number of segments of a store.
const SEGMENTS_MIN: u64 = 4;
/// Minimum number of records that a segment holds.
const RECORDS_MIN: u64 = 2;

/// Number of segments that ordinary records leave free, so that blocks that are carried over always find room.
const SPARE_SEGMENTS: u32 = 1;

/// The inverse of the share of the store's segments that swapped blocks may hold, unless the options name a size.
const SLOTS_SHARE: u32 = 4;

/// Time that a block waits for others with which it is written.
const GATHER: Duration = Duration::from_millis(200);

/// Time between two searches for records that are too old.
const SWEEP: Duration = Duration::from_secs(1);

/// Longest time for which a stopping engine goes on writing.
const LAST_WRITES: Duration = Duration::from_secs(10);

/// Longest time for which nothing is stored, or no segment is made, after a failure.
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// Weight of a new measurement in the rate at which records are read.
const RATE_SHARE: f64 = 0.2;

/// A fetch whose records are being read.
struct FetchInFlight {
    wanted: Vec<Wanted>,
    filled: Vec<bool>,
    records_left: usize,
    began: Instant,
    bytes: u64,
}

/// Purpose of a read.
enum Purpose {
    /// A fetch needs the record, for the wanted blocks at these positions.
    Fetch(FetchId, Vec<usize>),
    /// A swap needs the record, for these blocks.
    Slots(SwapId, Vec<BlockId>),
    /// The blocks of the record are to be written again.
    Carry,
}

/// Writes blocks to disk, and brings them back. One thread calls it; other threads do the reading and writing.
pub struct DiskTier {
    store: Arc<Store>,
    chain: KeyChain,
    tier: Tier,
    workers: Workers,
    /// Blocks that will be the next record.
    staged: Vec<Staged>,
    staged_since: Option<Instant>,
    staged_keys: HashSet<BlockKey>,
    /// Memory for staged blocks.
    block_buffers: Vec<Vec<u8>>,
    num_block_buffers: usize,
    record_buffers: Vec<AlignedBuffer>,
    num_record_buffers: usize,
    reads: VecDeque<(u64, RecordPlace, Vec<Expected>)>,
    purposes: HashMap<u64, Purpose>,
    next_tag: u64,
    fetches: HashMap<FetchId, FetchInFlight>,
    ended: VecDeque<FetchEnded>,
    carrying: Option<Carrying>,
    frames: Frames,
    swaps: Swaps,
    writes_in_flight: usize,
    /// Number of blocks with names that were written, but may not be on the disk yet.
    unsynced_blocks: u64,
    budget: WriteBudget,
    /// Age in seconds above which records are not read any more; `None` for no limit.
    ttl: Option<u64>,
    ages: Ages,
    /// Time of the last search for records that are too old.
    swept_at: Instant,
    /// Time for which nothing is stored, after a failed write.
    pause: Pause,
    /// Time for which no further segment is made, after the disk was full.
    growth: Pause,
    figures: TierFigures,
    recovered: Recovered,
}

impl DiskTier {
    /// Opens a store in `space` for blocks of this shape, of the model that `fingerprint` identifies. `secret` is the
    /// directory's. Blocks of the same model that an earlier process has left are found again.
    ///
    /// # Errors
    /// Fails in the cases that [`DiskTierError`] names.
    pub fn open(
        space: Arc<dyn SegmentSpace>,
        secret: [u8; 32],
        fingerprint: [u8; 32],
        shape: RecordShape,
        options: DiskOptions,
    ) -> Result<Self, DiskTierError> {
        let (config, segments_max) = tier_config(&shape, &options)?;
        let num_buffers = Self::num_buffers(&shape, options.buffer_bytes);
        let setup = Setup { shape, config, num_buffers, readers: READERS, segments_max };
        Self::set_up(space, (secret, fingerprint), setup, options)
    }

    fn set_up(
        space: Arc<dyn SegmentSpace>,
        (secret, fingerprint): ([u8; 32], [u8; 32]),
        Setup { shape, config, num_buffers: (block_buffers, num_record_buffers), readers, segments_max }: Setup,
        options: DiskOptions,
    ) -> Result<Self, DiskTierError> {
        let (segment_bytes, has_headers) = (config.segment_bytes, config.segment_header > 0);
        let seal = Seal { secret, fingerprint };
        let bytes_total = u64::from(config.num_segments) * segment_bytes;
        let mut tier = Tier::new(config);
        let ttl = options.ttl.map(|ttl| ttl.as_secs());
        let mut ages = Ages::default();
        let recovered = recover(space.as_ref(), &shape, &seal, ttl, &mut tier, &mut ages)?;
        let now = Instant::now();
        let mut budget = WriteBudget::new(options.writes_per_day, now);
        // A restart is not a new day.
        budget.spend(recovered.recent_bytes);
        let record_bytes = shape.record_bytes(shape.blocks_per_record());
        let record_buffers: Option<Vec<_>> =
            (0..num_record_buffers).map(|_| AlignedBuffer::new_zeroed(record_bytes)).collect();
        let record_buffers = record_buffers.ok_or(DiskTierError::Memory { bytes: record_bytes })?;
        let store = Arc::new(Store::new(space, (shape, seal), (segment_bytes, has_headers), ttl));
        let shape = &store.shape;
        let (workers, frames_done) = Workers::start(&store, options.turns, readers)?;
        let (frame_blocks, num_frames) = options.frames;
        let frames = Frames::new(frames_done, shape, frame_blocks, num_frames);
        let bytes = Frames::bytes(shape, frame_blocks);
        let frames = frames.ok_or(DiskTierError::Memory { bytes })?;
        Ok(Self {
            chain: match options.names {
                // Owners stay the directory's, so that what is theirs is found when it is to be erased.
                Some(names) => names.owned_under(secret),
                None => KeyChain::new(secret, fingerprint),
            },
            tier,
            workers,
            staged: Vec::new(),
            staged_since: None,
            staged_keys: HashSet::new(),
            block_buffers: (0..block_buffers).map(|_| vec![0; shape.block_bytes()]).collect(),
            num_block_buffers: block_buffers,
            record_buffers,
            num_record_buffers,
            reads: VecDeque::new(),
            purposes: HashMap::new(),
            next_tag: 0,
            fetches: HashMap::new(),
            ended: VecDeque::new(),
            carrying: None,
            frames,
            swaps: Swaps::new(KeptSlots::new(options.slots.num_slots, segments_max), options.slots.trial),
            writes_in_flight: 0,
            unsynced_blocks: 0,
            budget,
            ttl,
            ages,
            swept_at: now,
            pause: Pause::new(PAUSE_MAX),
            growth: Pause::new(PAUSE_MAX),
            figures: TierFigures { bytes_total, ..TierFigures::default() },
            recovered,
            store,
        })
    }

    /// Returns the number of bytes that a store takes for buffers and for `frames`, if about `wanted` bytes may be used
    /// for buffers. [`DiskOptions::frames`] explains `frames`.
    pub fn buffer_bytes(shape: &RecordShape, wanted: usize, frames: (usize, usize)) -> usize {
        let (blocks, records) = Self::num_buffers(shape, wanted);
        let frames = frames.1 * Frames::bytes(shape, frames.0);
        // One more record is put together by the thread that writes.
        let records = (records + 1) * shape.record_bytes(shape.blocks_per_record());
        blocks * shape.block_bytes() + records + frames + READERS * shape.room_to_read()
    }

    /// Returns the number of bytes of memory that a slot takes, for blocks of `block_size` tokens that may be found by
    /// their keys, or for blocks without keys if `block_size` is 0.
    pub fn slot_bytes(block_size: usize) -> usize {
        KeptSlots::slot_bytes(block_size)
    }

    /// Returns the number of bytes of memory that the index of a store of `bytes` bytes takes when the store is full.
    pub fn index_bytes(shape: &RecordShape, bytes: u64) -> u64 {
        // A hash map's entry of 64 bytes, at most 8/7 of which are in use and which doubles when it grows; and the list
        // of each segment's keys.
        const ENTRY: u64 = 2 * 64 + 2 * 16;
        bytes / shape.block_bytes() as u64 * ENTRY
    }

    /// Returns how many blocks can be staged, and how many records read, at a time.
    fn num_buffers(shape: &RecordShape, wanted: usize) -> (usize, usize) {
        let record = shape.record_bytes(shape.blocks_per_record());
        let each = wanted / 2;
        let blocks =
            (each / shape.block_bytes()).max(shape.blocks_per_record() + shape.blocks_per_record().div_ceil(4));
        (blocks, (each / record).clamp(1, 16))
    }

    /// Returns figures of what was found at the start.
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// Returns the number of slots, of those that the options ask for, for which a store of this shape, which is yet to
    /// be opened, has room.
    ///
    /// # Errors
    /// Fails with [`DiskTierError::TooSmall`] if the store would have too few bytes to be of use.
    pub fn slots_within(shape: &RecordShape, options: &DiskOptions) -> Result<usize, DiskTierError> {
        let (config, segments_max) = tier_config(shape, options)?;
        Ok(options.slots.num_slots.min(segments_max * config.blocks_per_segment()))
    }

    /// Returns the number of tokens of a sequence that are sure to find room in a store of this shape, which is yet to
    /// be opened.
    ///
    /// # Errors
    /// Fails with [`DiskTierError::TooSmall`] if the store would have too few bytes to be of use.
    pub fn tokens_within(shape: &RecordShape, options: &DiskOptions) -> Result<usize, DiskTierError> {
        let (config, segments_max) = tier_config(shape, options)?;
        Ok(capacity_tokens(&config, segments_max, shape))
    }
}

impl LowerTier for DiskTier {
    fn name(&self) -> &'static str {
        "disk"
    }

    fn key_chain(&self) -> &KeyChain {
        &self.chain
    }

    /// Returns how many of `keys` the store has. These keys count as looked up, and so does the key behind them.
    fn look_up(&mut self, keys: &[BlockKey], _computing: Option<f64>) -> usize {
        let found = keys.iter().take_while(|&&key| self.tier.find(key).is_some()).count();
        keys.iter().take(found + 1).for_each(|&key| self.tier.looked_up(key));
        found
    }

    fn knows_contents(&self) -> bool {
        true
    }

    fn read_seconds(&self, blocks: usize) -> Option<f64> {
        let rate = self.figures.read_rate;
        (rate > 0.0).then(|| blocks as f64 * (self.store.shape.block_bytes() as f64 / rate))
    }

    fn fetch(&mut self, id: FetchId, wanted: Vec<Wanted>, _computing: Option<f64>) {
        let mut records: Vec<(RecordPlace, Vec<usize>, Vec<Expected>)> = Vec::new();
        for (position, wanted) in wanted.iter().enumerate() {
            // What has gone meanwhile stays unfilled.
            let Some(TierPlace { record, index }) = self.tier.find(wanted.key) else { break };
            let content = Some((wanted.parent, wanted.tokens.clone()));
            let expected = Expected { index, key: wanted.key, content };
            match records.iter_mut().rev().find(|(other, ..)| *other == record) {
                Some((_, positions, all)) => {
                    positions.push(position);
                    all.push(expected);
                }
                None => records.push((record, vec![position], vec![expected])),
            }
        }
        let (records_left, filled) = (records.len(), vec![false; wanted.len()]);
        let flight = FetchInFlight { wanted, filled, records_left, began: Instant::now(), bytes: 0 };
        self.fetches.insert(id, flight);
        for (record, positions, expected) in records {
            self.read(record, expected, Purpose::Fetch(id, positions));
        }
        self.settle_fetch(id);
    }

    fn is_reading(&self) -> bool {
        !self.purposes.is_empty()
    }

    fn poll(&mut self, blocks: &mut dyn BlockBytes, wait: Duration) -> Option<FetchEnded> {
        let deadline = Instant::now() + wait;
        loop {
            while let Some(done) = self.workers.done(Duration::ZERO) {
                self.take(done, blocks);
            }
            if self.staged_since.is_some_and(|since| since.elapsed() >= GATHER) {
                self.flush();
            }
            self.sweep();
            self.try_to_grow();
            if let Some(ended) = self.ended.pop_front() {
                return Some(ended);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.fetches.is_empty() {
                return None;
            }
            let done = self.workers.done(left)?;
            self.take(done, blocks);
        }
    }

    /// Returns whether a block should be staged now. [`Tier::wants`](interbed_kv::Tier::wants) explains `class`.
    fn wants(&mut self, key: BlockKey, class: u8) -> bool {
        !self.pause.is_on(Instant::now()) && !self.staged_keys.contains(&key) && self.tier.wants(key, class)
    }

    fn room(&self) -> usize {
        self.block_buffers.len()
    }

    fn buffers(&self) -> usize {
        self.num_block_buffers
    }

    fn stage(&mut self, label: BlockLabel, class: u8, block: BlockId, blocks: &mut dyn BlockBytes) -> bool {
        let allowed = self.budget.take(self.store.shape.block_bytes() as u64, Instant::now());
        let Some(buffer) = self.block_buffers.pop_if(|_| allowed) else {
            self.figures.refused_blocks += 1;
            return false;
        };
        self.copy(buffer, (label, class), block, blocks)
    }

    fn flush(&mut self) {
        if self.staged.is_empty() {
            return;
        }
        self.staged_since = None;
        let mut blocks = std::mem::take(&mut self.staged);
        let contents: Vec<_> = blocks.iter().map(|block| (block.label.key, block.class)).collect();
        for (key, _) in &contents {
            self.staged_keys.remove(key);
        }
        self.reclaim();
        match self.tier.reserve(&contents) {
            Some(record) => {
                self.writes_in_flight += 1;
                self.figures.queued_blocks += blocks.len();
                self.workers.write(WriteJob { record, blocks: Blocks::Staged(blocks) });
            }
            None => {
                self.figures.refused_blocks += blocks.len() as u64;
                let keys: Vec<_> = contents.iter().map(|&(key, _)| key).collect();
                self.block_buffers.extend(blocks.drain(..).map(|block| block.bytes));
                self.carried(&keys);
            }
        }
        self.reclaim();
        self.go_on_carrying();
    }

    fn is_settled(&self) -> bool {
        let written = self.staged.is_empty() && self.writes_in_flight == 0 && self.unsynced_blocks == 0;
        // What still waits to be swapped out is of no use to a later process.
        written && self.fetches.is_empty() && self.carrying.is_none() && self.purposes.is_empty()
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
            queued_blocks: self.figures.queued_blocks + self.staged.len(),
            queued_reads: self.purposes.len(),
            paused_until: self.pause.until,
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
    /// Copies `block` into `buffer`, to be written with the next record. Returns false if the block cannot be read; the
    /// block is not stored then.
    fn copy(
        &mut self,
        mut buffer: Vec<u8>,
        (label, class): (BlockLabel, u8),
        block: BlockId,
        blocks: &mut dyn BlockBytes,
    ) -> bool {
        let read = blocks.read(block, &mut buffer);
        match &read {
            Ok(()) => self.add(Staged { label, class, bytes: buffer, since: None }),
            Err(reason) => {
                tracing::warn!("a KV block is not stored: {reason}");
                self.figures.refused_blocks += 1;
                self.block_buffers.push(buffer);
            }
        }
        read.is_ok()
    }

    fn add(&mut self, staged: Staged) {
        self.staged_since.get_or_insert_with(Instant::now);
        self.staged_keys.insert(staged.label.key);
        self.staged.push(staged);
        if self.staged.len() >= self.store.shape.blocks_per_record() {
            self.flush();
        }
    }

    fn read(&mut self, record: RecordPlace, expected: Vec<Expected>, purpose: Purpose) {
        self.tier.hold(record.segment);
        let tag = self.next_tag;
        self.next_tag += 1;
        self.purposes.insert(tag, purpose);
        self.reads.push_back((tag, record, expected));
        self.feed_readers();
    }

    fn feed_readers(&mut self) {
        // Reads leave a buffer for swaps, unless there is only one.
        let kept = usize::from(self.num_record_buffers > 1 && self.swaps.is_stuck());
        while !self.reads.is_empty()
            && self.record_buffers.len() > kept
            && let Some(buffer) = self.record_buffers.pop()
        {
            let Some((tag, record, expected)) = self.reads.pop_front() else { return };
            let may_be_old = matches!(self.purposes.get(&tag), Some(Purpose::Slots(..)));
            self.workers.read(ReadJob { tag, record, expected, may_be_old, buffer });
        }
    }

    /// Forgets records that are too old to be read, from time to time.
    fn sweep(&mut self) {
        let Some(ttl) = self.ttl.filter(|_| self.swept_at.elapsed() >= SWEEP) else { return };
        self.swept_at = Instant::now();
        let older = self.ages.take_older(now().saturating_sub(ttl));
        if !older.is_empty() {
            let expired = self.tier.forget(|_, place| older.contains(&place.record));
            self.figures.expired_blocks += expired as u64;
        }
    }

    fn take(&mut self, done: Done, blocks: &mut dyn BlockBytes) {
        match done {
            Done::Written { job, outcome } => self.written(job, outcome),
            Done::Synced { blocks, well } => {
                self.unsynced_blocks -= blocks;
                match well {
                    true => self.figures.durable_blocks += blocks,
                    false => self.failed("KV on disk could not be synced"),
                }
            }
            Done::Read { job, outcome, seconds } => self.was_read(job, outcome, seconds, blocks),
        }
    }

    fn written(&mut self, WriteJob { record, blocks }: WriteJob, outcome: Result<(), WriteFailure>) {
        let keys: Vec<_> = blocks.labels().iter().map(|label| label.key).collect();
        self.writes_in_flight -= 1;
        self.figures.queued_blocks -= keys.len();
        self.tier.written(record, &keys, outcome.is_ok());
        if outcome.is_ok() {
            self.ages.add(record, blocks.written_at(), &self.tier);
            self.figures.written_bytes += self.store.shape.record_bytes(keys.len()) as u64;
            self.unsynced_blocks += blocks.num_named();
            self.pause.succeeded();
        }
        match blocks {
            Blocks::Staged(blocks) => {
                match outcome {
                    Ok(()) => {}
                    Err(WriteFailure::Full(reason)) => self.is_full(&reason),
                    Err(WriteFailure::Broken(reason)) => self.failed(&reason),
                }
                self.block_buffers.extend(blocks.into_iter().map(|block| block.bytes));
                self.carried(&keys);
                self.go_on_carrying();
            }
            Blocks::Swapped { id, buffer, .. } => {
                self.record_buffers.push(buffer);
                self.swaps.num_writing -= 1;
                let outcome = outcome.map_err(|failure| match failure {
                    WriteFailure::Full(reason) => {
                        self.is_full(&reason);
                        SwapFailure::NoRoom
                    }
                    WriteFailure::Broken(reason) => {
                        self.figures.write_errors += 1;
                        SwapFailure::Broken(reason)
                    }
                });
                self.swap_was_written(id, keys.len(), outcome);
                self.feed_readers();
            }
        }
    }

    /// Notes that a write has failed, and stores nothing for a while.
    fn failed(&mut self, reason: &str) {
        self.figures.write_errors += 1;
        begin(&mut self.pause, reason, "KV is not stored on disk");
    }

    /// Notes that the disk has no room for another segment. Segments that are there are emptied sooner for a while.
    fn is_full(&mut self, reason: &str) {
        self.tier.withhold_new();
        if self.tier.is_without_segments() {
            return self.failed(reason);
        }
        self.figures.write_errors += 1;
        begin(&mut self.growth, reason, "KV on disk makes do with the room that it has");
        self.reclaim();
    }

    /// Lets further segments be made again, if that was put off for long enough.
    fn try_to_grow(&mut self) {
        if self.growth.until.is_some() && !self.growth.is_on(Instant::now()) {
            self.growth.until = None;
            self.tier.offer_new();
        }
    }

    fn was_read(&mut self, job: ReadJob, outcome: Result<Header, String>, seconds: f64, blocks: &mut dyn BlockBytes) {
        let ReadJob { tag, record, expected, buffer, .. } = job;
        self.tier.release(record.segment);
        let bytes = self.store.shape.record_bytes(record.count.into()) as u64;
        match &outcome {
            Ok(_) => {
                self.figures.read_bytes += bytes;
                self.note_rate(bytes, seconds);
            }
            Err(reason) => {
                self.figures.read_errors += 1;
                tracing::debug!("{reason}: it counts as a miss");
                for Expected { index, key, .. } in &expected {
                    self.tier.lose(*key, TierPlace { record, index: *index });
                }
            }
        }
        match self.purposes.remove(&tag) {
            Some(Purpose::Fetch(id, positions)) => {
                if let Some(fetch) = self.fetches.get_mut(&id) {
                    fetch.records_left -= 1;
                    if outcome.is_ok() {
                        fetch.bytes += bytes;
                        for (&position, expected) in positions.iter().zip(&expected) {
                            let (count, index) = (record.count.into(), expected.index.into());
                            let (shape, record) = (&self.store.shape, buffer.as_slice());
                            let mut fill = |block: &mut [u8]| unpack(shape, count, index, record, block);
                            blocks.fill(fetch.wanted[position].block, &mut fill);
                            fetch.filled[position] = true;
                        }
                    }
                }
                self.record_buffers.push(buffer);
                self.settle_fetch(id);
            }
            Some(Purpose::Slots(id, into)) => {
                let bytes = outcome.map(|_| buffer.as_slice());
                self.swap_was_read(id, &into, (record, &expected), bytes, blocks);
                self.record_buffers.push(buffer);
            }
            Some(Purpose::Carry) => {
                self.carry(record, &expected, outcome, buffer.as_slice());
                self.record_buffers.push(buffer);
                self.go_on_carrying();
            }
            None => self.record_buffers.push(buffer),
        }
        self.feed_readers();
    }

    /// Updates the rate at which fetches read. Several reads run at a time, so a fetch's rate is about the rate of one
    /// read times their number.
    fn note_rate(&mut self, bytes: u64, seconds: f64) {
        let at_a_time = self.purposes.len().clamp(1, self.num_record_buffers.min(4)) as f64;
        let rate = at_a_time * bytes as f64 / seconds.max(1e-6);
        let before = self.figures.read_rate;
        self.figures.read_rate = if before == 0.0 { rate } else { before + RATE_SHARE * (rate - before) };
    }

    fn settle_fetch(&mut self, id: FetchId) {
        if self.fetches.get(&id).is_some_and(|fetch| fetch.records_left == 0)
            && let Some(fetch) = self.fetches.remove(&id)
        {
            let filled = fetch.filled.iter().take_while(|filled| **filled).count();
            let seconds = fetch.began.elapsed().as_secs_f64();
            let wanted = fetch.wanted.len();
            self.ended.push_back(FetchEnded { id, filled, wanted, bytes: fetch.bytes, seconds });
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
            assert_eq!(self.block_buffers.len(), self.num_block_buffers, "a block's buffer is lost");
            assert_eq!(self.record_buffers.len(), self.num_record_buffers, "a record's buffer is lost");
            assert!(self.purposes.is_empty() && self.staged_keys.is_empty());
        }
    }
}

impl Drop for DiskTier {
    fn drop(&mut self) {
        // The threads finish what was submitted before they end.
        self.flush();
    }
}

/// What distinguishes a store with a name from one without.
struct Setup {
    shape: RecordShape,
    config: KvTierConfig,
    /// Number of blocks that can be staged, and of records that can be read, at a time.
    num_buffers: (usize, usize),
    /// Number of threads that read.
    readers: usize,
    /// Maximum number of segments that swapped blocks hold.
    segments_max: usize,
}

/// Begins a pause, unless one is on, and says that `reason` has happened, and that `what` is so for a while.
fn begin(pause: &mut Pause, reason: &str, what: &str) {
    match pause.begin(Instant::now()) {
        Some((time, true)) => tracing::warn!("{reason}; {what} for {time:?}, or longer if that goes on"),
        Some((time, false)) => tracing::debug!("{reason}; {what} for {time:?}"),
        None => {}
    }
}

fn capacity_tokens(config: &KvTierConfig, segments_max: usize, shape: &RecordShape) -> usize {
    let segments = (config.num_segments as usize).saturating_sub(4 + segments_max);
    segments * config.blocks_per_segment() * shape.block_size()
}

/// Returns the size and shape of a store, and the maximum number of segments that swapped blocks hold.
fn tier_config(shape: &RecordShape, options: &DiskOptions) -> Result<(KvTierConfig, usize), DiskTierError> {
    let record_bytes: Vec<u64> =
        (0..=shape.blocks_per_record()).map(|count| shape.record_bytes(count) as u64).collect();
    let largest = record_bytes.last().copied().unwrap_or_default();
    let (segment_header, align) = (DIRECT_ALIGN as u64, DIRECT_ALIGN as u64);
    let smallest = segment_header + RECORDS_MIN * largest;
    let wanted = SEGMENT_BYTES.min(options.bytes / (2 * SEGMENTS_MIN)).max(smallest);
    let segment_bytes = wanted / align * align;
    let num_segments = options.bytes / segment_bytes;
    if num_segments < SEGMENTS_MIN {
        return Err(DiskTierError::TooSmall { got: options.bytes, least: SEGMENTS_MIN * smallest });
    }
    let num_segments = u32::try_from(num_segments).unwrap_or(u32::MAX);
    let held = options.slots.bytes.map_or(num_segments / SLOTS_SHARE, |bytes| {
        // One segment is written to, and one is emptied.
        u32::try_from(bytes.div_ceil(segment_bytes)).unwrap_or(u32::MAX).min(num_segments - SPARE_SEGMENTS - 2)
    });
    let segments_max = if options.slots.num_slots == 0 { 0 } else { held as usize };
    let (gate, spare_segments) = (options.gate.clone(), SPARE_SEGMENTS);
    Ok((KvTierConfig { num_segments, segment_bytes, segment_header, record_bytes, spare_segments, gate }, segments_max))
}

#[cfg(test)]
mod tests;

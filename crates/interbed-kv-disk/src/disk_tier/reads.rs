//! Reads records: for fetches, for swaps, and to write their blocks again.

use std::collections::VecDeque;

use interbed_io::AlignedBuffer;
use interbed_kv::{BlockBytes, BlockPart, RecordPlace, SwapFailure, TierPlace};

use super::DiskTier;
use crate::jobs::{Expected, Purpose, ReadJob};
use crate::record::{Header, unpack};

/// Weight of a new measurement in the rate at which records are read.
const RATE_SHARE: f64 = 0.2;

/// Records that are to be read, and buffers for records. Blocks that are swapped out are written from such buffers too.
pub(super) struct Reads {
    /// Records that wait for a buffer, in order.
    pub(super) waiting: VecDeque<(RecordPlace, Vec<Expected>, Purpose)>,
    /// Number of records that wait or are being read.
    pub(super) num: usize,
    pub(super) buffers: Vec<AlignedBuffer>,
    pub(super) num_buffers: usize,
    /// Number of buffers that fetches keep, so that they never have to wait for writes alone.
    kept: usize,
    /// Rate at which fetches read, in bytes per second; 0 if it is not known.
    pub(super) rate: f64,
}

impl Reads {
    /// Takes `buffers`, one of which is kept for fetches if there are any and if it is not the only one.
    pub(super) fn new(buffers: Vec<AlignedBuffer>, has_fetches: bool) -> Self {
        let num_buffers = buffers.len();
        let kept = usize::from(num_buffers > 1 && has_fetches);
        Self { waiting: VecDeque::new(), num: 0, buffers, num_buffers, kept, rate: 0.0 }
    }

    /// Returns the next record to read, if a buffer is free. A buffer is left for swaps that are stuck, unless there is
    /// only one.
    fn next(&mut self, swaps_are_stuck: bool) -> Option<ReadJob> {
        let left = usize::from(self.num_buffers > 1 && swaps_are_stuck);
        if self.waiting.is_empty() || self.buffers.len() <= left {
            return None;
        }
        let (buffer, (record, expected, purpose)) = self.buffers.pop().zip(self.waiting.pop_front())?;
        Some(ReadJob { record, expected, purpose, buffer })
    }

    /// Lends a buffer for blocks that are swapped out. As long as reads wait, only swaps that are stuck get one.
    pub(super) fn lend(&mut self, swaps_are_stuck: bool) -> Option<AlignedBuffer> {
        let kept = if self.waiting.is_empty() { self.kept } else { 0 };
        let may_lend = self.buffers.len() > kept && (self.waiting.is_empty() || swaps_are_stuck);
        self.buffers.pop_if(|_| may_lend)
    }

    /// Notes that a record of `bytes` bytes was read in `seconds`. Several reads run at a time, so a fetch's rate is
    /// about the rate of one read times their number.
    fn note_rate(&mut self, bytes: u64, seconds: f64) {
        let at_a_time = self.num.clamp(1, self.num_buffers.min(4)) as f64;
        let rate = at_a_time * bytes as f64 / seconds.max(1e-6);
        self.rate = if self.rate == 0.0 { rate } else { self.rate + RATE_SHARE * (rate - self.rate) };
    }
}

impl DiskTier {
    pub(super) fn read(&mut self, record: RecordPlace, expected: Vec<Expected>, purpose: Purpose) {
        self.tier.hold(record.segment);
        self.reads.num += 1;
        self.reads.waiting.push_back((record, expected, purpose));
        self.feed_readers();
    }

    pub(super) fn feed_readers(&mut self) {
        while let Some(job) = self.reads.next(self.swaps.is_stuck()) {
            self.workers.read(job);
        }
    }

    pub(super) fn was_read(
        &mut self,
        ReadJob { record, expected, purpose, buffer }: ReadJob,
        outcome: Result<Header, String>,
        seconds: f64,
        blocks: &mut dyn BlockBytes,
    ) {
        self.tier.release(record.segment);
        let bytes = self.store.shape.record_bytes(record.count.into()) as u64;
        match &outcome {
            Ok(_) => {
                self.figures.read_bytes += bytes;
                self.reads.note_rate(bytes, seconds);
            }
            Err(reason) => {
                self.figures.read_errors += 1;
                tracing::debug!("{reason}: it counts as a miss");
                self.lose(record, &expected);
            }
        }
        self.reads.num -= 1;
        let into: &[BlockPart] = match &purpose {
            // Once a fetch or a swap is no longer in flight, its blocks may belong to another sequence.
            Purpose::Fetch(id, into) if outcome.is_ok() && self.fetches.has(*id) => into,
            Purpose::Slots(id, into) if outcome.is_ok() && self.swaps.takes_bytes(*id) => into,
            _ => &[],
        };
        for (&part, Expected { index, .. }) in into.iter().zip(&expected) {
            let (shape, count, index) = (&self.store.shape, record.count.into(), usize::from(*index));
            let mut unpack = |to: &mut [u8]| unpack(shape, count, index, buffer.as_slice(), to);
            blocks.fill(part, shape.block_bytes(), &mut unpack);
        }
        let filled = into.len();
        match purpose {
            Purpose::Fetch(id, into) => self.fetches.was_read(id, &into, outcome.is_ok().then_some(bytes)),
            Purpose::Slots(id, _) => {
                self.swap_was_moved(id, filled, outcome.map(|_| ()).map_err(SwapFailure::Broken));
            }
            Purpose::Carry => self.carry(record, &expected, outcome, buffer.as_slice()),
        }
        self.reads.buffers.push(buffer);
        self.feed_readers();
    }

    /// Forgets blocks that are not what they should be.
    pub(super) fn lose(&mut self, record: RecordPlace, blocks: &[Expected]) {
        for Expected { index, key, .. } in blocks {
            self.tier.lose(*key, TierPlace { record, index: *index });
        }
    }
}

/// Gathers what is known of blocks by the records in which they lie, in the order in which these come up first.
pub(super) fn by_record<T>(blocks: impl IntoIterator<Item = (RecordPlace, T)>) -> Vec<(RecordPlace, Vec<T>)> {
    let mut records: Vec<(RecordPlace, Vec<T>)> = Vec::new();
    for (record, block) in blocks {
        match records.iter_mut().rev().find(|(other, _)| *other == record) {
            Some((_, all)) => all.push(block),
            None => records.push((record, vec![block])),
        }
    }
    records
}

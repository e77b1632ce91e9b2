//! Has records written, and puts off further writes after failures.

use std::time::{Duration, Instant};

use interbed_kv::{Pause, RecordPlace, SwapFailure, WriteBudget};

use super::DiskTier;
use crate::jobs::{Blocks, Staged, WriteFailure, WriteJob};

/// Longest time for which nothing is stored, or no segment is made, after a failure.
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// Writes in flight, and what keeps others back.
pub(super) struct Writes {
    in_flight: usize,
    /// Number of blocks with names that were written, but may not be on the disk yet.
    unsynced_blocks: u64,
    pub(super) budget: WriteBudget,
    /// Time for which nothing is stored, after a failed write.
    pub(super) pause: Pause,
    /// Time for which no further segment is made, after the disk was full.
    pub(super) growth: Pause,
}

impl Writes {
    pub(super) fn new(budget: WriteBudget) -> Self {
        let (pause, growth) = (Pause::new(PAUSE_MAX), Pause::new(PAUSE_MAX));
        Self { in_flight: 0, unsynced_blocks: 0, budget, pause, growth }
    }

    pub(super) fn are_paused(&self) -> bool {
        self.pause.is_on(Instant::now())
    }

    /// Returns whether all that was to be written is on the disk for sure, or has failed.
    pub(super) fn are_settled(&self) -> bool {
        self.in_flight == 0 && self.unsynced_blocks == 0
    }
}

impl DiskTier {
    /// Writes `blocks` as `record`, for which room is reserved.
    pub(super) fn write(&mut self, record: RecordPlace, blocks: Blocks) {
        self.writes.in_flight += 1;
        self.figures.queued_blocks += usize::from(record.count);
        self.workers.write(WriteJob { record, blocks });
    }

    pub(super) fn written(&mut self, WriteJob { record, blocks }: WriteJob, outcome: Result<(), WriteFailure>) {
        let keys: Vec<_> = blocks.labels().iter().map(|label| label.key).collect();
        self.writes.in_flight -= 1;
        self.figures.queued_blocks -= keys.len();
        self.tier.written(record, &keys, outcome.is_ok());
        if outcome.is_ok() {
            self.ages.add(record, blocks.written_at(), &self.tier);
            self.figures.written_bytes += self.store.shape.record_bytes(keys.len()) as u64;
            self.writes.unsynced_blocks += blocks.num_named();
            self.writes.pause.succeeded();
        }
        match blocks {
            Blocks::Staged(blocks) => {
                match outcome {
                    Ok(()) => {}
                    Err(WriteFailure::Full(reason)) => self.is_full(&reason),
                    Err(WriteFailure::Broken(reason)) => self.failed(&reason),
                }
                self.let_go(blocks);
                self.go_on_carrying();
            }
            Blocks::Swapped { id, buffer, .. } => {
                self.reads.buffers.push(buffer);
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
                self.swap_was_moved(id, keys.len(), outcome);
                self.feed_readers();
            }
        }
    }

    /// Notes that the sync of `blocks` blocks has ended.
    pub(super) fn synced(&mut self, blocks: u64, well: bool) {
        self.writes.unsynced_blocks -= blocks;
        match well {
            true => self.figures.durable_blocks += blocks,
            false => self.failed("KV on disk could not be synced"),
        }
    }

    /// Takes back the memory of blocks that are written, or never will be.
    pub(super) fn let_go(&mut self, blocks: Vec<Staged>) {
        self.carried(&blocks);
        self.staging.give_back(blocks.into_iter().map(|block| block.bytes));
    }

    /// Lets further segments be made again, if that was put off for long enough.
    pub(super) fn try_to_grow(&mut self) {
        let growth = &mut self.writes.growth;
        if growth.until.is_some() && !growth.is_on(Instant::now()) {
            growth.until = None;
            self.tier.offer_new();
        }
    }

    /// Notes that a write has failed, and stores nothing for a while.
    fn failed(&mut self, reason: &str) {
        self.figures.write_errors += 1;
        begin(&mut self.writes.pause, reason, "KV is not stored on disk");
    }

    /// Notes that the disk has no room for another segment. Segments that are there are emptied sooner for a while.
    fn is_full(&mut self, reason: &str) {
        self.tier.withhold_new();
        if self.tier.is_without_segments() {
            return self.failed(reason);
        }
        self.figures.write_errors += 1;
        begin(&mut self.writes.growth, reason, "KV on disk makes do with the room that it has");
        self.reclaim();
    }
}

/// Begins a pause, unless one is on, and says that `reason` has happened, and that `what` is so for a while.
fn begin(pause: &mut Pause, reason: &str, what: &str) {
    match pause.begin(Instant::now()) {
        Some((time, true)) => tracing::warn!("{reason}; {what} for {time:?}, or longer if that goes on"),
        Some((time, false)) => tracing::debug!("{reason}; {what} for {time:?}"),
        None => {}
    }
}

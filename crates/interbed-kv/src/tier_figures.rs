//! Figures of a tier below memory.

use std::time::Instant;

use crate::tier::TierCounts;

/// Figures of a tier below memory since its start. A figure that a tier does not have is 0.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TierFigures {
    /// Number of contents that can be read, or are being written.
    pub blocks: usize,
    /// Number of bytes that are in use.
    pub bytes_used: u64,
    /// Number of bytes that the tier may take.
    pub bytes_total: u64,
    /// Counts of contents that were found, stored and forgotten, as [`TierCounts`] explains.
    pub counts: TierCounts,
    /// Number of blocks that the tier was asked for, up to the first of each fetch that was missing.
    pub asked_blocks: u64,
    /// Number of fetches that were given up because the tier was too slow.
    pub slow_fetches: u64,
    /// Number of bytes written, including headers and blocks that were written again.
    pub written_bytes: u64,
    /// Number of bytes that were read.
    pub read_bytes: u64,
    /// Number of blocks that are known to outlive a crash.
    pub durable_blocks: u64,
    /// Number of blocks that were not stored for want of a buffer, of room, or of budget.
    pub refused_blocks: u64,
    /// Number of writes and syncs that have failed.
    pub write_errors: u64,
    /// Number of reads that have failed.
    pub read_errors: u64,
    /// Number of objects that were too old, or were not what their names say.
    pub wrong_objects: u64,
    /// Number of blocks that were forgotten because they were too old.
    pub expired_blocks: u64,
    /// Number of blocks that wait to be written, or are being written.
    pub queued_blocks: usize,
    /// Number of reads that wait or are in flight.
    pub queued_reads: usize,
    /// Number of frames that passes have read; a frame is the part of a sequence's KV that is streamed at once.
    pub frames: u64,
    /// Number of seconds that passes waited for [`frames`](Self::frames).
    pub frame_seconds: f64,
    /// Time until which the tier is left alone, because it has failed: a disk is not written to, and a store that
    /// servers share is not asked.
    pub paused_until: Option<Instant>,
    /// Rate at which fetches have read, in bytes per second.
    pub read_rate: f64,
    /// Number of seconds after which the first block of a fetch came lately.
    pub answer_seconds: f64,
    /// Number of bytes that swaps did not have to write, since the tier holds them already.
    pub swap_spared_bytes: u64,
}

impl TierFigures {
    /// Returns whether the tier is left alone now, because it has failed.
    pub fn is_paused(&self) -> bool {
        self.paused_until.is_some_and(|until| Instant::now() < until)
    }
}

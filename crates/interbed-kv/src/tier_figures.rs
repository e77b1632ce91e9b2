//! Figures of a tier below memory.

use std::time::Instant;

use crate::tier::TierCounts;

/// Figures of a tier below memory since its start. A figure that a tier does not have is 0 or `None`. A *block* here is
/// whatever the tier stores under one key: a part, in the [terms](crate#terms) of this crate.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TierFigures {
    /// Number of contents that can be read, or are being written.
    pub blocks: usize,
    /// Number of bytes in use.
    pub bytes_used: u64,
    /// Number of bytes that the tier may take.
    pub bytes_total: u64,
    /// Counts of contents that were found, stored and forgotten, as [`TierCounts`] explains.
    pub counts: TierCounts,
    /// Number of blocks that fetches have asked the tier for, each fetch up to the first block that was missing.
    pub asked_blocks: u64,
    /// Number of fetches that the tier gave up because they took too long.
    pub slow_fetches: u64,
    /// Number of bytes written, including headers and blocks that were written again.
    pub written_bytes: u64,
    /// Number of bytes that were read.
    pub read_bytes: u64,
    /// Number of blocks whose write was synced, so that they outlive a crash, including blocks that were forgotten
    /// later.
    pub durable_blocks: u64,
    /// Number of blocks that the tier did not store for want of a buffer, of room, or of the budget of writes.
    pub refused_blocks: u64,
    /// Number of writes and syncs that have failed.
    pub write_errors: u64,
    /// Number of reads that have failed.
    pub read_errors: u64,
    /// Number of objects of a shared store that were too old, or were not what their names say.
    pub wrong_objects: u64,
    /// Number of blocks that the tier forgot because they were too old.
    pub expired_blocks: u64,
    /// Number of blocks that wait to be written, or are being written.
    pub queued_blocks: usize,
    /// Number of reads that wait or are in flight.
    pub queued_reads: usize,
    /// Number of [frames](crate::FrameTier) that passes have read.
    pub frames: u64,
    /// Number of seconds that passes have waited for these [`frames`](Self::frames).
    pub frame_seconds: f64,
    /// Time until which the engine leaves the tier alone, because the tier has failed: nothing is written to a disk,
    /// and a store that servers share is not asked. `None` if the tier has not failed yet.
    pub paused_until: Option<Instant>,
    /// Rate at which fetches have read lately, in bytes per second.
    pub read_rate: f64,
    /// Number of seconds from the beginning of a fetch to its first block, as measured lately.
    pub answer_seconds: f64,
    /// Number of bytes that swaps did not have to write, since the tier holds them already.
    pub swap_spared_bytes: u64,
}

impl TierFigures {
    /// Returns whether the engine leaves the tier alone now, because the tier has failed.
    pub fn is_paused(&self) -> bool {
        self.paused_until.is_some_and(|until| Instant::now() < until)
    }
}

//! The configuration and the figures of KV on disk.

use std::time::Duration;

use interbed_kv_disk::{DiskStats, DiskTier};

/// The rule that says which blocks are written to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvDiskMode {
    /// Blocks that memory has no room for any more.
    Evict,
    /// Blocks of prompts as soon as they are computed, and blocks that memory has no room for any more.
    #[default]
    Eager,
    /// Every block as soon as it is full.
    Mirror,
}

impl KvDiskMode {
    /// Returns whether blocks of generated tokens go to disk as soon as they are computed.
    pub(crate) fn stores_generated(self) -> bool {
        self == Self::Mirror
    }
}

/// The rule that says which part of a prefix on disk is computed rather than read.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Recompute {
    /// As many of the first blocks as can be computed while the rest is read, by the rates at which this engine has
    /// read and computed so far. If reading the whole prefix takes longer than computing it, all of the prefix is
    /// computed.
    #[default]
    Measured,
    /// The given share of the prefix, whatever the rates are.
    Share(f64),
}

impl Recompute {
    /// Returns how many of the first of `blocks` blocks are computed. Reading all of them takes `reading` seconds and
    /// computing all of them takes `computing` seconds, as far as these times are known.
    pub(crate) fn blocks(self, blocks: usize, reading: Option<f64>, computing: Option<f64>) -> usize {
        let share = match (self, reading, computing) {
            (Recompute::Share(share), ..) => share,
            (Recompute::Measured, Some(reading), Some(computing)) if computing < reading => 1.0,
            // With this share, reading and computing end at the same time.
            (Recompute::Measured, Some(reading), Some(computing)) => reading / (reading + computing),
            // While a rate is unknown, blocks are read, so that the rate becomes known.
            (Recompute::Measured, ..) => 0.0,
        };
        ((blocks as f64 * share) as usize).min(blocks)
    }
}

/// A store on disk, and the rules about what goes there.
pub struct KvDisk {
    /// The store, for blocks of the runner's shape.
    pub tier: DiskTier,
    /// The rule that says which blocks are written.
    pub mode: KvDiskMode,
    /// The rule that says which part of a prefix on disk is computed.
    pub recompute: Recompute,
    /// The time after which blocks that nobody has held go to disk, whatever the mode is. When the engine stops, the
    /// last such blocks go to disk at once.
    pub idle_after: Duration,
}

/// Figures of KV on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KvDiskStatus {
    /// The figures of the store.
    pub store: DiskStats,
    /// The prompt tokens whose KV was read from disk.
    pub fetched_tokens: u64,
    /// The fetches that have ended.
    pub fetches: u64,
    /// The seconds that sequences waited for fetches that have ended.
    pub fetch_seconds: f64,
    /// The fetches that did not bring all blocks that were found.
    pub fetches_cut: u64,
    /// The prefixes that were on disk and were computed, since that was expected to be faster.
    pub recomputed: u64,
    /// The prefixes of which the first part was computed while the rest was read.
    pub shared: u64,
    /// The sequences that are longer than memory and have not ended.
    pub longer_than_memory: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_and_computing_end_together_or_the_faster_does_all() {
        let measured = |reading, computing| Recompute::Measured.blocks(100, reading, computing);
        assert_eq!((measured(Some(1.0), Some(0.9)), measured(Some(1.0), Some(3.0))), (100, 25));
        assert_eq!((measured(Some(1.0), Some(500.0)), measured(Some(0.0), Some(0.0))), (0, 0));
        assert_eq!((measured(None, Some(1.0)), measured(Some(1.0), None)), (0, 0));
        assert_eq!(Recompute::Share(0.5).blocks(3, None, None), 1);
    }
}

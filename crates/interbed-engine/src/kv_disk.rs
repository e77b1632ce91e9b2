//! KV on disk, as the engine is given it.

use std::time::Duration;

use interbed_kv_disk::{DiskStats, DiskTier};

/// Which blocks are written to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvDiskMode {
    /// Those that memory has no room for any more.
    Evict,
    /// Those of prompts as soon as they are computed, and those that memory has no room for.
    #[default]
    Eager,
    /// Every block as soon as it is full.
    Mirror,
}

impl KvDiskMode {
    /// Whether what was generated goes there as soon as it is computed.
    pub(crate) fn stores_generated(self) -> bool {
        self == Self::Mirror
    }
}

/// Which part of a prefix that is on disk is computed rather than read.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Recompute {
    /// As much of its beginning as can be computed while the rest is read, by the rates at which this engine has read
    /// and computed so far; all of it where reading would take longer than computing.
    #[default]
    Measured,
    /// This share of it, whatever the rates are.
    Share(f64),
}

impl Recompute {
    /// How many of `blocks` blocks, the first ones, are computed, where reading all of them takes `reading` seconds and
    /// computing them `computing`, as far as that is known.
    pub(crate) fn blocks(self, blocks: usize, reading: Option<f64>, computing: Option<f64>) -> usize {
        let share = match (self, reading, computing) {
            (Recompute::Share(share), ..) => share,
            (Recompute::Measured, Some(reading), Some(computing)) if computing < reading => 1.0,
            // Both end at the same time.
            (Recompute::Measured, Some(reading), Some(computing)) => reading / (reading + computing),
            // What was not measured yet is tried.
            (Recompute::Measured, ..) => 0.0,
        };
        ((blocks as f64 * share) as usize).min(blocks)
    }
}

/// A store on disk, and what goes there.
pub struct KvDisk {
    /// The store, for blocks of the runner's shape.
    pub tier: DiskTier,
    /// What goes there.
    pub mode: KvDiskMode,
    /// What is computed of a prefix that is there.
    pub recompute: Recompute,
    /// When blocks go to disk that nobody has held for so long, whatever the mode; and the last ones when the engine
    /// stops.
    pub idle_after: Duration,
}

/// Figures of KV on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KvDiskStatus {
    /// Figures of the store.
    pub store: DiskStats,
    /// Tokens of prompts that were brought back.
    pub fetched_tokens: u64,
    /// Fetches that have ended, and the seconds that sequences waited for them.
    pub fetches: u64,
    /// See [`fetches`](Self::fetches).
    pub fetch_seconds: f64,
    /// Fetches that did not bring all that was found.
    pub fetches_cut: u64,
    /// Prefixes that were on disk and were computed, since that was expected to be faster.
    pub recomputed: u64,
    /// Prefixes of which the first part was computed while the rest was read.
    pub shared: u64,
    /// Sequences that are longer than memory and have not ended.
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

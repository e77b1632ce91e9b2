//! KV on disk, as the engine is given it.

use std::time::Duration;

use strata_kv_disk::{DiskStats, DiskTier};

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

/// A store on disk, and what goes there.
pub struct KvDisk {
    /// The store, for blocks of the runner's shape.
    pub tier: DiskTier,
    /// What goes there.
    pub mode: KvDiskMode,
    /// Whether a prefix that is expected to be computed sooner than read is computed.
    pub may_recompute: bool,
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
}

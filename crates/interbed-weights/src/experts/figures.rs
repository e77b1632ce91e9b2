//! Counts of what an arena has done so far.

/// Counts since the arena was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArenaFigures {
    /// Counts of visits of few tokens, at most 16.
    pub decode: VisitFigures,
    /// Counts of visits of more tokens: chunks of prompts, alone or beside decodes.
    pub chunks: VisitFigures,
    /// Counts of reads ahead of the router.
    pub prefetch: PrefetchFigures,
    /// Number of slabs that gave their slot to another slab.
    pub evictions: u64,
    /// Number of reads that failed or were cancelled.
    pub failed: u64,
}

/// Counts of one kind of visits. A slab counts once in a visit, however many tokens use it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VisitFigures {
    /// Number of visits of layers.
    pub visits: u64,
    /// Number of uses of slabs by single tokens.
    pub token_uses: u64,
    /// Number of slabs that were in memory.
    pub hits: u64,
    /// Number of slabs that were already being read ahead.
    pub arriving: u64,
    /// Number of slabs that had to be read.
    pub misses: u64,
    /// Number of bytes of all slabs that were wanted.
    pub wanted_bytes: u64,
    /// Number of bytes of the misses.
    pub miss_bytes: u64,
    /// Number of bytes of the misses that a slightly larger arena would have hit, as [`ShadowHits`] explains.
    pub shadow_bytes: u64,
}

/// Counts of reads ahead of the router.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefetchFigures {
    /// Number of reads that were placed.
    pub placed: u64,
    /// Number of bytes of the reads that were placed.
    pub placed_bytes: u64,
    /// Number of slabs read ahead that the next visit of their layer wanted.
    pub used: u64,
    /// Number of bytes of the slabs read ahead that the next visit of their layer wanted.
    pub used_bytes: u64,
}

/// Misses that a slightly larger arena, the shadow, would have hit. The arena notes when each slab was evicted, and so
/// knows whether the shadow would still have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShadowHits {
    /// Number of bytes of these misses since the arena was created.
    pub bytes: u64,
    /// Number of bytes by which the shadow is larger: a sixteenth of all slabs.
    pub more: u64,
}

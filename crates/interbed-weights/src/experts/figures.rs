//! What an arena has done so far.

/// Counts since the arena was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArenaFigures {
    /// Visits of few tokens, at most 16.
    pub decode: VisitFigures,
    /// Visits of more tokens: chunks of prompts, alone or beside decodes.
    pub chunks: VisitFigures,
    /// Reads ahead of the router.
    pub prefetch: PrefetchFigures,
    /// Slabs that gave their slot to another.
    pub evictions: u64,
    /// Reads that failed or were cancelled.
    pub failed: u64,
}

/// Counts of one kind of visits. A slab counts once in a visit, however many tokens use it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VisitFigures {
    /// Visits of layers.
    pub visits: u64,
    /// Uses of slabs by single tokens.
    pub token_uses: u64,
    /// Slabs that were in memory.
    pub hits: u64,
    /// Slabs that were being read ahead already.
    pub arriving: u64,
    /// Slabs that had to be read.
    pub misses: u64,
    /// Bytes of all slabs that were wanted.
    pub wanted_bytes: u64,
    /// Bytes of the misses.
    pub miss_bytes: u64,
    /// Bytes of the misses that a slightly larger arena would have hit; see [`ShadowHits`].
    pub shadow_bytes: u64,
}

/// Counts of reads ahead of the router.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefetchFigures {
    /// Reads that were placed.
    pub placed: u64,
    /// Their bytes.
    pub placed_bytes: u64,
    /// Slabs that their layer's next visit wanted.
    pub used: u64,
    /// Bytes of these.
    pub used_bytes: u64,
}

/// Misses that a slightly larger arena, the shadow, would have hit. Ghost entries of evicted slabs tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShadowHits {
    /// Their bytes, since the arena was made.
    pub bytes: u64,
    /// By how many bytes the shadow is larger: a sixteenth of all slabs.
    pub more: u64,
}

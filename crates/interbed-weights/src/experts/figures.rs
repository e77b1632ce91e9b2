//! Counts of what an arena has done so far.

/// Counts since the arena was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArenaFigures {
    /// Counts of visits with at most 16 tokens, such as decoding steps.
    pub decode: VisitFigures,
    /// Counts of visits with more than 16 tokens. These are chunks of prompts, alone or together with decoding.
    pub chunks: VisitFigures,
    /// Counts of prefetches, which are reads that begin before the router has chosen.
    pub prefetch: PrefetchFigures,
    /// Number of slabs that gave their slot to another slab.
    pub evictions: u64,
    /// Number of reads that failed or were cancelled.
    pub failed: u64,
}

/// Counts of one kind of visit. Each visit counts a slab once, however many tokens use the slab. Only `token_uses`
/// counts every token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VisitFigures {
    /// Number of visits to mixture layers.
    pub visits: u64,
    /// Number of uses of slabs. Each token that uses a slab counts as one use.
    pub token_uses: u64,
    /// Number of wanted slabs that were in memory when the visit began.
    pub hits: u64,
    /// Number of wanted slabs that were already being read when the visit began.
    pub arriving: u64,
    /// Number of wanted slabs that were neither in memory nor being read when the visit began.
    pub misses: u64,
    /// Total size of all wanted slabs, in bytes.
    pub wanted_bytes: u64,
    /// Total size of the missed slabs, in bytes.
    pub miss_bytes: u64,
    /// Total size, in bytes, of the missed slabs that a slightly larger arena would have held, as [`ShadowHits`]
    /// explains.
    pub shadow_bytes: u64,
}

/// Counts of prefetches, which are reads that begin before the router has chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefetchFigures {
    /// Number of prefetches that got a slot.
    pub placed: u64,
    /// Total size of the slabs whose prefetches got a slot, in bytes.
    pub placed_bytes: u64,
    /// Number of prefetched slabs that the next visit to their layer wanted.
    pub used: u64,
    /// Total size of the prefetched slabs that the next visit to their layer wanted, in bytes.
    pub used_bytes: u64,
}

/// Misses that a slightly larger arena would have avoided. This larger arena, the shadow, exists only in the arena's
/// records: the arena notes when each slab was evicted, and concludes whether the shadow would still hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShadowHits {
    /// Total size of the slabs that the arena missed and the shadow would have held, in bytes, since the arena was
    /// created.
    pub bytes: u64,
    /// Size, in bytes, by which the shadow is larger than the arena. The additional slots of the shadow hold one
    /// sixteenth of the model's slabs of each size, rounded up.
    pub more: u64,
}

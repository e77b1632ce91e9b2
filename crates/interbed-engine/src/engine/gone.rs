//! What the tiers below memory may take.

use interbed_kv::{BlockId, BlockKey, Evicted};

/// What memory has given up, and what it may.
pub(super) struct Gone {
    pub(super) evicted: Vec<Evicted>,
    /// Blocks that were computed and are to be stored.
    pub(super) computed: Vec<(BlockId, BlockKey)>,
    /// Blocks that were computed and are to be stored when they have been idle.
    pub(super) unstored: Vec<(BlockId, BlockKey)>,
}

//! Lists of blocks that the tiers below memory may store.

use interbed_kv::{BlockId, BlockKey, Evicted};

/// The blocks that memory has given up, and the computed blocks that tiers below memory may store.
pub(super) struct Gone {
    pub(super) evicted: Vec<Evicted>,
    /// Blocks that were computed and are to be stored at once.
    pub(super) computed: Vec<(BlockId, BlockKey)>,
    /// Blocks that were computed and are to be stored when they have been idle for a while.
    pub(super) unstored: Vec<(BlockId, BlockKey)>,
}

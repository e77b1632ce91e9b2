//! Figures of a block manager for monitoring.

/// A snapshot of a block manager. The equation
/// `blocks_used + blocks_cached + blocks_free + blocks_withdrawn = blocks_total` always holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvStats {
    /// Maximum number of physical blocks that the pool can have.
    pub blocks_total: usize,
    /// Number of blocks that at least one sequence or swap in flight holds; a shared block counts once.
    pub blocks_used: usize,
    /// Number of blocks that no sequence holds, but whose content a look-up can still find.
    pub blocks_cached: usize,
    /// Number of blocks that hold no content and can be given out.
    pub blocks_free: usize,
    /// Number of blocks that were withdrawn from the pool and have no memory now.
    pub blocks_withdrawn: usize,
    /// Number of places for tokens in used blocks; the places of a shared block count once.
    pub slots_allocated: usize,
    /// Number of places for tokens in used blocks that hold no token yet.
    pub slots_empty: usize,
    /// Number of sequences that hold blocks or swap slots.
    pub sequences: usize,
    /// Number of sequences that are swapped out and hold no block.
    pub sequences_swapped: usize,
    /// Number of slots of the swap pool, each of which holds one block.
    pub swap_slots_total: usize,
    /// Number of swap slots that hold KV, or are reserved for a swap in flight.
    pub swap_slots_used: usize,
    /// Number of tokens of allocated sequences that were looked up in the prefix index, since the start.
    pub prefix_query_tokens: u64,
    /// Number of looked-up tokens that were found, since the start.
    pub prefix_hit_tokens: u64,
    /// Number of cached blocks evicted for fresh ones, for a smaller pool, or for a move, since the start.
    pub evictions: u64,
    /// Number of sequences that were given blocks, since the start.
    pub allocations: u64,
    /// Number of allocations and appends refused for lack of blocks, since the start.
    pub allocation_failures: u64,
    /// Number of sequences that were forked from others, since the start.
    pub forks: u64,
    /// Number of blocks copied because a sequence wrote to a block that others share, since the start.
    pub copy_on_writes: u64,
    /// Number of blocks moved by compaction, since the start.
    pub moves: u64,
    /// Number of blocks copied to the swap pool by swaps that succeeded, since the start.
    pub swapped_out_blocks: u64,
    /// Number of blocks copied back by swaps that succeeded, since the start.
    pub swapped_in_blocks: u64,
    /// Number of blocks that came back without a copy, because the prefix index still held their content, since the
    /// start.
    pub swap_spared_blocks: u64,
    /// Number of swaps that failed, whose sequences lost their KV, since the start.
    pub swaps_failed: u64,
    /// Number of blocks whose KV was read from a lower tier, since the start.
    pub fetched_blocks: u64,
    /// Number of blocks computed twice and merged at commit, because another sequence had published an equal block,
    /// since the start.
    pub blocks_merged: u64,
}

impl KvStats {
    /// Returns the share of looked-up tokens that were found. Returns 0 before the first look-up.
    pub fn hit_rate(&self) -> f64 {
        ratio(self.prefix_hit_tokens as f64, self.prefix_query_tokens as f64)
    }

    /// Returns the internal fragmentation, which is the share of allocated places for tokens that are empty. Returns 0
    /// if nothing is allocated.
    pub fn internal_fragmentation(&self) -> f64 {
        ratio(self.slots_empty as f64, self.slots_allocated as f64)
    }
}

/// A snapshot of what is kept for layers that need no more than the tail of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TailStats {
    /// Number of blocks of these layers that at least one sequence holds.
    pub blocks_held: usize,
    /// Number of blocks of these layers that no sequence holds, and that a later sequence may go on behind.
    pub blocks_cached: usize,
    /// The bytes of the cached blocks, as [`TailConfig::block_bytes`](crate::TailConfig::block_bytes) counts them.
    pub cached_bytes: usize,
    /// Number of contents behind which a sequence can go on.
    pub points: usize,
    /// Number of such contents that ceased to be one because their memory was needed, since the start.
    pub points_given_up: u64,
}

/// The memory of a pool, in the blocks that [`KvConfig::num_blocks`](crate::KvConfig::num_blocks) counts. Blocks of all
/// groups of layers are counted by their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvUse {
    /// Number of blocks that have memory, or whose memory is set aside for blocks of any group.
    pub present: usize,
    /// Number of blocks that sequences and swaps in flight hold.
    pub used: usize,
    /// Number of blocks that nobody holds, and that a later sequence may use.
    pub cached: usize,
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { 0.0 } else { part / whole }
}

//! Figures for monitoring.

/// A snapshot of a block manager. The sum `blocks_used + blocks_cached + blocks_free + blocks_withdrawn` always equals
/// `blocks_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvStats {
    /// The most physical blocks that the pool can have.
    pub blocks_total: usize,
    /// Blocks that at least one sequence or swap in flight holds. A shared block counts once.
    pub blocks_used: usize,
    /// Blocks that no sequence holds, but whose content a look-up can still find.
    pub blocks_cached: usize,
    /// Blocks that hold no content and can be given out.
    pub blocks_free: usize,
    /// Blocks that were withdrawn from the pool and have no memory now.
    pub blocks_withdrawn: usize,
    /// Places for tokens in used blocks. The places of a shared block count once.
    pub slots_allocated: usize,
    /// Places for tokens in used blocks that hold no token yet.
    pub slots_empty: usize,
    /// Sequences that hold blocks or swap slots.
    pub sequences: usize,
    /// Sequences that are swapped out and hold no block.
    pub sequences_swapped: usize,
    /// Slots of the swap pool, each of which holds one block.
    pub swap_slots_total: usize,
    /// Swap slots that hold KV, or are reserved for a swap in flight.
    pub swap_slots_used: usize,
    /// Since start: tokens of allocated sequences that were looked up in the prefix index.
    pub prefix_query_tokens: u64,
    /// Since start: looked-up tokens that were found.
    pub prefix_hit_tokens: u64,
    /// Since start: cached blocks evicted for fresh ones, for a smaller pool, or for a move.
    pub evictions: u64,
    /// Since start: sequences that were given blocks.
    pub allocations: u64,
    /// Since start: allocations and appends refused for lack of blocks.
    pub allocation_failures: u64,
    /// Since start: sequences that were forked from others.
    pub forks: u64,
    /// Since start: blocks copied because a sequence wrote to a block that others share.
    pub copy_on_writes: u64,
    /// Since start: blocks moved by compaction.
    pub moves: u64,
    /// Since start: blocks copied to the swap pool by swaps that succeeded.
    pub swapped_out_blocks: u64,
    /// Since start: blocks copied back by swaps that succeeded.
    pub swapped_in_blocks: u64,
    /// Since start: blocks that came back without a copy, because the prefix index still held their content.
    pub swap_spared_blocks: u64,
    /// Since start: swaps that failed, whose sequences lost their KV.
    pub swaps_failed: u64,
    /// Since start: blocks whose KV was read from a lower tier.
    pub fetched_blocks: u64,
    /// Since start: blocks computed twice and merged at commit, because another sequence had published an equal block.
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

fn ratio(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { 0.0 } else { part / whole }
}

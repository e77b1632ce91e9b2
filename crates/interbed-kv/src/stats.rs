//! Figures of a block manager for monitoring.

use crate::config::Keeps;

/// A snapshot of a block manager. Block counts are of trunk blocks, except where they say otherwise. `blocks_used +
/// blocks_cached + blocks_free + blocks_withdrawn = blocks_total` always holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvStats {
    /// Most trunk blocks that the pool can have.
    pub blocks_total: usize,
    /// Number of blocks that at least one sequence or transfer in flight holds; a shared block counts once.
    pub blocks_used: usize,
    /// Number of blocks that have a findable content and no holder.
    pub blocks_cached: usize,
    /// Number of blocks that have memory and no content.
    pub blocks_free: usize,
    /// Number of blocks that have no memory now.
    pub blocks_withdrawn: usize,
    /// Number of places for tokens in used blocks; the places of a shared block count once.
    pub slots_allocated: usize,
    /// Number of places for tokens in used blocks that hold no token yet.
    pub slots_empty: usize,
    /// Number of sequences that have begun and were not freed.
    pub sequences: usize,
    /// Number of these sequences that are swapped out and hold no block.
    pub sequences_swapped: usize,
    /// Number of slots of the swap pool, each of which holds one part.
    pub swap_slots_total: usize,
    /// Number of slots that sequences or swaps in flight hold.
    pub swap_slots_used: usize,
    /// Number of tokens of allocated sequences, since the start. Sequences that share nothing do not count.
    pub prefix_query_tokens: u64,
    /// Number of these tokens that [`allocate`](crate::BlockManager::allocate) has found computed, since the start.
    pub prefix_hit_tokens: u64,
    /// Number of cached trunk blocks evicted since the start: for fresh or foreseen blocks, for tail blocks, for a
    /// smaller pool, or for a move. Blocks that became useless because a resume point ended do not count.
    pub evictions: u64,
    /// Number of sequences that were allocated or begun below memory, since the start.
    pub allocations: u64,
    /// Number of calls that failed for lack of units, since the start: allocations, appends, reservations ahead, swaps
    /// in and fetches.
    pub allocation_failures: u64,
    /// Number of sequences that were forked from others, since the start.
    pub forks: u64,
    /// Number of blocks copied because a sequence wrote to a block that others share, since the start.
    pub copy_on_writes: u64,
    /// Number of trunk blocks and tail blocks that compaction has moved, since the start.
    pub moves: u64,
    /// Number of parts of trunk blocks and tail blocks that successful swaps have copied to slots, since the start.
    pub swapped_out_blocks: u64,
    /// Number of parts of trunk blocks and tail blocks that successful swaps have copied back, since the start.
    pub swapped_in_blocks: u64,
    /// Number of parts that swaps into memory need not copy, because their content was still findable, since the start.
    pub swap_spared_blocks: u64,
    /// Number of swaps that failed, so that their sequences lost their KV, since the start.
    pub swaps_failed: u64,
    /// Number of blocks that fetches have filled for sequences that waited for them, since the start. Fetches ahead do
    /// not count.
    pub fetched_blocks: u64,
    /// Number of blocks computed twice and merged at commit, because another sequence had published an equal block,
    /// since the start.
    pub blocks_merged: u64,
}

impl KvStats {
    /// Returns the share of [`prefix_query_tokens`](Self::prefix_query_tokens) that were found. Returns 0 before the
    /// first allocation.
    pub fn hit_rate(&self) -> f64 {
        ratio(self.prefix_hit_tokens as f64, self.prefix_query_tokens as f64)
    }

    /// Returns the internal fragmentation: the share of the token places in used blocks that are empty. Returns 0 if no
    /// block is used.
    pub fn internal_fragmentation(&self) -> f64 {
        ratio(self.slots_empty as f64, self.slots_allocated as f64)
    }
}

/// A snapshot of all tail groups and resume points.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TailStats {
    /// The tail groups, in the order of [`KvConfig::tails`](crate::KvConfig::tails).
    pub groups: Vec<TailGroupStats>,
    /// Number of [resume points](crate#terms).
    pub points: usize,
    /// Number of resume points that were given up because memory was needed, since the start. Points that ended because
    /// the trunk block of their content was evicted do not count.
    pub points_given_up: u64,
}

/// A snapshot of one tail group. Each of its blocks that has memory is held, cached or free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailGroupStats {
    /// What the layers of the group keep.
    pub keeps: Keeps,
    /// The bytes of one tail block.
    pub block_bytes: usize,
    /// Number of tail blocks that at least one sequence or transfer in flight holds.
    pub blocks_held: usize,
    /// Number of tail blocks that nothing holds and that resume points need.
    pub blocks_cached: usize,
    /// Number of tail blocks that nobody needs.
    pub blocks_free: usize,
}

impl TailStats {
    /// Returns the number of tail blocks of all groups that sequences or transfers in flight hold.
    pub fn blocks_held(&self) -> usize {
        self.groups.iter().map(|group| group.blocks_held).sum()
    }

    /// Returns the number of tail blocks of all groups that nothing holds and that resume points need.
    pub fn blocks_cached(&self) -> usize {
        self.groups.iter().map(|group| group.blocks_cached).sum()
    }

    /// Returns the bytes of those tail blocks of all groups of which `count` tells the number.
    pub fn bytes(&self, count: impl Fn(&TailGroupStats) -> usize) -> u64 {
        self.groups.iter().map(|group| count(group) as u64 * group.block_bytes as u64).sum()
    }
}

/// The memory of a pool in [units](crate#terms). Trunk blocks and tail blocks are counted by their bytes, rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvUse {
    /// Number of units that have memory, or whose memory is set aside for blocks that may still come.
    pub present: usize,
    /// Number of units that sequences and transfers in flight hold.
    pub used: usize,
    /// Number of units that nothing holds, and that a later sequence may find.
    pub cached: usize,
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { 0.0 } else { part / whole }
}

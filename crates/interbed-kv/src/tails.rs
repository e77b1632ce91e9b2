//! What is kept for tail groups, and the memory that tail blocks share with trunk blocks.

use std::sync::Arc;

use crate::{
    config::{Keeps, KvConfig, TailConfig},
    ids::BlockId,
    resume_points::{Lasts, ResumePoints},
    tail_parts::TailParts,
    tail_pool::TailPool,
    tail_table::TailTable,
};

/// The least distance, in tokens, of resume points of a long prompt that last for no other reason than their distance.
const STRIDE_MIN: usize = 1024;
/// The least ratio of the bytes of KV between two resume points that last only for their distance to the bytes of one
/// point's tails.
const STRIDE_WORTH: usize = 8;
/// One in this many resume points that last only for their distance is wanted: below memory, room is cheap, but writes
/// are not.
const STRIDES_BELOW: usize = 4;

/// The pools of the tail groups, the resume points, and the bytes of all blocks.
///
/// Trunk blocks and tail blocks take their memory from one budget of bytes. A block that nobody holds can always be
/// given up, so the bytes that are available are the budget less the bytes of the blocks that are held.
#[derive(Debug)]
pub(crate) struct Tails {
    pub(crate) pools: Vec<TailPool>,
    pub(crate) points: ResumePoints,
    /// Says which parts of tail blocks a sequence needs to go on behind a content.
    pub(crate) parts: Arc<TailParts>,
    /// The bytes of a trunk block; 0 if trunk blocks hold nothing.
    pub(crate) block_bytes: usize,
    /// The bytes of one [unit](crate#terms).
    pub(crate) unit_bytes: usize,
    /// The number of units that all blocks together may take.
    pub(crate) usable: usize,
    /// The distance, in blocks, of points of a long prompt that last because of their distance.
    stride: usize,
    block_size: usize,
    pass_tokens: usize,
    /// Number of points that were given up because memory was needed, since the start. Points that ended because the
    /// trunk block of their content was evicted do not count.
    pub(crate) given_up: u64,
}

impl Tails {
    /// Makes empty pools for `config`; `None` if all layers keep the KV of all tokens.
    pub(crate) fn new(config: &KvConfig) -> Option<Box<Self>> {
        let parts = TailParts::new(config)?;
        let unit_bytes = config.unit_bytes();
        let budget = config.num_blocks * unit_bytes;
        let num_contents = config.num_blocks + config.num_swap_blocks;
        let mut first = config.num_blocks as u32;
        let pool = |tail: &TailConfig| {
            let num_blocks = budget / tail.block_bytes;
            let pool = TailPool::new(*tail, first, num_blocks, num_contents);
            first += num_blocks as u32;
            pool
        };
        let pools: Vec<_> = config.tails.iter().map(pool).collect();
        let bytes_of = |tail: &TailConfig| tail.keeps.tail_blocks(usize::MAX, config.block_size) * tail.block_bytes;
        let point_bytes: usize = config.tails.iter().map(bytes_of).sum();
        let worth = (STRIDE_WORTH * point_bytes).div_ceil(unit_bytes);
        let stride = worth.max(STRIDE_MIN / config.block_size).next_power_of_two();
        Some(Box::new(Self {
            pools,
            points: ResumePoints::new(num_contents),
            parts,
            block_bytes: config.block_bytes,
            unit_bytes,
            usable: config.num_blocks,
            stride,
            block_size: config.block_size,
            pass_tokens: config.pass_tokens,
            given_up: 0,
        }))
    }

    /// Returns the budget in bytes.
    pub(crate) fn usable_bytes(&self) -> usize {
        self.usable * self.unit_bytes
    }

    /// Returns the bytes of all tail blocks that have memory.
    pub(crate) fn present_bytes(&self) -> usize {
        self.pools.iter().map(|pool| pool.present() * pool.block_bytes()).sum()
    }

    /// Returns the bytes of all tail blocks that tables or transfers hold.
    pub(crate) fn held_bytes(&self) -> usize {
        self.pools.iter().map(|pool| pool.num_held() * pool.block_bytes()).sum()
    }

    /// Returns the bytes of the tail blocks that are kept for resume points alone.
    pub(crate) fn cached_bytes(&self) -> usize {
        self.pools.iter().map(|pool| pool.num_cached() * pool.block_bytes()).sum()
    }

    /// Returns whether any layer keeps a state.
    pub(crate) fn keep_states(&self) -> bool {
        self.pools.iter().any(|pool| pool.keeps() == Keeps::State)
    }

    /// Returns the number of units that `bytes` take, rounded up.
    pub(crate) fn units(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.unit_bytes)
    }

    /// Returns for which reason a resume point behind the first `num_blocks` blocks of a sequence lasts because of its
    /// position alone. The multiples of the stride are *milestones*: a point at every fourth of them is
    /// [wanted](Lasts::Wanted), and points at the others last [at a distance](Lasts::AtDistance). Elsewhere the answer
    /// is [`Lasts::No`].
    pub(crate) fn milestone(&self, num_blocks: usize) -> Lasts {
        match num_blocks.is_multiple_of(self.stride) {
            true if num_blocks.is_multiple_of(self.stride * STRIDES_BELOW) => Lasts::Wanted,
            true => Lasts::AtDistance,
            false => Lasts::No,
        }
    }

    /// Returns the number of blocks, counted from the sequence's beginning, before the first milestone behind
    /// `num_blocks` blocks.
    pub(crate) fn next_milestone(&self, num_blocks: usize) -> usize {
        (num_blocks / self.stride + 1) * self.stride
    }

    /// Returns the number of blocks, counted from the sequence's beginning, before the first milestone behind
    /// `num_blocks` blocks at which tiers below memory keep tails. They do so at every fourth milestone.
    pub(crate) fn next_milestone_below(&self, num_blocks: usize) -> usize {
        let stride = self.stride * STRIDES_BELOW;
        (num_blocks / stride + 1) * stride
    }

    /// Returns the most blocks of a window of `tokens` tokens that a sequence holds, apart from blocks that another
    /// sequence has computed: the window's own blocks, and those that a pass fills.
    pub(crate) fn window_quota(&self, tokens: usize) -> usize {
        (tokens - 1).div_ceil(self.block_size) + self.pass_tokens.div_ceil(self.block_size) + 1
    }

    /// Returns what pool number `pool` keeps, the [quota](Self::window_quota) of its window (0 if it keeps states), and
    /// the number of tokens in a block.
    pub(crate) fn window(&self, pool: usize) -> (Keeps, usize, usize) {
        let keeps = self.pools[pool].keeps();
        let quota = match keeps {
            Keeps::Window { tokens } => self.window_quota(tokens),
            Keeps::State => 0,
        };
        (keeps, quota, self.block_size)
    }

    /// Takes the memory of a free tail block of any pool away. Returns false if no tail block is free.
    #[must_use]
    pub(crate) fn withdraw_free(&mut self) -> bool {
        self.pools.iter_mut().any(TailPool::withdraw_free)
    }

    /// Releases all blocks of `tables`, one table for each pool.
    pub(crate) fn release_all(&mut self, tables: &[TailTable]) {
        for (pool, table) in self.pools.iter_mut().zip(tables) {
            table.blocks().for_each(|block| pool.release(block));
        }
    }

    /// Adds a table to the holders of all blocks of `tables`, one table for each pool.
    pub(crate) fn hold_all(&mut self, tables: &[TailTable]) {
        for (pool, table) in self.pools.iter_mut().zip(tables) {
            table.blocks().for_each(|block| pool.hold(block));
        }
    }

    /// Returns the pool of the tail block `block`; `None` for a trunk block.
    pub(crate) fn pool_of(&self, block: BlockId) -> Option<&TailPool> {
        self.pools.iter().rev().find(|pool| pool.first() <= block.0)
    }

    /// Returns the pool of the tail block `block`; `None` for a trunk block.
    pub(crate) fn pool_of_mut(&mut self, block: BlockId) -> Option<&mut TailPool> {
        self.pools.iter_mut().rev().find(|pool| pool.first() <= block.0)
    }
}

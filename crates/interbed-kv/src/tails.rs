//! What is kept for layers that need no more than the tail of a sequence, and the memory that these layers share with
//! the KV of all tokens.

use std::sync::Arc;

use crate::{
    config::{Keeps, KvConfig, TailConfig},
    ids::BlockId,
    resume_points::{Lasts, ResumePoints},
    tail_parts::TailParts,
    tail_pool::TailPool,
    tail_table::TailTable,
};

/// The least distance, in tokens, of points of a long prompt that last for no other reason.
const STRIDE_MIN: usize = 1024;
/// The least ratio of the bytes of the KV between two such points to the bytes that each of them keeps.
const STRIDE_WORTH: usize = 8;
/// One of so many of these points is kept by tiers below memory, where room is cheap, but writes are not.
const STRIDES_BELOW: usize = 4;

/// The groups of layers that need tails, the resume points, and the bytes of all blocks.
///
/// Blocks of all groups take their memory from one budget of bytes. A block that nobody holds can always be given up,
/// so the bytes that are available are the budget less the bytes of the blocks that are held.
#[derive(Debug)]
pub(crate) struct Tails {
    pub(crate) pools: Vec<TailPool>,
    pub(crate) points: ResumePoints,
    /// The parts of blocks that tiers below memory keep.
    pub(crate) parts: Arc<TailParts>,
    /// The bytes of a block that is in none of `pools`.
    pub(crate) block_bytes: usize,
    /// The bytes of one unit, in which callers count.
    pub(crate) unit_bytes: usize,
    /// The number of units that all blocks together may take.
    pub(crate) usable: usize,
    /// The distance of lasting points of a long prompt, in blocks.
    stride: usize,
    block_size: usize,
    pass_tokens: usize,
    /// Number of points that were given up for their memory.
    pub(crate) given_up: u64,
}

impl Tails {
    /// Makes what `config` describes; `None` if all layers keep all tokens.
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

    /// Returns the bytes of all blocks of the pools that have memory.
    pub(crate) fn present_bytes(&self) -> usize {
        self.pools.iter().map(|pool| pool.present() * pool.block_bytes()).sum()
    }

    /// Returns the bytes of all blocks of the pools that tables hold.
    pub(crate) fn held_bytes(&self) -> usize {
        self.pools.iter().map(|pool| pool.num_held() * pool.block_bytes()).sum()
    }

    /// Returns the bytes of the blocks that are kept for resume points alone.
    pub(crate) fn cached_bytes(&self) -> usize {
        self.pools.iter().map(|pool| pool.num_cached() * pool.block_bytes()).sum()
    }

    /// Returns whether any layer keeps a state.
    pub(crate) fn keep_states(&self) -> bool {
        self.pools.iter().any(|pool| pool.keeps() == Keeps::State)
    }

    /// Returns the number of units that hold `bytes`.
    pub(crate) fn units(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.unit_bytes)
    }

    /// Returns whether a point behind `num_blocks` blocks of a prompt lasts because of the distance alone.
    pub(crate) fn milestone(&self, num_blocks: usize) -> Lasts {
        match num_blocks.is_multiple_of(self.stride) {
            true if num_blocks.is_multiple_of(self.stride * STRIDES_BELOW) => Lasts::Wanted,
            true => Lasts::AtDistance,
            false => Lasts::No,
        }
    }

    /// Returns the first milestone behind `num_blocks` blocks.
    pub(crate) fn next_milestone(&self, num_blocks: usize) -> usize {
        (num_blocks / self.stride + 1) * self.stride
    }

    /// Returns the first place behind `num_blocks` blocks at which tiers below memory keep tails because of the distance
    /// alone.
    pub(crate) fn next_milestone_below(&self, num_blocks: usize) -> usize {
        let stride = self.stride * STRIDES_BELOW;
        (num_blocks / stride + 1) * stride
    }

    /// Returns the most blocks of a window that a sequence holds besides those that others have computed: the window's
    /// own, and those that a pass fills.
    pub(crate) fn window_quota(&self, tokens: usize) -> usize {
        (tokens - 1).div_ceil(self.block_size) + self.pass_tokens.div_ceil(self.block_size) + 1
    }

    /// Returns what pool number `pool` keeps, the [quota](Self::window_quota) of its window if it keeps one, and the
    /// number of tokens in a block.
    pub(crate) fn window(&self, pool: usize) -> (Keeps, usize, usize) {
        let keeps = self.pools[pool].keeps();
        let quota = match keeps {
            Keeps::Window { tokens } => self.window_quota(tokens),
            Keeps::State => 0,
        };
        (keeps, quota, self.block_size)
    }

    /// Takes the memory of a free block of any pool away. Returns false if no block is free.
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

    /// Returns the pool that `block` is a block of; `None` if it is in no pool.
    pub(crate) fn pool_of(&self, block: BlockId) -> Option<&TailPool> {
        self.pools.iter().rev().find(|pool| pool.first() <= block.0)
    }

    /// Returns the pool that `block` is a block of; `None` if it is in no pool.
    pub(crate) fn pool_of_mut(&mut self, block: BlockId) -> Option<&mut TailPool> {
        self.pools.iter_mut().rev().find(|pool| pool.first() <= block.0)
    }
}

//! Content moves from the highest blocks to the lowest, so that free blocks lie together and a pool can shrink from its
//! end (K8).
//!
//! Compact means: content first, then free blocks, then withdrawn ones. It is reached by two kinds of steps: *moves* of
//! content into a block that has none, and *exchanges* of memory between a free block and a withdrawn one. Each call is
//! one pass over the pool and the tables, however few its steps, so that no block has to know who names it.

use std::collections::{HashMap, HashSet};

use crate::{
    BlockCopy, BlockId, BlockManager,
    block_pool::{Block, BlockPool, Continues, Parent},
};

/// What compaction would gain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fragmentation {
    /// Blocks with content that would have to move for all content to lie in the lowest blocks.
    pub blocks_misplaced: usize,
    /// Present blocks that do not lie below the [number](BlockManager::present) of present ones.
    pub blocks_above: usize,
    /// Free blocks.
    pub blocks_free: usize,
    /// Most free blocks in a row.
    pub free_run_max: usize,
}

impl BlockManager {
    /// Takes up to `max_steps` steps towards a compact pool, and returns how many; 0 when nothing is left to be done.
    /// Blocks of swaps under way stay where they are. Nothing that is cached is lost.
    ///
    /// Each move is a copy to be [taken](Self::take_copies) and carried out before the next pass, as of any other block;
    /// tables, index and eviction policy know the new places at once. Where no block is free, content moves into
    /// withdrawn blocks: they are reported to have come, and those that it leaves to have left, and until the copies are
    /// done both need memory. So `max_steps` blocks of memory must be spare, or be few.
    pub fn compact(&mut self, max_steps: usize) -> usize {
        let exchanges = self.pool.exchange(max_steps);
        let moves = self.relocate(max_steps - exchanges);
        exchanges + moves + self.pool.exchange(max_steps - exchanges - moves)
    }

    /// How far from compact the pool is. Takes time in proportion to it.
    pub fn fragmentation(&self) -> Fragmentation {
        let pool = &self.pool;
        let num_content = pool.present() - pool.free.len();
        let (mut result, mut run) = (Fragmentation { blocks_free: pool.free.len(), ..Fragmentation::default() }, 0);
        for (index, block) in pool.blocks.iter().enumerate() {
            result.blocks_misplaced += usize::from(has_content(block) && index >= num_content);
            result.blocks_above += usize::from(!block.withdrawn && index >= pool.present());
            run = if has_content(block) || block.withdrawn { 0 } else { run + 1 };
            result.free_run_max = result.free_run_max.max(run);
        }
        result
    }

    /// Moves the highest content to the lowest places, free ones first.
    fn relocate(&mut self, max_moves: usize) -> usize {
        let swaps = self.swaps.flights.values().flat_map(|flight| &flight.copies);
        let pinned: HashSet<_> = swaps.map(|copy| copy.block).collect();
        let blocks = &self.pool.blocks;
        let holes = (0..blocks.len() as u32).map(BlockId).filter(|hole| !has_content(&blocks[hole.index()]));
        let movable = |block: &BlockId| has_content(&blocks[block.index()]) && !pinned.contains(block);
        let content = (0..blocks.len() as u32).rev().map(BlockId).filter(movable);
        let moves: Vec<_> = content.zip(holes).take(max_moves).take_while(|(source, hole)| hole < source).collect();

        for &(source, destination) in &moves {
            self.pool.relocate(source, destination);
            self.copies.push(BlockCopy { source, destination });
        }
        self.rename(&moves);
        self.counters.moves += moves.len() as u64;
        moves.len()
    }

    /// Whoever names a source names its destination from now on.
    fn rename(&mut self, moves: &[(BlockId, BlockId)]) {
        // Sources come from the highest down: most blocks are below the last of them.
        let Some(&(lowest, _)) = moves.last() else { return };
        let renamed: HashMap<_, _> = moves.iter().copied().collect();
        let tables = self.sequences.values_mut().flat_map(|sequence| &mut sequence.table.blocks);
        for block in tables.filter(|block| **block >= lowest) {
            *block = renamed.get(block).copied().unwrap_or(*block);
        }
        for block in &mut self.pool.blocks {
            if let Some(Continues::Block(parent)) = block.parent.get()
                && let Some(&parent) = renamed.get(&parent)
            {
                block.parent = Parent::block(parent);
            }
        }
        self.pool.sort_withdrawn();
    }
}

impl BlockPool {
    /// Moves what `source` is to `destination`, which has no content. Those who name it are the caller's to tell.
    fn relocate(&mut self, source: BlockId, destination: BlockId) {
        let (from, to) = (self.blocks[source.index()].clone(), self.blocks[destination.index()].clone());
        self.blocks[destination.index()] = Block { withdrawn: to.withdrawn, resized: to.resized, ..from };
        self.blocks[source.index()] = Block { withdrawn: from.withdrawn, resized: from.resized, ..Block::NEW };
        let start = source.index() * self.block_size;
        self.tokens.copy_within(start..start + self.block_size, destination.index() * self.block_size);
        if from.is_published() {
            self.index.rename(from.hash, source, destination);
            self.cached.moved(source, destination);
        }
        match to.withdrawn {
            true => {
                self.come(destination);
                self.leave(source);
            }
            false => {
                self.free.remove(destination);
                self.free.push_back(source);
            }
        }
    }

    /// Gives the memory of the highest free blocks to the lowest withdrawn ones.
    fn exchange(&mut self, max: usize) -> usize {
        let ids = (0..self.blocks.len() as u32).map(BlockId);
        let withdrawn = ids.clone().filter(|block| self.blocks[block.index()].withdrawn);
        let free = ids.rev().filter(|&block| self.free.contains(block));
        let pairs: Vec<_> = free.zip(withdrawn).take(max).take_while(|(free, withdrawn)| withdrawn < free).collect();
        for &(free, withdrawn) in &pairs {
            self.free.remove(free);
            self.leave(free);
            self.come(withdrawn);
            self.free.push_back(withdrawn);
        }
        self.sort_withdrawn();
        pairs.len()
    }

    /// Lists anew what is withdrawn: the lowest comes back first.
    fn sort_withdrawn(&mut self) {
        let ids = (0..self.blocks.len() as u32).rev().map(BlockId);
        self.withdrawn.clear();
        self.withdrawn.extend(ids.filter(|block| self.blocks[block.index()].withdrawn));
    }
}

fn has_content(block: &Block) -> bool {
    block.ref_count > 0 || block.is_published()
}

//! Content moves from the highest blocks to the lowest, so that free blocks lie together and a pool can shrink from its
//! end (K8).
//!
//! Compact means: content first, then free blocks, then withdrawn ones. It is reached by two kinds of steps: *moves* of
//! content into a free block, and *exchanges* of memory between a free block and a withdrawn one. A call that moves anything
//! goes through the whole pool, more than once, and through all tables, however few its steps, so that no block has to
//! know who names it; [`BlockManager::blocks_above`] says in constant time whether one is due.

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
    /// Takes up to `max_steps` steps towards a compact pool, and returns how many; 0 when nothing is left to be done, or
    /// nothing can be for now: blocks of swaps under way stay where they are, and where sequences hold all blocks, nothing
    /// moves.
    ///
    /// Each move is a copy to be [taken](Self::take_copies) and carried out before the next pass, as of any other block;
    /// tables, index and eviction policy know the new places at once. Moves go to blocks that have had memory before the
    /// call, so none is needed beyond what there is, if what has [left](Self::take_resize) is given back before what came
    /// is used. Where a smaller pool has no free block to begin with, cached leaves give way, the next to be evicted
    /// anyway: one for every two steps, and none while there are free blocks. Nothing else that is cached is lost.
    pub fn compact(&mut self, max_steps: usize) -> usize {
        self.pool.make_room_to_move(max_steps.div_ceil(2));
        if self.pool.free.len() == 0 {
            return 0;
        }
        let moves = self.relocate(max_steps);
        moves + self.pool.exchange(max_steps - moves)
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

    /// Moves the highest content to the lowest free blocks, as far as it then lies where it may stay.
    fn relocate(&mut self, max_moves: usize) -> usize {
        let swaps = self.swaps.flights.values().flat_map(|flight| &flight.copies);
        let pinned: HashSet<_> = swaps.map(|copy| copy.block).collect();
        let pool = &self.pool;
        let (num_content, end) = ((pool.present() - pool.free.len()) as u32, pool.blocks.len() as u32);
        let free = (0..num_content).map(BlockId).filter(|&block| pool.free.contains(block));
        let movable = |block: &BlockId| has_content(&pool.blocks[block.index()]) && !pinned.contains(block);
        let content = (num_content..end).rev().map(BlockId).filter(movable);
        let moves: Vec<_> = content.zip(free).take(max_moves).collect();

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
                && parent >= lowest
                && let Some(&parent) = renamed.get(&parent)
            {
                block.parent = Parent::block(parent);
            }
        }
    }
}

impl BlockPool {
    /// If blocks lie above the usable ones and none is free, makes up to so many of the cached ones free.
    fn make_room_to_move(&mut self, num_blocks: usize) {
        if self.free.len() > 0 {
            return;
        }
        for _ in 0..num_blocks.min(self.num_holes).min(self.cached.len()) {
            let block = self.evict(None);
            self.free.push_back(block);
        }
    }

    /// Moves what `source` is to `destination`, which is free. Those who name it are the caller's to tell.
    fn relocate(&mut self, source: BlockId, destination: BlockId) {
        let (from, to) = (self.blocks[source.index()].clone(), self.blocks[destination.index()].clone());
        self.blocks[destination.index()] = Block { resized: to.resized, ..from };
        self.blocks[source.index()] = Block { resized: from.resized, ..Block::NEW };
        let start = source.index() * self.block_size;
        self.tokens.copy_within(start..start + self.block_size, destination.index() * self.block_size);
        if from.is_published() {
            self.index.rename(from.hash, source, destination);
            self.cached.moved(source, destination);
        }
        self.free.remove(destination);
        self.free.push_back(source);
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
        pairs.len()
    }
}

fn has_content(block: &Block) -> bool {
    block.ref_count > 0 || block.is_published()
}

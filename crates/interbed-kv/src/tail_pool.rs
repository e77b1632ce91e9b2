//! The blocks of one group of layers that needs no more than the tail of a sequence: which blocks are free, who holds
//! the others, and to which contents they belong.

use std::collections::HashSet;

use crate::{
    blocks::{Blocks, Resize},
    config::{Keeps, TailConfig},
    contents::ContentId,
    ids::BlockId,
};

const NONE: u32 = u32::MAX;

/// The blocks of one group.
///
/// A block that is not free is *held* (tables hold it), *pinned* (resume points need it), or both. A pinned block
/// belongs to a content, and each content has at most one block of the group.
///
/// | state | leaves it by |
/// |---|---|
/// | free | `take` → held; `withdraw_free` → withdrawn |
/// | held, unpinned | last `release` → free; `pin` → held and pinned |
/// | held and pinned | last `release` → pinned; last `unpin` → held |
/// | pinned | `hold_companion` → held and pinned; last `unpin` → free |
/// | withdrawn | `grow` → free |
#[derive(Debug)]
pub(crate) struct TailPool {
    config: TailConfig,
    /// The number of the group's first block in the row of the blocks of all groups.
    first: u32,
    /// The places, which are numbered from 0 here. What they say to hold is of no meaning.
    blocks: Blocks,
    entries: Vec<Entry>, // [block]
    /// The block of the group that belongs to each content, or `NONE`.
    companions: Vec<u32>, // [content]
    num_held: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Number of tables that hold the block.
    holders: u32,
    /// Number of resume points that need the block.
    pins: u32,
    /// The content that the block belongs to, or `NONE`; a block belongs to one as long as it is pinned.
    content: u32,
}

impl Entry {
    const EMPTY: Self = Self { holders: 0, pins: 0, content: NONE };
}

impl TailPool {
    /// Makes a pool of `num_blocks` blocks, all without memory, of which the first has the number `first`.
    pub(crate) fn new(config: TailConfig, first: u32, num_blocks: usize, num_contents: usize) -> Self {
        let mut blocks = Blocks::new(num_blocks);
        blocks.set_usable(0);
        while blocks.withdraw_free() {}
        // The device begins with no memory for these blocks.
        blocks.take_resize();
        Self {
            config,
            first,
            blocks,
            entries: vec![Entry::EMPTY; num_blocks],
            companions: vec![NONE; num_contents],
            num_held: 0,
        }
    }

    pub(crate) fn keeps(&self) -> Keeps {
        self.config.keeps
    }

    /// Returns the number of the first block.
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// Returns the bytes of one block.
    pub(crate) fn block_bytes(&self) -> usize {
        self.config.block_bytes
    }

    /// Returns in how many parts tiers below memory keep a block.
    pub(crate) fn parts(&self) -> usize {
        self.config.parts as usize
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns how many blocks have memory.
    pub(crate) fn present(&self) -> usize {
        self.blocks.present()
    }

    pub(crate) fn num_free(&self) -> usize {
        self.blocks.num_free()
    }

    pub(crate) fn num_held(&self) -> usize {
        self.num_held
    }

    /// Returns how many blocks are kept for resume points alone.
    pub(crate) fn num_cached(&self) -> usize {
        self.present() - self.num_free() - self.num_held
    }

    /// Gives memory to one more block, which is free then.
    pub(crate) fn grow(&mut self) {
        self.blocks.set_usable(self.blocks.usable() + 1);
    }

    /// Takes the memory of a free block away. Returns false if no block is free.
    #[must_use]
    pub(crate) fn withdraw_free(&mut self) -> bool {
        if self.num_free() == 0 {
            return false;
        }
        self.blocks.set_usable(self.blocks.usable() - 1);
        self.blocks.withdraw_free()
    }

    /// Takes a free block for one table, if there is one.
    pub(crate) fn take(&mut self) -> Option<BlockId> {
        let block = self.blocks.take()?;
        self.blocks.occupy(block, ContentId(0));
        self.entries[block.index()] = Entry { holders: 1, ..Entry::EMPTY };
        self.num_held += 1;
        Some(self.global(block))
    }

    /// Returns how many tables hold `block`.
    pub(crate) fn holders(&self, block: BlockId) -> u32 {
        self.entry(block).holders
    }

    /// Adds a table to the holders of `block`, which is held.
    pub(crate) fn hold(&mut self, block: BlockId) {
        let entry = self.entry_mut(block);
        assert!(entry.holders > 0, "{block} is held once more, but nobody holds it");
        entry.holders += 1;
    }

    /// Removes a table from the holders of `block`.
    pub(crate) fn release(&mut self, block: BlockId) {
        let entry = self.entry_mut(block);
        entry.holders = entry.holders.checked_sub(1).expect("a released block is held");
        let Entry { holders, pins, .. } = *entry;
        if holders == 0 {
            self.num_held -= 1;
            if pins == 0 {
                self.blocks.free_first(self.local(block));
            }
        }
    }

    /// Returns the content that `block` belongs to, if it is pinned.
    pub(crate) fn content(&self, block: BlockId) -> Option<ContentId> {
        let content = self.entry(block).content;
        (content != NONE).then_some(ContentId(content))
    }

    /// Returns the block that belongs to `content`, if there is one.
    pub(crate) fn companion(&self, content: ContentId) -> Option<BlockId> {
        let block = self.companions[content.0 as usize];
        (block != NONE).then(|| self.global(BlockId(block)))
    }

    /// Returns whether a table holds the block that belongs to `content`.
    pub(crate) fn is_companion_held(&self, content: ContentId) -> bool {
        self.companion(content).is_some_and(|block| self.holders(block) > 0)
    }

    /// Adds a table to the holders of the block that belongs to `content`, and returns the block.
    pub(crate) fn hold_companion(&mut self, content: ContentId) -> BlockId {
        let block = self.companion(content).expect("a resume point has all its blocks");
        let entry = self.entry_mut(block);
        entry.holders += 1;
        self.num_held += usize::from(self.entry(block).holders == 1);
        block
    }

    /// Notes that one more resume point needs the group's block of `content`. If none belongs to the content yet,
    /// `block` does from now on, which a table holds.
    pub(crate) fn pin(&mut self, content: ContentId, block: BlockId) {
        if self.companions[content.0 as usize] == NONE {
            self.companions[content.0 as usize] = self.local(block).0;
            let entry = self.entry_mut(block);
            assert!(entry.holders > 0 && entry.content == NONE, "{block} belongs to another content, or to nobody");
            entry.content = content.0;
        }
        let block = self.companions[content.0 as usize];
        self.entries[block as usize].pins += 1;
    }

    /// Notes that one resume point less needs the group's block of `content`.
    pub(crate) fn unpin(&mut self, content: ContentId) {
        let block = BlockId(self.companions[content.0 as usize]);
        let entry = &mut self.entries[block.index()];
        entry.pins -= 1;
        if entry.pins == 0 {
            entry.content = NONE;
            self.companions[content.0 as usize] = NONE;
            if self.entries[block.index()].holders == 0 {
                self.blocks.free_last(block);
            }
        }
    }

    /// Plans moves of the highest blocks to the lowest free ones, carries them out, and returns them as pairs of source
    /// and destination. `pinned` blocks stay.
    pub(crate) fn relocate(&mut self, max: usize, pinned: &HashSet<BlockId>) -> Vec<(BlockId, BlockId)> {
        let own = pinned.iter().filter(|block| self.first <= block.0 && block.0 < self.first + self.len() as u32);
        let own = own.map(|&block| self.local(block)).collect();
        let moves = self.blocks.plan_moves(max, &own);
        for &(source, destination) in &moves {
            let entry = std::mem::replace(&mut self.entries[source.index()], Entry::EMPTY);
            self.entries[destination.index()] = entry;
            if entry.content != NONE {
                self.companions[entry.content as usize] = destination.0;
            }
        }
        self.blocks.relocate(&moves);
        moves.into_iter().map(|(source, destination)| (self.global(source), self.global(destination))).collect()
    }

    /// Gives the memory of high free blocks to low withdrawn ones, up to `max` times. Returns how many times.
    pub(crate) fn exchange(&mut self, max: usize) -> usize {
        self.blocks.exchange(max)
    }

    /// Adds the blocks that came and left since the last call to `resize`.
    pub(crate) fn add_resize(&mut self, resize: &mut Resize) {
        let Resize { came, left } = self.blocks.take_resize();
        resize.came.extend(came.into_iter().map(|block| self.global(block)));
        resize.left.extend(left.into_iter().map(|block| self.global(block)));
    }

    fn entry(&self, block: BlockId) -> &Entry {
        &self.entries[self.local(block).index()]
    }

    fn entry_mut(&mut self, block: BlockId) -> &mut Entry {
        let local = self.local(block);
        &mut self.entries[local.index()]
    }

    fn local(&self, block: BlockId) -> BlockId {
        BlockId(block.0 - self.first)
    }

    fn global(&self, block: BlockId) -> BlockId {
        BlockId(block.0 + self.first)
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.blocks.bytes() + self.entries.capacity() * size_of::<Entry>() + self.companions.capacity() * 4
    }
}

mod invariants;

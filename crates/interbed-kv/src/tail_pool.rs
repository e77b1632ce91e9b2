//! The tail blocks of one tail group: which are free, who holds the others, and to which contents they belong.

use std::collections::HashSet;

use crate::{
    blocks::{Blocks, Resize},
    config::{Keeps, TailConfig},
    contents::ContentId,
    ids::BlockId,
};

const NONE: u32 = u32::MAX;

/// The tail blocks of one tail group.
///
/// A block that has memory and is not free is *held* (tables or transfers hold it), *pinned* (resume points need it),
/// or both. A pinned block belongs to a content and is then its *companion*: it holds the window's KV of the content's
/// tokens, or the state behind them. Each content has at most one companion in each pool.
///
/// | state | leaves it by |
/// |---|---|
/// | free | `take` → held; `withdraw_free`, `exchange` → withdrawn |
/// | held, unpinned | last `release` → free; `pin` → held and pinned |
/// | held and pinned | last `release` → pinned; last `unpin` → held |
/// | pinned | `hold_companion` → held and pinned; last `unpin` → free |
/// | withdrawn | `grow`, `exchange` → free |
///
/// Besides, `relocate` gives a free block the state of another block, which is free then.
#[derive(Debug)]
pub(crate) struct TailPool {
    config: TailConfig,
    /// The id of the pool's first block. In the pool's own lists, this block has the number 0.
    first: u32,
    /// Which blocks are free and which are withdrawn. The contents that this says blocks hold have no meaning.
    blocks: Blocks,
    entries: Vec<Entry>, // [block]
    /// The number of each content's companion, or `NONE`.
    companions: Vec<u32>, // [content]
    num_held: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Number of tables and transfers that hold the block.
    holders: u32,
    /// Number of resume points that need the block.
    pins: u32,
    /// The content whose companion the block is, or `NONE`. A block is a companion as long as it is pinned.
    content: u32,
}

impl Entry {
    const EMPTY: Self = Self { holders: 0, pins: 0, content: NONE };
}

impl TailPool {
    /// Makes a pool of `num_blocks` blocks, all without memory, with ids from `first` on. There are at most
    /// `num_contents` contents.
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

    /// Returns the id of the first block.
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// Returns the bytes of one block.
    pub(crate) fn block_bytes(&self) -> usize {
        self.config.block_bytes
    }

    /// Returns the number of parts of a block.
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

    /// Returns how many blocks are kept for resume points alone, which means that they are pinned and not held.
    pub(crate) fn num_cached(&self) -> usize {
        self.present() - self.num_free() - self.num_held
    }

    /// Gives memory to one more block, which is then free.
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

    /// Takes a free block, with one holder. Returns `None` if no block is free.
    pub(crate) fn take(&mut self) -> Option<BlockId> {
        let block = self.blocks.take()?;
        self.blocks.occupy(block, ContentId(0));
        self.entries[block.index()] = Entry { holders: 1, ..Entry::EMPTY };
        self.num_held += 1;
        Some(self.global(block))
    }

    /// Returns how many tables and transfers hold `block`.
    pub(crate) fn holders(&self, block: BlockId) -> u32 {
        self.entry(block).holders
    }

    /// Adds a holder to `block`, which must have one.
    pub(crate) fn hold(&mut self, block: BlockId) {
        let entry = self.entry_mut(block);
        assert!(entry.holders > 0, "{block} is held once more, but nobody holds it");
        entry.holders += 1;
    }

    /// Removes a holder of `block`. The block becomes free if it was the last one and no resume point needs the block.
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

    /// Returns the content whose companion `block` is, if it is one.
    pub(crate) fn content(&self, block: BlockId) -> Option<ContentId> {
        let content = self.entry(block).content;
        (content != NONE).then_some(ContentId(content))
    }

    /// Returns the companion of `content`, if it has one.
    pub(crate) fn companion(&self, content: ContentId) -> Option<BlockId> {
        let block = self.companions[content.0 as usize];
        (block != NONE).then(|| self.global(BlockId(block)))
    }

    /// Returns whether a table or a transfer holds the companion of `content`.
    pub(crate) fn is_companion_held(&self, content: ContentId) -> bool {
        self.companion(content).is_some_and(|block| self.holders(block) > 0)
    }

    /// Adds a holder to the companion of `content`, which must have one, and returns the companion.
    pub(crate) fn hold_companion(&mut self, content: ContentId) -> BlockId {
        let block = self.companion(content).expect("a resume point has all its blocks");
        let entry = self.entry_mut(block);
        entry.holders += 1;
        self.num_held += usize::from(self.entry(block).holders == 1);
        block
    }

    /// Notes that one more resume point needs the companion of `content`. If the content has none yet, `block` becomes
    /// its companion; it must be held, and be the companion of no other content. Otherwise, `block` is ignored.
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

    /// Notes that one resume point less needs the companion of `content`.
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

    /// Moves up to `max` of the highest blocks that are not free to the lowest free ones. Blocks in the set `pinned`,
    /// which swaps and fetches in flight read or write, stay; blocks that only resume points pin do move. Returns the
    /// moves as pairs of source and destination; the caller copies the bytes and updates tables.
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

    /// Gives the memory of the highest free blocks to the lowest withdrawn ones, up to `max` times. Returns how many
    /// times.
    pub(crate) fn exchange(&mut self, max: usize) -> usize {
        self.blocks.exchange(max)
    }

    /// Adds the blocks that came and left since the last call to the lists of `resize`.
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

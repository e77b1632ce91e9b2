//! Keeps track of blocks in memory: which are free, which are withdrawn (without memory), and what each of the others
//! holds.

use std::collections::{HashSet, VecDeque};

use crate::{contents::ContentId, ids::BlockId};

/// The state of a block, in four bytes. The highest bit says whether the block came or left since the last report.
#[derive(Debug, Clone, Copy)]
struct Entry(u32);

impl Entry {
    const REPORT: u32 = 1 << 31;
    const FREE: u32 = Self::REPORT - 1;
    const WITHDRAWN: u32 = Self::REPORT - 2;

    fn what(self) -> u32 {
        self.0 & !Self::REPORT
    }

    fn content(self) -> Option<ContentId> {
        let what = self.what();
        (what < Self::WITHDRAWN).then_some(ContentId(what))
    }

    fn is(self, what: u32) -> bool {
        self.what() == what
    }

    fn set(&mut self, what: u32) {
        self.0 = self.0 & Self::REPORT | what;
    }
}

/// The blocks that have come (got memory) or left (lost it) since the last report. Each block is in the list of its
/// present state, even if it was in that state before. Both lists are in ascending order of ids.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resize {
    /// Blocks that may be used from now on, once the caller has given memory to them. The bytes in them are undefined.
    pub came: Vec<BlockId>,
    /// Blocks without content, whose memory the caller may give back. No such block is used until it is reported to
    /// have come again.
    pub left: Vec<BlockId>,
}

/// Figures that say how far the trunk blocks are from [compact](crate::BlockManager::compact), and so what compaction
/// would gain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fragmentation {
    /// The number of blocks with content that would have to move for all content to lie in the lowest blocks.
    pub blocks_misplaced: usize,
    /// The number of present blocks whose ids are not below the [number](crate::BlockManager::present) of present
    /// blocks.
    pub blocks_above: usize,
    /// The number of free blocks.
    pub blocks_free: usize,
    /// The length, in blocks, of the longest run of free blocks with consecutive ids.
    pub free_run_max: usize,
}

/// The blocks of the trunk, or of one tail group: each is free, withdrawn (without memory), or holds one content.
///
/// | state | leaves it by |
/// |---|---|
/// | free | `take` and `occupy`, `relocate` → holds a content; `withdraw_free`, `exchange` → withdrawn |
/// | holds a content | `free_first`, `free_last`, `relocate` → free; `withdraw` → withdrawn |
/// | withdrawn | `set_usable`, `exchange` → free |
#[derive(Debug)]
pub(crate) struct Blocks {
    entries: Vec<Entry>, // [block]
    /// The free blocks; the front one is taken next.
    free: VecDeque<BlockId>,
    /// The free blocks that are kept for the next sequence that is admitted, in the order in which it will get them.
    /// Other sequences take them, the last first, when no other block is free.
    promised: VecDeque<BlockId>,
    /// Number of blocks that may be used. More blocks are present only while they hold contents in use.
    usable: usize,
    num_withdrawn: usize,
    /// The number of withdrawn blocks whose ids are below `usable`.
    num_holes: usize,
    /// An id below which no block is withdrawn.
    first_withdrawn: usize,
    /// The number of blocks that came or left since the last report.
    num_to_report: usize,
}

impl Blocks {
    /// Makes `num_blocks` blocks, all free.
    pub(crate) fn new(num_blocks: usize) -> Self {
        Self {
            entries: vec![Entry(Entry::FREE); num_blocks],
            free: (0..num_blocks as u32).map(BlockId).collect(),
            promised: VecDeque::new(),
            usable: num_blocks,
            num_withdrawn: 0,
            num_holes: 0,
            first_withdrawn: num_blocks,
            num_to_report: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn num_free(&self) -> usize {
        self.free.len() + self.promised.len()
    }

    pub(crate) fn num_withdrawn(&self) -> usize {
        self.num_withdrawn
    }

    pub(crate) fn num_holes(&self) -> usize {
        self.num_holes
    }

    pub(crate) fn usable(&self) -> usize {
        self.usable
    }

    /// Returns how many blocks have memory, which means that they are not withdrawn.
    pub(crate) fn present(&self) -> usize {
        self.len() - self.num_withdrawn
    }

    /// Returns whether more blocks are present than may be used.
    pub(crate) fn has_excess(&self) -> bool {
        self.present() > self.usable
    }

    /// Returns the content of `block`.
    ///
    /// # Panics
    /// Panics if the block is free or withdrawn.
    pub(crate) fn content(&self, block: BlockId) -> ContentId {
        self.entries[block.index()].content().expect("only a block that holds a content is asked for it")
    }

    /// Lists the blocks that hold a content, in ascending order, with their contents.
    pub(crate) fn contents(&self) -> impl Iterator<Item = (BlockId, ContentId)> {
        let entries = self.entries.iter().enumerate();
        entries.filter_map(|(index, entry)| Some((BlockId(index as u32), entry.content()?)))
    }

    /// Returns for each block whether it has memory, and whether it holds a content.
    pub(crate) fn states(&self) -> impl Iterator<Item = (bool, bool)> {
        self.entries.iter().map(|entry| (!entry.is(Entry::WITHDRAWN), entry.content().is_some()))
    }

    /// Takes a free block, if there is one. The caller must [occupy](Self::occupy) it at once.
    pub(crate) fn take(&mut self) -> Option<BlockId> {
        self.free.pop_front().or_else(|| self.promised.pop_back())
    }

    /// Keeps `count` free blocks for the next sequence, or all if there are fewer. Blocks that were kept above this
    /// number are free for all again.
    pub(crate) fn promise(&mut self, count: usize) {
        while self.promised.len() > count
            && let Some(block) = self.promised.pop_back()
        {
            self.free.push_front(block);
        }
        while self.promised.len() < count
            && let Some(block) = self.free.pop_front()
        {
            self.promised.push_back(block);
        }
    }

    /// Lists the blocks that are kept for the next sequence.
    pub(crate) fn promised(&self) -> impl ExactSizeIterator<Item = BlockId> {
        self.promised.iter().copied()
    }

    /// Puts the blocks that were kept for the next sequence back in front of the free list, so that they are taken
    /// next.
    pub(crate) fn redeem(&mut self) {
        while let Some(block) = self.promised.pop_back() {
            self.free.push_front(block);
        }
    }

    /// Stores `content` in `block`. The block must have been taken, or its previous content must have ended or left it.
    pub(crate) fn occupy(&mut self, block: BlockId, content: ContentId) {
        self.entries[block.index()].set(content.0);
    }

    /// Frees `block`, which held a content, as the next block to be taken.
    pub(crate) fn free_first(&mut self, block: BlockId) {
        self.entries[block.index()].set(Entry::FREE);
        self.free.push_front(block);
    }

    /// Frees `block`, which held a content, as the last block to be taken.
    pub(crate) fn free_last(&mut self, block: BlockId) {
        self.entries[block.index()].set(Entry::FREE);
        self.free.push_back(block);
    }

    /// Changes how many blocks may be used. If the number grows, free blocks come. If it shrinks, the caller withdraws
    /// the blocks in [excess](Self::has_excess).
    pub(crate) fn set_usable(&mut self, usable: usize) {
        let between = self.usable.min(usable)..self.usable.max(usable);
        let withdrawn = self.entries[between].iter().filter(|entry| entry.is(Entry::WITHDRAWN)).count();
        match usable > self.usable {
            true => self.num_holes += withdrawn,
            false => self.num_holes -= withdrawn,
        }
        self.usable = usable;
        while self.present() < usable {
            let block = self.lowest_withdrawn();
            self.come(block);
            self.free.push_back(block);
        }
    }

    /// Withdraws the last block of the free list or, if the list is empty, the last one that is kept for the next
    /// sequence. In most cases this block has not been used for long, or was never written at all, so that it is not in
    /// the processor's caches. Returns false if no block is free.
    #[must_use]
    pub(crate) fn withdraw_free(&mut self) -> bool {
        let block = self.free.pop_back().or_else(|| self.promised.pop_back());
        block.into_iter().for_each(|block| self.withdraw(block));
        block.is_some()
    }

    /// Withdraws `block`, which must not be in the free list. The block is reported as having left even if its coming
    /// was not reported yet, because it may have been written to in between.
    pub(crate) fn withdraw(&mut self, block: BlockId) {
        self.num_withdrawn += 1;
        self.num_holes += usize::from(block.index() < self.usable);
        self.first_withdrawn = self.first_withdrawn.min(block.index());
        self.report(block, Entry::WITHDRAWN);
    }

    /// Returns the blocks that came and left since the last call. The call takes time in proportion to the pool, but
    /// none if there is nothing to report.
    pub(crate) fn take_resize(&mut self) -> Resize {
        let mut resize = Resize::default();
        if std::mem::take(&mut self.num_to_report) == 0 {
            return resize;
        }
        for (index, entry) in self.entries.iter_mut().enumerate().filter(|(_, entry)| entry.0 & Entry::REPORT != 0) {
            entry.0 &= !Entry::REPORT;
            let side = if entry.is(Entry::WITHDRAWN) { &mut resize.left } else { &mut resize.came };
            side.push(BlockId(index as u32));
        }
        resize
    }

    /// Returns how far the blocks are from compact. They are compact if content comes first, then free blocks, then
    /// withdrawn ones.
    pub(crate) fn fragmentation(&self) -> Fragmentation {
        let num_content = self.present() - self.num_free();
        let (mut result, mut run) = (Fragmentation { blocks_free: self.num_free(), ..Fragmentation::default() }, 0);
        for (index, entry) in self.entries.iter().enumerate() {
            let has_content = entry.content().is_some();
            result.blocks_misplaced += usize::from(has_content && index >= num_content);
            result.blocks_above += usize::from(!entry.is(Entry::WITHDRAWN) && index >= self.present());
            run = if entry.is(Entry::FREE) { run + 1 } else { 0 };
            result.free_run_max = result.free_run_max.max(run);
        }
        result
    }

    /// Plans moves of the highest contents to the lowest free blocks, as pairs of source and destination, the highest
    /// source first. Only destinations that a compact pool fills with content are used. `pinned` blocks stay.
    pub(crate) fn plan_moves(&self, max: usize, pinned: &HashSet<BlockId>) -> Vec<(BlockId, BlockId)> {
        let (num_content, end) = ((self.present() - self.num_free()) as u32, self.len() as u32);
        let entry = |block: &BlockId| self.entries[block.index()];
        let free = (0..num_content).map(BlockId).filter(|block| entry(block).is(Entry::FREE));
        let movable = |block: &BlockId| entry(block).content().is_some() && !pinned.contains(block);
        let contents = (num_content..end).rev().map(BlockId).filter(movable);
        contents.zip(free).take(max).collect()
    }

    /// Carries out [planned](Self::plan_moves) moves in the lists. The sources join the free list at its end, in this
    /// order.
    pub(crate) fn relocate(&mut self, moves: &[(BlockId, BlockId)]) {
        self.redeem();
        for &(source, destination) in moves {
            let content = self.entries[source.index()].what();
            self.entries[destination.index()].set(content);
            self.entries[source.index()].set(Entry::FREE);
        }
        // Removes the destinations from the free list, all in one pass.
        let Self { free, entries, .. } = self;
        free.retain(|block| entries[block.index()].is(Entry::FREE));
        free.extend(moves.iter().map(|&(source, _)| source));
    }

    /// Gives the memory of the highest free blocks to the lowest withdrawn ones, up to `max` times. Returns how many
    /// times.
    pub(crate) fn exchange(&mut self, max: usize) -> usize {
        self.redeem();
        let ids = (0..self.len() as u32).map(BlockId);
        let withdrawn = ids.clone().filter(|block| self.entries[block.index()].is(Entry::WITHDRAWN));
        let free = ids.rev().filter(|block| self.entries[block.index()].is(Entry::FREE));
        let pairs: Vec<_> = free.zip(withdrawn).take(max).take_while(|(free, withdrawn)| withdrawn < free).collect();
        for &(free, withdrawn) in &pairs {
            self.withdraw(free);
            self.come(withdrawn);
        }
        let Self { free, entries, .. } = self;
        free.retain(|block| entries[block.index()].is(Entry::FREE));
        free.extend(pairs.iter().map(|&(_, withdrawn)| withdrawn));
        pairs.len()
    }

    /// Returns the withdrawn block with the lowest id.
    ///
    /// # Panics
    /// Panics if no block is withdrawn.
    fn lowest_withdrawn(&mut self) -> BlockId {
        while !self.entries[self.first_withdrawn].is(Entry::WITHDRAWN) {
            self.first_withdrawn += 1;
        }
        BlockId(self.first_withdrawn as u32)
    }

    /// Gives memory to `block`, which was withdrawn. The caller adds it to the free list.
    fn come(&mut self, block: BlockId) {
        self.num_withdrawn -= 1;
        self.num_holes -= usize::from(block.index() < self.usable);
        self.report(block, Entry::FREE);
    }

    fn report(&mut self, block: BlockId, what: u32) {
        let entry = &mut self.entries[block.index()];
        self.num_to_report += usize::from(entry.0 & Entry::REPORT == 0);
        *entry = Entry(Entry::REPORT | what);
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + (self.free.capacity() + self.promised.capacity()) * size_of::<BlockId>()
    }
}

mod invariants;

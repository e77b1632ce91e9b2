//! Checks what must hold among blocks, from scratch.

use super::{Blocks, Entry};
use crate::{
    contents::ContentId,
    ids::BlockId,
    invariant_violation::{InvariantViolation, count},
};

impl Blocks {
    /// Checks that lists and counters agree with the states of the blocks.
    pub(crate) fn check(&self) -> Result<(), InvariantViolation> {
        let number = |what| self.entries.iter().filter(|entry| entry.is(what)).count();
        let mut listed = vec![false; self.len()];
        for &block in self.free.iter().chain(&self.promised) {
            if !self.is_free(block) || std::mem::replace(&mut listed[block.index()], true) {
                return Err(InvariantViolation::FreeList { block });
            }
        }
        count("free list", self.num_free(), number(Entry::FREE))?;
        count("counter of withdrawn blocks", self.num_withdrawn, number(Entry::WITHDRAWN))?;
        let holding = self.contents().count();
        count("blocks of all states", holding + self.num_free() + self.num_withdrawn, self.len())?;
        let resized = self.entries.iter().filter(|entry| entry.0 & Entry::REPORT != 0).count();
        count("counter of blocks that came or left", self.num_to_report, resized)?;
        let withdrawn = |entries: &[Entry]| entries.iter().filter(|entry| entry.is(Entry::WITHDRAWN)).count();
        let holes = withdrawn(&self.entries[..self.usable]);
        count("counter of withdrawn blocks below the usable ones", self.num_holes, holes)?;
        count("withdrawn blocks below the first", 0, withdrawn(&self.entries[..self.first_withdrawn]))
    }

    pub(crate) fn content_of(&self, block: BlockId) -> Option<ContentId> {
        self.entries[block.index()].content()
    }

    pub(crate) fn is_free(&self, block: BlockId) -> bool {
        self.entries[block.index()].is(Entry::FREE)
    }
}

//! Checks what must hold among the tail blocks of one pool, from scratch.

use super::{Entry, NONE, TailPool};
use crate::{
    contents::ContentId,
    ids::BlockId,
    invariant_violation::{InvariantViolation, count},
};

impl TailPool {
    /// Checks that each block has as many holders as `holders` counts, and as many pins as `pins` counts for the
    /// content whose companion the block is.
    pub(crate) fn check(
        &self,
        holders: impl Fn(BlockId) -> u32,
        pins: impl Fn(ContentId) -> u32,
    ) -> Result<(), InvariantViolation> {
        self.blocks.check()?;
        count("blocks of a group that may be used", self.blocks.usable(), self.present())?;
        let mut num_held = 0;
        for (index, (entry, (_, has_content))) in self.entries.iter().zip(self.blocks.states()).enumerate() {
            let block = self.global(BlockId(index as u32));
            let found = holders(block);
            if entry.holders != found {
                return Err(InvariantViolation::Holders { block, counted: entry.holders, holders: found });
            }
            num_held += usize::from(found > 0);
            let (used, pinned) = (found > 0, entry.pins > 0);
            if has_content != (used || pinned) || pinned != (entry.content != NONE) {
                let (free, withdrawn) = (!has_content, false);
                return Err(InvariantViolation::State { block, free, cached: pinned, used, withdrawn });
            }
            if pinned && self.companions[entry.content as usize] != index as u32 {
                return Err(InvariantViolation::Location { content: entry.content, block: Some(block) });
            }
        }
        count("held blocks of a group", self.num_held, num_held)?;
        for (content, &block) in self.companions.iter().enumerate() {
            let Entry { pins: counted, content: of, .. } =
                if block == NONE { Entry::EMPTY } else { self.entries[block as usize] };
            if block != NONE && of != content as u32 {
                return Err(InvariantViolation::Location { content: content as u32, block: Some(BlockId(block)) });
            }
            count("pins of a block", counted as usize, pins(ContentId(content as u32)) as usize)?;
        }
        Ok(())
    }
}

//! Checks what must hold between contents, locations and policy, from scratch.

use std::collections::HashMap;

use super::Cache;
use crate::{
    contents::Parent,
    hash::ChainRoot,
    ids::{BlockId, SwapSlot},
    invariant_violation::{InvariantViolation, count},
    owners::OwnerId,
};

impl Cache {
    /// Checks the cache by itself and against its users. `holders` of each block and `slot_holders` of each slot are
    /// the numbers of tables and transfers that hold them.
    pub(crate) fn check(&self, holders: &[u32], slot_holders: &[u32]) -> Result<(), InvariantViolation> {
        self.blocks.check()?;
        self.check_blocks(holders)?;
        self.check_size()?;
        let num_contents = self.blocks.len() + self.slots.len();
        let (mut located, mut slots) = (vec![None; num_contents], vec![0u32; num_contents]);
        let mut num_free = 0;
        for slot in self.slots.ids() {
            let (counted, found, free) =
                (self.slots.holders(slot), slot_holders[slot.index()], self.slots.is_free(slot));
            if counted != found || free != (found == 0) {
                return Err(InvariantViolation::Slot { slot, counted, found, free });
            }
            num_free += usize::from(free);
            if !free && !self.slots.is_of_tail(slot) {
                slots[self.slots.content(slot).0 as usize] += 1;
            }
        }
        count("list of free slots", self.slots.num_free(), num_free)?;
        for (block, content) in self.blocks.contents() {
            if located[content.0 as usize].replace(block).is_some() {
                return Err(InvariantViolation::Location { content: content.0, block: Some(block) });
            }
        }
        self.contents.check(&located, &slots)
    }

    /// Checks that each block is exactly one of free, cached, used and withdrawn, and that its holders are the counted
    /// tables and transfers.
    fn check_blocks(&self, holders: &[u32]) -> Result<(), InvariantViolation> {
        let (mut num_cached, mut tokens_used) = (0, 0);
        for block in (0..self.blocks.len() as u32).map(BlockId) {
            let holders = holders[block.index()];
            let (cached, used, free) = (self.policy.contains(block), holders > 0, self.blocks.is_free(block));
            let content = self.blocks.content_of(block);
            let withdrawn = !free && content.is_none();
            if [free, cached, used, withdrawn].map(u8::from).iter().sum::<u8>() != 1 {
                return Err(InvariantViolation::State { block, free, cached, used, withdrawn });
            }
            let Some(content) = content else { continue };
            let counted = self.contents.users(content);
            if counted != holders {
                return Err(InvariantViolation::Holders { block, counted, holders });
            }
            if cached && !self.contents.is_findable(content) {
                return Err(InvariantViolation::Unfindable { block });
            }
            num_cached += usize::from(cached);
            tokens_used += if used { self.contents.filled(content) } else { 0 };
        }
        count("eviction policy", self.policy.len(), num_cached)?;
        self.check_owners(holders)?;
        count("counter of tokens in use", self.tokens_used, tokens_used)
    }

    /// Checks that the counts of each owner agree with the blocks, and that the sorted lists agree with the counts.
    fn check_owners(&self, holders: &[u32]) -> Result<(), InvariantViolation> {
        let mut found: HashMap<OwnerId, (usize, usize)> = HashMap::new();
        for (block, _) in self.blocks.contents() {
            let (blocks, cached) = found.entry(self.owners.of(block)).or_default();
            (*blocks, *cached) = (*blocks + 1, *cached + usize::from(holders[block.index()] == 0));
        }
        for (owner, blocks, cached) in self.owners.counted() {
            let (blocks_found, cached_found) = found.remove(&owner).unwrap_or_default();
            count("counter of an owner's blocks", blocks, blocks_found)?;
            count("counter of an owner's cached blocks", cached, cached_found)?;
        }
        count("owners that are not known", 0, found.len())?;
        count("orders of owners that do not hold", usize::from(!self.owners.is_consistent()), 0)
    }

    /// Checks that the number of present blocks is the usable number, as far as used blocks allow.
    fn check_size(&self) -> Result<(), InvariantViolation> {
        let (present, unused, usable) = (self.blocks.present(), self.unused(), self.blocks.usable());
        if present < usable || (present > usable && unused > 0) {
            return Err(InvariantViolation::Usable { present, unused, usable });
        }
        Ok(())
    }

    /// Returns the number of tokens in `block`; `None` if the block holds no content.
    pub(crate) fn filled(&self, block: BlockId) -> Option<usize> {
        self.blocks.content_of(block).map(|content| self.contents.filled(content))
    }

    /// Returns the content or root that the findable content of `block` continues.
    pub(crate) fn continues(&self, block: BlockId) -> Option<Parent> {
        self.contents.continues(self.blocks.content(block))
    }

    /// Returns what chains from `root` continue; `None` if no content under the root is findable.
    pub(crate) fn find_root(&self, root: &ChainRoot) -> Option<Parent> {
        self.contents.find_root(root)
    }

    /// Returns the number of tokens in the content of `slot`.
    pub(crate) fn filled_below(&self, slot: SwapSlot) -> usize {
        self.contents.filled(self.slots.content(slot))
    }
}

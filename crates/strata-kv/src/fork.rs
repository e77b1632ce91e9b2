//! Several sequences with one past: they share its blocks until they write (K11).

use crate::{
    AllocError, BlockId, BlockManager, SequenceId,
    block_pool::BlockPool,
    block_table::{BlockTable, place},
    sequence::{Sequence, SequenceState},
};

/// KV that must be copied from block to block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockCopy {
    /// Where it is.
    pub source: BlockId,
    /// Where it is to be as well.
    pub destination: BlockId,
}

impl BlockManager {
    /// Begins `child` with all tokens of `parent`, whose blocks both hold from now on, the partial last one too. Whoever
    /// appends to that first gets a block of its own and a copy; the last holder writes in place.
    ///
    /// # Errors
    /// When `parent` is not resident, `child` holds blocks, or `parent` has tokens that were not computed and committed.
    /// Nothing has changed then.
    pub fn fork(&mut self, parent: SequenceId, child: SequenceId) -> Result<(), AllocError> {
        if self.sequences.contains_key(&child) {
            return Err(AllocError::AlreadyHeld(child));
        }
        let Some(sequence) = self.sequences.get(&parent) else { return Err(AllocError::NotHeld(parent)) };
        sequence.expect_resident(parent)?;
        let (computed, tokens) = (sequence.num_computed, sequence.table.num_tokens);
        if computed < tokens {
            return Err(AllocError::Uncomputed { id: parent, computed, tokens });
        }
        // Slots that the parent reserved ahead are its own.
        let blocks = sequence.table.blocks[..sequence.table.num_filled(self.config.block_size)].to_vec();
        let forked = Sequence {
            state: SequenceState::Resident,
            table: BlockTable { blocks, num_tokens: tokens },
            slots: Vec::new(),
            uncomputed: Vec::new(),
            root: sequence.root.clone(),
            ..*sequence
        };
        forked.table.blocks.iter().for_each(|&block| self.pool.hold(block));
        self.sequences.insert(child, forked);
        self.counters.forks += 1;
        Ok(())
    }

    /// Moves what must be copied into `copies`, whose old content is dropped, and whose room is used again.
    ///
    /// They must be carried out in this order, one after the other as far as it can be told: a block may be a source
    /// first and a destination later, or a destination and then a source. It must be done before the next pass reads or
    /// writes KV, before the copies of any [`crate::Swap`] begin, and before memory is given back of blocks that
    /// [`take_resize`](Self::take_resize) reports to have left; those that came need theirs before.
    pub fn take_copies(&mut self, copies: &mut Vec<BlockCopy>) {
        copies.clear();
        std::mem::swap(copies, &mut self.copies);
    }
}

/// Gives `table` a block of its own for its partial one.
pub(crate) fn unshare_last(table: &mut BlockTable, pool: &mut BlockPool, id: SequenceId) -> BlockCopy {
    let (index, slots) = place(table.num_tokens, pool.block_size);
    let source = table.blocks[index];
    let destination = pool.take(id);
    pool.copy_tokens(source, destination, slots);
    pool.release(source);
    table.blocks[index] = destination;
    BlockCopy { source, destination }
}

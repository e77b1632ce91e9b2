//! Which blocks hold the tokens of a sequence: logical to physical (K10).

use crate::{
    AllocError, BlockCopy, BlockId, BlockManager, KvStats, SequenceId, TokenId, block_pool::BlockPool,
    fork::unshare_last,
};

/// Blocks in logical order. All but those behind the last token are full or, the last, partial; those behind it were
/// reserved ahead and hold nothing.
#[derive(Debug)]
pub(crate) struct BlockTable {
    pub(crate) blocks: Vec<BlockId>, // [logical block]
    /// Tokens that have a slot, whether computed or not.
    pub(crate) num_tokens: usize,
}

impl BlockTable {
    /// Blocks that hold tokens.
    pub(crate) fn num_filled(&self, block_size: usize) -> usize {
        blocks_for(self.num_tokens, block_size)
    }

    /// The partial block, if there is one: where the next token goes.
    pub(crate) fn partial(&self, block_size: usize) -> Option<BlockId> {
        let (block, slot) = place(self.num_tokens, block_size);
        (slot > 0).then(|| self.blocks[block])
    }
}

impl BlockManager {
    /// Physical blocks of `id` in logical order; valid until the next call that changes blocks. None unless `id` is
    /// resident: what is on its way must not be read. Blocks that [`Self::ensure_num_empty_slots`] reserved come last.
    pub fn block_table(&self, id: SequenceId) -> Option<&[BlockId]> {
        let sequence = self.sequences.get(&id)?;
        sequence.expect_resident(id).ok()?;
        Some(&sequence.table.blocks)
    }

    /// Tokens of `id` that have a slot, whether computed or not, and wherever they are.
    pub fn num_tokens(&self, id: SequenceId) -> Option<usize> {
        self.sequences.get(&id).map(|sequence| sequence.table.num_tokens)
    }

    /// Blocks that so many tokens and so many slots behind them take, whoever shares them.
    pub fn num_required_blocks(&self, num_tokens: usize, num_lookahead_slots: usize) -> usize {
        blocks_for(num_tokens.saturating_add(num_lookahead_slots), self.config.block_size)
    }

    /// Those of `token_ids`, all tokens of `id`, that have no slot yet; all of them when `id` holds nothing.
    pub fn unseen_token_ids<'t>(&self, id: SequenceId, token_ids: &'t [TokenId]) -> &'t [TokenId] {
        &token_ids[self.num_tokens(id).unwrap_or(0).min(token_ids.len())..]
    }

    /// Blocks that a step writes to when it fills `count` slots behind the last token, and
    /// `num_lookahead_slots` more: the partial one, and new ones.
    pub fn num_blocks_touched_by_append(&self, id: SequenceId, count: usize, num_lookahead_slots: usize) -> usize {
        let tokens = self.num_tokens(id).unwrap_or(0);
        let slots = count.saturating_add(num_lookahead_slots);
        if slots == 0 { 0 } else { self.num_required_blocks(tokens, slots) - tokens / self.config.block_size }
    }

    /// Whether [`append`](Self::append) of `count` tokens would succeed (K5), copy of a shared block included (K11).
    pub fn can_append(&self, id: SequenceId, count: usize) -> bool {
        let Some(sequence) = self.sequences.get(&id) else { return false };
        sequence.expect_resident(id).is_ok() && {
            let (need, fresh) = growth(&sequence.table, count, &self.pool);
            need <= self.config.num_blocks && fresh <= self.pool.available()
        }
    }

    /// Reserves slots for tokens that the next step will compute; new blocks are taken only on crossing a boundary, or
    /// instead of a partial block that others hold too: see [`take_copies`](Self::take_copies).
    ///
    /// # Errors
    /// When the blocks are not there, or `id` is not resident. Nothing has changed then.
    pub fn append(&mut self, id: SequenceId, token_ids: &[TokenId]) -> Result<(), AllocError> {
        let Self { pool, sequences, copies, counters, .. } = self;
        let Some(sequence) = sequences.get_mut(&id) else { return Err(AllocError::NotHeld(id)) };
        sequence.expect_resident(id)?;
        let table = &mut sequence.table;
        grow(table, token_ids.len(), id, pool, copies, counters)?;
        let mut rest = token_ids;
        while !rest.is_empty() {
            let (block, slot) = place(table.num_tokens, pool.block_size);
            let after = pool.write(table.blocks[block], slot, rest);
            table.num_tokens += rest.len() - after.len();
            rest = after;
        }
        Ok(())
    }

    /// Reserves blocks, so that `count` slots behind the last token can be written by a step that may discard what it
    /// computes there, as speculation does; [`append`](Self::append) finds them later (K10).
    ///
    /// # Errors
    /// As [`append`](Self::append) of `count` tokens.
    pub fn ensure_num_empty_slots(&mut self, id: SequenceId, count: usize) -> Result<(), AllocError> {
        let Self { pool, sequences, copies, counters, .. } = self;
        let Some(sequence) = sequences.get_mut(&id) else { return Err(AllocError::NotHeld(id)) };
        sequence.expect_resident(id)?;
        grow(&mut sequence.table, count, id, pool, copies, counters)
    }
}

/// Block and slot of a position. Block sizes are powers of two, and in a step's many short appends divisions would cost as
/// much as all the rest.
pub(crate) fn place(position: usize, block_size: usize) -> (usize, usize) {
    (position >> block_size.trailing_zeros(), position & (block_size - 1))
}

/// Blocks that so many tokens fill, the last perhaps in part.
fn blocks_for(num_tokens: usize, block_size: usize) -> usize {
    let (full, slots) = place(num_tokens, block_size);
    full + usize::from(slots > 0)
}

/// Sees to it that `count` slots behind the last token of `table` are there, and no other table's.
fn grow(
    table: &mut BlockTable,
    count: usize,
    id: SequenceId,
    pool: &mut BlockPool,
    copies: &mut Vec<BlockCopy>,
    counters: &mut KvStats,
) -> Result<(), AllocError> {
    let (need, fresh) = growth(table, count, pool);
    let limit = pool.blocks.len();
    if need > limit {
        counters.allocation_failures += 1;
        return Err(AllocError::Never { need, limit });
    }
    if fresh == 0 {
        return Ok(());
    }
    if fresh > pool.available() {
        counters.allocation_failures += 1;
        return Err(AllocError::OutOfBlocks { need: fresh, available: pool.available() });
    }
    if table.partial(pool.block_size).is_some_and(|block| pool.is_shared(block)) {
        copies.push(unshare_last(table, pool, id));
        counters.copy_on_writes += 1;
    }
    while table.blocks.len() < need {
        table.blocks.push(pool.take(id));
    }
    Ok(())
}

/// Blocks that `table` takes in all with `count` slots more, and those that are yet to be taken for them.
fn growth(table: &BlockTable, count: usize, pool: &BlockPool) -> (usize, usize) {
    // An overflow asks for more than any pool has.
    let need = blocks_for(table.num_tokens.saturating_add(count), pool.block_size);
    let partial = if count > 0 { table.partial(pool.block_size) } else { None };
    let copies = usize::from(partial.is_some_and(|block| pool.is_shared(block)));
    (need, need.saturating_sub(table.blocks.len()) + copies)
}

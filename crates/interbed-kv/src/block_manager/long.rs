//! Sequences that are longer than memory. The beginning of their KV is in a tier below memory, the end in blocks of
//! memory.

use super::{BlockManager, tails::units_alone};
use crate::{
    error::BlockError,
    hash::ChainRoot,
    ids::{BlockId, SequenceId},
    tables::{Table, position},
};

impl BlockManager {
    /// Begins sequence `id`, whose first `below` blocks are in a tier below memory and count as computed. The sequence
    /// holds no block yet, and shares nothing with others. The caller [appends](Self::append) the other tokens as they
    /// are to be computed.
    ///
    /// # Errors
    /// Fails with [`BlockError::AlreadyHeld`] if `id` has begun before and was not freed.
    ///
    /// # Panics
    /// Panics if layers [keep tails](Self::keeps_tails) and `below` is not 0, because nothing below memory stands for
    /// the tails of such a sequence.
    pub fn begin_below(&mut self, id: SequenceId, root: &ChainRoot, below: usize) -> Result<(), BlockError> {
        if self.tables.get(id).is_some() {
            return Err(BlockError::AlreadyHeld(id));
        }
        assert!(below == 0 || !self.keeps_tails(), "a sequence goes on behind {below} blocks without their tails");
        let tails = self.begin_tails(id, root, &[], 0, 0);
        self.tables.insert(id, Table::of_below(root.clone(), below, self.config.block_size).with_tails(tails));
        self.counters.allocations += 1;
        Ok(())
    }

    /// Notes that the first `count` trunk blocks that `id` has in memory now lie in a tier below memory too, and
    /// releases these blocks. The sequence must have been begun by [`begin_below`](Self::begin_below).
    ///
    /// # Errors
    /// The manager is unchanged on failure:
    /// - [`BlockError::NotHeld`] if `id` is unknown, and [`BlockError::WrongState`] if it is not resident;
    /// - [`BlockError::OutOfBlocks`] if fewer than `count` of these blocks are full and computed, or if others may find
    ///   the sequence's blocks.
    pub fn move_below(&mut self, id: SequenceId, count: usize) -> Result<(), BlockError> {
        let block_size = self.config.block_size;
        let table = self.tables.resident(id)?;
        let (full, _) = position(table.num_computed(), block_size);
        let available = if table.is_publishing() { 0 } else { full - table.below() };
        if count > available {
            return Err(BlockError::OutOfBlocks { need: count, available });
        }
        table.move_below(count).into_iter().rev().for_each(|block| self.cache.release(block));
        Ok(())
    }

    /// Returns how many units a sequence takes that has `num_blocks` trunk blocks in memory, and others below memory.
    /// Its tail blocks are included.
    pub fn num_blocks_beside_below(&self, num_blocks: usize) -> usize {
        // A window is full then.
        units_alone(&self.cache, num_blocks, self.capacity_tokens())
    }

    /// Returns how many leading blocks of `id` are in a tier below memory; 0 if `id` is unknown.
    pub fn blocks_below(&self, id: SequenceId) -> usize {
        self.tables.get(id).map_or(0, Table::below)
    }

    /// Returns how many trunk blocks `id` holds in memory; 0 if `id` is unknown.
    pub fn blocks_held(&self, id: SequenceId) -> usize {
        self.tables.get(id).map_or(0, |table| table.blocks().len())
    }

    /// Returns the trunk blocks that `id` holds in memory and whose tokens are all computed, whatever the state of the
    /// sequence. Returns none if `id` is unknown.
    pub fn computed_blocks(&self, id: SequenceId) -> &[BlockId] {
        let Some(table) = self.tables.get(id) else { return &[] };
        let (full, _) = position(table.num_computed(), self.config.block_size);
        table.blocks().get(..full.saturating_sub(table.below())).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::{KvConfig, TokenId, testing::Rng};

    const BLOCK: usize = 4;

    /// A sequence, and the number of its tokens that were reported as computed.
    struct One {
        tokens: Vec<TokenId>,
        computed: usize,
        long: bool,
    }

    #[test]
    fn what_is_below_takes_no_blocks_and_everything_else_goes_on() {
        let (mut moved, mut refused, mut restarted) = (0, 0, 0);
        for seed in 0..40 {
            let mut random = Rng(seed);
            let config = KvConfig { num_blocks: 16, block_size: BLOCK, num_swap_blocks: 8, ..KvConfig::default() };
            let mut manager = BlockManager::new(config).expect("it is valid");
            let root = ChainRoot::new(None, 0);
            let mut alive: HashMap<SequenceId, One> = HashMap::new();
            for number in 0..500 {
                let id = {
                    let mut ids: Vec<_> = alive.keys().copied().collect();
                    ids.sort_unstable();
                    (!ids.is_empty()).then(|| ids[random.below(ids.len())])
                };
                match (random.below(8), id) {
                    (0, _) => {
                        let (id, tokens) = (SequenceId(number), vec![random.below(2) as TokenId; 1 + random.below(20)]);
                        let hashes = manager.hash_prefix(&root, &tokens);
                        if let Ok(allocation) = manager.allocate(id, &tokens, &hashes) {
                            alive.insert(id, One { computed: allocation.num_cached_tokens, tokens, long: false });
                        }
                    }
                    (1, _) => {
                        let (id, below) = (SequenceId(number), random.below(100));
                        manager.begin_below(id, &root, below).expect("it is new");
                        assert!(manager.begin_below(id, &root, 0).is_err());
                        let tokens = vec![1; below * BLOCK];
                        restarted += usize::from(below > 0);
                        alive.insert(id, One { computed: tokens.len(), tokens, long: true });
                    }
                    (2..5, Some(id)) => {
                        let one = alive.get_mut(&id).expect("it is alive");
                        let more = vec![2; 1 + random.below(9)];
                        if manager.append(id, &more).is_ok() {
                            one.tokens.extend(more);
                        }
                    }
                    (5, Some(id)) => {
                        let one = alive.get_mut(&id).expect("it is alive");
                        one.computed += random.below(one.tokens.len() - one.computed + 1);
                        manager.commit(id, one.computed);
                    }
                    (6, Some(id)) => {
                        let one = &alive[&id];
                        let (held, count) = (manager.computed_blocks(id).len(), random.below(4));
                        let before = manager.blocks_below(id);
                        assert_eq!(held + before, one.computed / BLOCK);
                        let (free, moves) = (manager.stats().blocks_free, one.long && count <= held);
                        assert_eq!(manager.move_below(id, count).is_ok(), moves || count == 0);
                        if moves {
                            assert_eq!(manager.blocks_below(id), before + count);
                            assert_eq!(manager.stats().blocks_free, free + count);
                            moved += count;
                        }
                        if manager.blocks_below(id) > 0 {
                            refused += 1;
                            assert_eq!(manager.swap_out(&[id]).unwrap_err(), BlockError::BelowMemory(id));
                            assert_eq!(manager.fork(id, SequenceId(10_000)).unwrap_err(), BlockError::BelowMemory(id));
                        }
                    }
                    (7, Some(id)) => {
                        alive.remove(&id);
                        assert!(manager.free(id));
                    }
                    _ => {
                        manager.compact(3);
                        manager.take_copies(&mut Vec::new());
                    }
                }
                manager.check().expect("invariants hold");
                for (&id, one) in &alive {
                    let table = manager.block_table(id).expect("nothing is swapped");
                    let all = one.tokens.len().div_ceil(BLOCK);
                    assert_eq!(table.len() + manager.blocks_below(id), all, "{id}");
                    assert_eq!(manager.num_tokens(id), Some(one.tokens.len()));
                }
            }
        }
        assert!(moved > 50 && refused > 100 && restarted > 100, "{moved} {refused} {restarted}");
    }
}

//! Checks what must hold after every operation. Everything is recomputed from scratch, which is slow, but independent
//! of how the state was reached.

use std::collections::HashMap;

use super::BlockManager;
use crate::{
    block_bytes::BlockPart,
    config::Keeps,
    ids::{BlockId, SequenceId},
    invariant_violation::{InvariantViolation, count},
    sequence_state::SequenceState,
    tables::{Table, blocks_for},
    tail_table::TailTable,
    transfer::{BlockSwap, SwapDirection},
};

impl BlockManager {
    /// Checks every invariant. The check takes time in proportion to the pool.
    ///
    /// # Errors
    /// Fails with the first violation that is found.
    pub fn check(&self) -> Result<(), InvariantViolation> {
        // If a transfer holds a block that its own sequence's table holds too, both count.
        let mut holders = vec![0u32; self.cache.blocks().len()];
        let mut slot_holders = vec![0u32; self.cache.slots().len()];
        for (_, table) in self.tables.iter() {
            table.blocks().iter().for_each(|block| holders[block.index()] += 1);
            let of_tails = table.tails().groups.iter().flat_map(TailTable::slots);
            table.slots().iter().chain(of_tails).for_each(|slot| slot_holders[slot.index()] += 1);
        }
        let mut tail_holders = HashMap::new();
        let in_flight = self.transfers.flights().flat_map(|(_, flight)| &flight.transfers);
        for &BlockSwap { part: BlockPart { block, .. }, slot } in in_flight {
            match holders.get_mut(block.index()) {
                Some(holders) => *holders += 1,
                None => *tail_holders.entry(block).or_default() += 1,
            }
            slot_holders[slot.index()] += 1;
        }
        for block in self.transfers.fetched() {
            match holders.get_mut(block.index()) {
                Some(holders) => *holders += 1,
                None => *tail_holders.entry(block).or_default() += 1,
            }
        }
        self.cache.check(&holders, &slot_holders)?;
        for group in self.tables.iter().flat_map(|(_, table)| &table.tails().groups) {
            group.blocks().for_each(|block| *tail_holders.entry(block).or_default() += 1);
        }
        self.cache.check_tails(&tail_holders)?;
        self.check_transfers()?;
        for (id, table) in self.tables.iter() {
            let checks = [self.check_state(id, table), self.check_table(table), self.check_tail_tables(table)];
            if let Some(what) = checks.into_iter().find_map(Result::err) {
                return Err(InvariantViolation::Sequence { id, what });
            }
        }
        Ok(())
    }

    /// Checks that blocks that a swap fills are not findable yet, and that the number of swapped-out sequences is
    /// right.
    fn check_transfers(&self) -> Result<(), InvariantViolation> {
        let swapped = self.tables.iter().filter(|(_, table)| table.state() == SequenceState::Swapped).count();
        count("number of sequences swapped out", self.tables.num_swapped(), swapped)?;
        for (swap, flight) in self.transfers.flights().filter(|(_, flight)| flight.direction == SwapDirection::In) {
            let of_trunk = |block: &BlockId| block.index() < self.cache.blocks().len();
            let mut blocks = flight.transfers.iter().map(|transfer| transfer.part.block).filter(of_trunk);
            if let Some(block) = blocks.find(|&block| self.cache.continues(block).is_some()) {
                return Err(InvariantViolation::FoundTooEarly { block, swap });
            }
        }
        Ok(())
    }

    /// Checks that the state of a sequence agrees with its blocks, its slots and its swap in flight.
    fn check_state(&self, id: SequenceId, table: &Table) -> Result<(), &'static str> {
        let block_size = self.config.block_size;
        let num_filled = table.num_filled(block_size);
        let in_flight = |swap, direction| {
            let flight = self.transfers.flight(swap);
            flight.is_some_and(|flight| flight.direction == direction && flight.group.contains(&id))
        };
        let (blocks, slots, swap) = match table.state() {
            SequenceState::Resident => (true, false, true),
            SequenceState::Leaving(swap) => (true, true, in_flight(swap, SwapDirection::Out)),
            SequenceState::Swapped => (false, true, true),
            SequenceState::Arriving(swap) => (true, true, in_flight(swap, SwapDirection::In)),
            SequenceState::Fetching(fetch) => (true, false, self.transfers.fetch(fetch) == Some(id)),
        };
        if !swap {
            return Err("it waits for a swap or a fetch that is not in flight");
        }
        let num_slots = table.slots().len();
        if num_slots != if slots { table.num_computed_blocks(block_size) } else { 0 } {
            return Err("it has more or fewer slots than its state and computed tokens need");
        }
        let keeps = matches!(table.state(), SequenceState::Leaving(_) | SequenceState::Swapped);
        let behind = table.num_tokens().saturating_sub(num_slots * block_size);
        if table.uncomputed().len() != if keeps { behind } else { 0 } {
            return Err("it keeps more or fewer tokens beside its slots than are not in them");
        }
        let filled = |index: usize| table.num_tokens().saturating_sub(index * block_size).min(block_size);
        if table.slots().iter().enumerate().any(|(index, &slot)| self.cache.filled_below(slot) != filled(index)) {
            return Err("a slot of it holds more or fewer tokens than it has there");
        }
        match blocks {
            true if table.blocks().len() < num_filled => Err("it has fewer blocks than its tokens need"),
            false if !table.blocks().is_empty() => Err("it is swapped out, but holds blocks"),
            _ => Ok(()),
        }
    }

    /// Checks that each block of a table holds as many tokens as the sequence has there, that published blocks form a
    /// chain, and that no block that the sequence writes is shared.
    fn check_table(&self, table: &Table) -> Result<(), &'static str> {
        let (block_size, num_tokens, num_computed) = (self.config.block_size, table.num_tokens(), table.num_computed());
        if table.below() > 0 && (table.num_published() > 0 || table.is_publishing()) {
            return Err("part of it is below memory, and others find the rest");
        }
        if num_computed < table.below() * block_size
            || num_computed > num_tokens
            || table.num_published() * block_size > num_computed
        {
            return Err("more is published than computed, or computed than there is");
        }
        let mut parent = self.cache.find_root(table.root());
        for (index, &block) in table.blocks().iter().enumerate() {
            let start = (table.below() + index) * block_size;
            if self.cache.filled(block) != Some(num_tokens.saturating_sub(start).min(block_size)) {
                return Err("a block of it holds more or fewer tokens than it has there");
            }
            let continues = self.cache.continues(block);
            // This also holds if another sequence has published a block that both hold, because a sequence that holds a
            // block holds its parent.
            if continues.is_some() && continues != parent {
                return Err("its published blocks are not a chain from its root");
            }
            if continues.is_none() && index < table.num_published() {
                return Err("a block of it is not published that it has published");
            }
            if continues.is_some() && start + block_size > num_computed {
                return Err("a block of it is published before it has computed it");
            }
            parent = Some(self.cache.parent(block));
            let writes = start + block_size > num_computed && num_tokens > num_computed;
            let written = writes || start >= num_tokens;
            // A transfer that fills the block holds the block as well. Only blocks in front of it are written by the
            // sequence.
            let filled_by_others = self.transfers.fetched().any(|fetched| fetched == block);
            if filled_by_others && continues.is_some() {
                return Err("a block of it that is being filled can be found");
            }
            if table.state() == SequenceState::Resident && written && self.cache.is_shared(block) && !filled_by_others {
                return Err("a block that it may write is shared");
            }
        }
        Ok(())
    }

    /// Checks that a sequence holds the blocks of windows that its next token needs and none before them, and that a
    /// pass does not write over a state that others need.
    fn check_tail_tables(&self, table: &Table) -> Result<(), &'static str> {
        let Some(tails) = self.cache.tails().filter(|_| table.state() == SequenceState::Resident) else {
            return Ok(());
        };
        if table.tails().groups.len() != tails.pools.len() {
            return Err("it has no table for a group that needs its tail");
        }
        let (computed, tokens) = (table.num_computed(), table.num_tokens());
        let goes_on_at = table.goes_on_at(self.config.block_size);
        for (pool, group) in tails.pools.iter().zip(&table.tails().groups) {
            match (group, pool.keeps()) {
                (TailTable::Window(window), Keeps::Window { tokens: seen }) => {
                    let first = (goes_on_at + 1).saturating_sub(seen) / self.config.block_size;
                    if window.first != first {
                        return Err("it holds more or less of a window than its next token sees");
                    }
                    if window.end() < blocks_for(computed, self.config.block_size) {
                        return Err("it has computed tokens that are not in its window");
                    }
                }
                (TailTable::State(state), Keeps::State) => {
                    let is_needed = |block| pool.holders(block) > 1 || pool.content(block).is_some();
                    if state.kept.is_some_and(|(at, _)| !table.is_long() || at * self.config.block_size > computed) {
                        return Err("it keeps a state that it has not computed");
                    }
                    let writes = state.to.or(state.from);
                    if computed < tokens && writes.is_none_or(is_needed) {
                        return Err("its next pass writes over a state that others need");
                    }
                    if (computed > 0) != state.from.is_some() {
                        return Err("it has computed tokens and no state, or a state and no tokens");
                    }
                }
                _ => return Err("it holds a window in place of a state, or the other way round"),
            }
        }
        Ok(())
    }
}

//! What must hold after every operation (K14), checked from scratch: slow, and independent of how it came about.

use std::collections::HashMap;

use crate::{
    BlockId, BlockManager, InvariantViolation, SequenceId, SequenceState, SwapDirection, SwapSlot,
    block_pool::{Block, Continues, Parent},
    root_table::RootId,
    sequence::Sequence,
};

impl BlockManager {
    /// Checks every invariant; takes time in proportion to the pool.
    ///
    /// # Errors
    /// The first violation found.
    pub fn check(&self) -> Result<(), InvariantViolation> {
        self.check_states()?;
        self.check_size()?;
        self.check_chains()?;
        self.check_swaps()?;
        for (&id, sequence) in &self.sequences {
            let checks = [self.check_places(id, sequence), self.check_table(sequence)];
            if let Some(what) = checks.into_iter().find_map(Result::err) {
                return Err(InvariantViolation::Sequence { id, what });
            }
        }
        Ok(())
    }

    fn block_ids(&self) -> impl Iterator<Item = BlockId> {
        (0..self.pool.blocks.len() as u32).map(BlockId)
    }

    fn block(&self, block: BlockId) -> &Block {
        &self.pool.blocks[block.index()]
    }

    fn published(&self) -> impl Iterator<Item = (BlockId, &Block, Continues)> {
        self.block_ids().filter_map(|id| Some((id, self.block(id), self.block(id).parent.get()?)))
    }

    /// Each block is one of free, cached, used, withdrawn; reference counts are those of tables and swaps.
    fn check_states(&self) -> Result<(), InvariantViolation> {
        let pool = &self.pool;
        let mut holders = vec![0u32; pool.blocks.len()];
        let tables = self.sequences.values().flat_map(|sequence| sequence.table.blocks.iter().copied());
        let swaps = self.swaps.flights.values().flat_map(|flight| flight.copies.iter().map(|copy| copy.block));
        tables.chain(swaps).for_each(|block| holders[block.index()] += 1);
        let (mut num_free, mut num_cached, mut num_withdrawn, mut slots_filled) = (0, 0, 0, 0);
        for block in self.block_ids() {
            let (state, holders) = (self.block(block), holders[block.index()]);
            let (free, cached, used) = (pool.free.contains(block), pool.cached.contains(block), holders > 0);
            let withdrawn = state.withdrawn;
            if [free, cached, used, withdrawn].map(u8::from).iter().sum::<u8>() != 1 {
                return Err(InvariantViolation::State { block, free, cached, used, withdrawn });
            }
            if state.ref_count != holders {
                return Err(InvariantViolation::RefCount { block, ref_count: state.ref_count, holders });
            }
            let published = state.is_published();
            if !used && published != cached {
                return Err(InvariantViolation::Published { block, published });
            }
            num_free += usize::from(free);
            num_cached += usize::from(cached);
            num_withdrawn += usize::from(withdrawn);
            slots_filled += if used { usize::from(state.filled) } else { 0 };
        }
        count("free list", pool.free.len(), num_free)?;
        count("free list walked", pool.free.iter().count(), num_free)?;
        count("eviction policy", pool.cached.len(), num_cached)?;
        count("counter of withdrawn blocks", pool.num_withdrawn, num_withdrawn)?;
        count("counter of filled slots", pool.slots_filled, slots_filled)?;
        count("index", pool.index.len(), self.published().count())
    }

    /// The size is what was asked for, as far as used blocks allow.
    fn check_size(&self) -> Result<(), InvariantViolation> {
        let pool = &self.pool;
        let (present, unused, usable) = (pool.present(), pool.available(), pool.usable);
        if present < usable || (present > usable && unused > 0) {
            return Err(InvariantViolation::Usable { present, unused, usable });
        }
        let resized = pool.blocks.iter().filter(|block| block.resized).count();
        count("counter of blocks that came or left", pool.num_resized, resized)?;
        let withdrawn = |block: &Block| block.withdrawn;
        let holes = pool.blocks[..usable].iter().filter(|block| withdrawn(block)).count();
        count("counter of withdrawn blocks below the usable ones", pool.num_holes, holes)?;
        let below = pool.blocks[..pool.first_withdrawn].iter().filter(|block| withdrawn(block)).count();
        count("withdrawn blocks below the first", 0, below)
    }

    /// Published blocks form chains from a root, each found by its content; index and content agree.
    fn check_chains(&self) -> Result<(), InvariantViolation> {
        let pool = &self.pool;
        let mut children = vec![0u32; pool.blocks.len()];
        let mut roots: HashMap<u32, u32> = HashMap::new();
        for (block, state, continues) in self.published() {
            match continues {
                Continues::Root(RootId(root)) => *roots.entry(root).or_default() += 1,
                Continues::Block(parent) if self.block(parent).is_published() => children[parent.index()] += 1,
                Continues::Block(parent) => return Err(InvariantViolation::Orphan { block, parent }),
            }
            if state.hash != pool.hasher.block(pool.hash_of(state.parent), pool.tokens(block)) {
                return Err(InvariantViolation::Hash { block });
            }
            if pool.find(state.hash, state.parent, pool.tokens(block)) != Some(block) {
                return Err(InvariantViolation::Lookup { block });
            }
        }
        for block in self.block_ids() {
            let (counted, found) = (self.block(block).children, children[block.index()]);
            if counted != found {
                return Err(InvariantViolation::Children { block, counted, found });
            }
        }
        count("table of roots", pool.roots.len(), roots.len())?;
        roots.into_iter().try_for_each(|(root, found)| {
            count("holders of a root", pool.roots.holders(RootId(root)) as usize, found as usize)
        })
    }

    /// Slots are held by those who say so, and what is on its way in is not findable yet.
    fn check_swaps(&self) -> Result<(), InvariantViolation> {
        let pool = &self.swaps.pool;
        let (mut holders, mut free) = (vec![0u32; pool.len()], vec![false; pool.len()]);
        let sequences = self.sequences.values().flat_map(|sequence| sequence.slots.iter().copied());
        let swaps = self.swaps.flights.values().flat_map(|flight| flight.copies.iter().map(|copy| copy.slot));
        sequences.chain(swaps).for_each(|slot| holders[slot.index()] += 1);
        pool.free.iter().for_each(|slot| free[slot.index()] = true);
        for (index, (&found, free)) in holders.iter().zip(free).enumerate() {
            let counted = pool.holders[index];
            if counted != found || free != (found == 0) {
                return Err(InvariantViolation::Slot { slot: SwapSlot(index as u32), counted, found, free });
            }
        }
        count("list of free slots", pool.free.len(), holders.iter().filter(|&&holders| holders == 0).count())?;
        let swapped = self.sequences.values().filter(|sequence| sequence.state == SequenceState::Swapped).count();
        count("number of sequences swapped out", self.num_swapped, swapped)?;
        for (&swap, flight) in self.swaps.flights.iter().filter(|(_, flight)| flight.direction == SwapDirection::In) {
            if let Some(copy) = flight.copies.iter().find(|copy| self.block(copy.block).is_published()) {
                return Err(InvariantViolation::FoundTooEarly { block: copy.block, swap });
            }
        }
        Ok(())
    }

    /// A sequence has blocks, slots and a swap under way as its state says.
    fn check_places(&self, id: SequenceId, sequence: &Sequence) -> Result<(), &'static str> {
        let block_size = self.config.block_size;
        let num_filled = sequence.table.num_filled(block_size);
        let under_way = |swap, direction| {
            let flight = self.swaps.flights.get(&swap);
            flight.is_some_and(|flight| flight.direction == direction && flight.group.contains(&id))
        };
        let (blocks, slots, swap) = match sequence.state {
            SequenceState::Resident => (true, false, true),
            SequenceState::Leaving(swap) => (true, true, under_way(swap, SwapDirection::Out)),
            SequenceState::Swapped => (false, true, true),
            SequenceState::Arriving(swap) => (true, true, under_way(swap, SwapDirection::In)),
        };
        if !swap {
            return Err("it waits for a swap that is not under way");
        }
        if sequence.slots.len() != if slots { sequence.num_computed_blocks(block_size) } else { 0 } {
            return Err("it has more or fewer slots than its state and computed tokens need");
        }
        let keeps = matches!(sequence.state, SequenceState::Leaving(_) | SequenceState::Swapped);
        let behind = sequence.table.num_tokens.saturating_sub(sequence.slots.len() * block_size);
        if sequence.uncomputed.len() != if keeps { behind } else { 0 } {
            return Err("it keeps more or fewer tokens beside its slots than are not in them");
        }
        match blocks {
            true if sequence.table.blocks.len() < num_filled => Err("it has fewer blocks than its tokens need"),
            false if !sequence.table.blocks.is_empty() => Err("it is swapped out, but holds blocks"),
            _ => Ok(()),
        }
    }

    /// The blocks of a table are what the sequence may think they are.
    fn check_table(&self, sequence: &Sequence) -> Result<(), &'static str> {
        let (block_size, table) = (self.config.block_size, &sequence.table);
        if sequence.num_computed > table.num_tokens || sequence.num_published * block_size > sequence.num_computed {
            return Err("more is published than computed, or computed than there is");
        }
        let mut parent = self.pool.roots.find(&sequence.root).map(Parent::root);
        for (index, &id) in table.blocks.iter().enumerate() {
            let (block, start) = (self.block(id), index * block_size);
            if usize::from(block.filled) != table.num_tokens.saturating_sub(start).min(block_size) {
                return Err("a block of it holds more or fewer tokens than it has there");
            }
            // Also where another has published what both hold: whoever holds a block holds its parent.
            if block.is_published() && Some(block.parent) != parent {
                return Err("its published blocks are not a chain from its root");
            }
            if !block.is_published() && index < sequence.num_published {
                return Err("a block of it is not published that it has published");
            }
            if block.is_published() && start + block_size > sequence.num_computed {
                return Err("a block of it is published before it has computed it");
            }
            parent = Some(Parent::block(id));
            let writes = start + block_size > sequence.num_computed && table.num_tokens > sequence.num_computed;
            let written = writes || start >= table.num_tokens;
            if sequence.state == SequenceState::Resident && written && block.ref_count != 1 {
                return Err("a block that it may write is shared");
            }
        }
        Ok(())
    }
}

fn count(list: &'static str, counted: usize, found: usize) -> Result<(), InvariantViolation> {
    if counted == found { Ok(()) } else { Err(InvariantViolation::Count { list, counted, found }) }
}

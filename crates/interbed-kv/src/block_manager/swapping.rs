//! Swaps out [swap groups](crate#terms), whose blocks are copied to slots one tier down, and brings them back later.
//!
//! Transfers may take as long as they like while other sequences compute; `transfer.rs` says what holds meanwhile.

use std::collections::{HashMap, HashSet};

use super::{BlockManager, tails};
use crate::{
    block_bytes::BlockPart,
    cache::{Need, Taker},
    error::{AllocStatus, BlockError},
    ids::{BlockId, SequenceId, SwapId, SwapSlot},
    sequence_state::SequenceState,
    tables::{Table, blocks_for},
    tail_pool::TailPool,
    transfer::{BlockSwap, Flight, Swap, SwapDirection, SwapOutcome},
};

impl BlockManager {
    /// Returns where the KV of `id` is; `None` if `id` is unknown.
    pub fn state(&self, id: SequenceId) -> Option<SequenceState> {
        self.tables.get(id).map(Table::state)
    }

    /// Returns whether no sequence or transfer holds `slot`.
    pub fn is_slot_free(&self, slot: SwapSlot) -> bool {
        self.cache.slots().is_free(slot)
    }

    /// Returns the number of slots that sequences or transfers hold.
    pub fn num_used_slots(&self) -> usize {
        self.cache.slots().num_used()
    }

    /// Tells whether [`swap_out`](Self::swap_out) of the [swap group](crate#terms) `group` would find enough slots. The
    /// answer is also `Never` if a sequence of the group is unknown or not resident, because waiting does not change
    /// that. The numbers in `Never` count slots. The call does not ask whether KV of the group lies below memory.
    pub fn can_swap_out(&self, group: &[SequenceId]) -> AllocStatus {
        let (need, limit) = (self.swap_cost(group), self.cache.slots().len());
        let resident = group.iter().all(|&id| self.state(id) == Some(SequenceState::Resident));
        match need {
            _ if need > limit || !resident => AllocStatus::Never { need, limit },
            _ if need > self.cache.slots().num_free() => AllocStatus::Later,
            _ => AllocStatus::Ok,
        }
    }

    /// Returns how many parts a swap of `group` copies if it must copy all of them: those of blocks with computed
    /// tokens, in the trunk and in all tail groups. A part that several sequences share counts once.
    pub fn swap_cost(&self, group: &[SequenceId]) -> usize {
        match group {
            // A table holds each block once.
            [_] => {
                self.locations(group).count() + self.tail_locations(group).map(|(pool, _)| pool.parts()).sum::<usize>()
            }
            _ => {
                let places = self.locations(group).map(|(_, _, place)| (place, 1));
                let tails = self.tail_locations(group).map(|(pool, place)| (place, pool.parts()));
                places.chain(tails).collect::<HashMap<_, _>>().values().sum()
            }
        }
    }

    /// Returns how many units the tokens of `group` take, computed or not; a shared block counts once. The group holds
    /// at most this many units once it is back in memory.
    pub fn blocks_required(&self, group: &[SequenceId]) -> usize {
        // Blocks without computed tokens are never shared.
        let uncomputed = |table: &Table| {
            let block_size = self.config.block_size;
            table.num_filled(block_size) - table.num_computed_blocks(block_size)
        };
        let computed: HashSet<_> = self.locations(group).map(|(_, _, place)| place).collect();
        let fresh = computed.len() + self.members(group).map(uncomputed).sum::<usize>();
        let tail_bytes = self.tail_bytes_required(group);
        self.cache.cost(Need { fresh, revived: 0, tail_bytes })
    }

    /// Returns the bytes of the tail blocks that `group` holds once it is back in memory.
    fn tail_bytes_required(&self, group: &[SequenceId]) -> usize {
        let tails = self.tail_locations(group).map(|(pool, place)| (place, pool.block_bytes()));
        let computed = tails.collect::<HashMap<_, _>>().values().sum::<usize>();
        computed + self.members(group).map(|one| self.bytes_ahead(one)).sum::<usize>()
    }

    /// Returns how many units nothing but `group` holds, not even a transfer in flight: those that would become
    /// available if the group released everything. Blocks reserved ahead count too.
    pub fn blocks_exclusive(&self, group: &[SequenceId]) -> usize {
        let blocks = self.members(group).flat_map(|table| table.blocks().iter().copied());
        let tails = self.tail_bytes_exclusive(group);
        let count = match group {
            [_] => blocks.filter(|&block| self.cache.holders(block) == 1).count(),
            _ => {
                let mut holders: HashMap<BlockId, u32> = HashMap::new();
                blocks.for_each(|block| *holders.entry(block).or_default() += 1);
                holders.into_iter().filter(|&(block, holders)| self.cache.holders(block) == holders).count()
            }
        };
        self.cache.cost(Need { fresh: count, revived: 0, tail_bytes: tails })
    }

    /// Returns the bytes of the tail blocks that only `group` holds.
    fn tail_bytes_exclusive(&self, group: &[SequenceId]) -> usize {
        let Some(tails) = self.cache.tails() else { return 0 };
        let mut holders: HashMap<BlockId, u32> = HashMap::new();
        let groups = self.members(group).flat_map(|table| &table.tails().groups);
        groups.flat_map(|group| group.blocks()).for_each(|block| *holders.entry(block).or_default() += 1);
        let of = |(block, held): (BlockId, u32)| {
            let pool = tails.pool_of(block).filter(|pool| pool.holders(block) == held);
            pool.map_or(0, TailPool::block_bytes)
        };
        holders.into_iter().map(of).sum()
    }

    /// Returns how many computed tokens of `group` are in no published block, so that they must be computed again if
    /// the group loses its blocks now and comes back at once. Tokens in a block that several sequences share count
    /// once. Where layers keep tails, tokens of published blocks behind the last [resume point](crate#terms) must be
    /// computed again too, but are not counted.
    pub fn recompute_cost(&self, group: &[SequenceId]) -> usize {
        let block_size = self.config.block_size;
        let lost = self.locations(group).filter(|(table, index, _)| *index >= table.num_published());
        let tokens =
            lost.map(|(table, index, place)| (place, block_size.min(table.num_computed() - index * block_size)));
        match group {
            [_] => tokens.map(|(_, tokens)| tokens).sum(),
            // All sequences that share a block have the same number of tokens in it.
            _ => tokens.collect::<HashMap<_, _>>().values().sum(),
        }
    }

    /// Begins to move `group` to slots. The whole group moves at once, because sequences that share blocks could not
    /// share them while some are in memory and others below. Only blocks with computed and committed tokens are copied.
    /// The sequences are `Leaving` until [`finish_swap`](Self::finish_swap), which releases their blocks.
    ///
    /// # Errors
    /// The manager is unchanged on failure:
    /// - [`BlockError::NotHeld`] if a sequence of the group is unknown, and [`BlockError::WrongState`] if one is not
    ///   resident;
    /// - [`BlockError::BelowMemory`] if part of the KV of a sequence lies below memory;
    /// - [`BlockError::OutOfSwap`] if too few slots are free.
    pub fn swap_out(&mut self, group: &[SequenceId]) -> Result<Swap, BlockError> {
        let group = self.group_in(group, SequenceState::Resident)?;
        if let Some(&id) = group.iter().find(|&&id| self.blocks_below(id) > 0) {
            return Err(BlockError::BelowMemory(id));
        }
        let (need, available, limit) =
            (self.swap_cost(&group), self.cache.slots().num_free(), self.cache.slots().len());
        if need > available {
            return Err(BlockError::OutOfSwap { need, available, limit });
        }
        // These blocks are counted before the swap holds them too.
        let num_freed = self.blocks_exclusive(&group);
        let Self { config, cache, tables, transfers: ledger, .. } = self;
        let (id, block_size) = (ledger.next_id(), config.block_size);
        let mut transfers = Vec::with_capacity(need);
        let mut taken: HashMap<BlockPart, SwapSlot> = HashMap::with_capacity(need);
        let parts: Vec<_> = tails::parts_of(cache).collect();
        for &member in &group {
            let table = tables.resident(member)?;
            let filled = &table.blocks()[..table.num_filled(block_size)];
            let (computed, uncomputed) = filled.split_at(table.num_computed_blocks(block_size));
            let slot_of = |&block: &BlockId| {
                let part = BlockPart::whole(block);
                let slot = *taken.entry(part).or_insert_with(|| {
                    cache.hold(block);
                    let slot = cache.take_slot(block);
                    transfers.push(BlockSwap { part, slot });
                    slot
                });
                cache.hold_slot(slot);
                slot
            };
            let slots = computed.iter().map(slot_of).collect();
            let uncomputed = uncomputed.iter().flat_map(|&block| cache.tokens(block)).copied().collect();
            let num_blocks = blocks_for(table.num_computed(), block_size);
            table.begin_leaving(id, slots, uncomputed);
            for (pool, group) in table.tails_mut().groups.iter_mut().enumerate() {
                let slot_of = |part: BlockPart| {
                    let slot = *taken.entry(part).or_insert_with(|| {
                        cache.hold_any(part.block);
                        let slot = cache.take_tail_slot();
                        transfers.push(BlockSwap { part, slot });
                        slot
                    });
                    cache.hold_slot(slot);
                    slot
                };
                let of_block = |block| (0..parts[pool]).map(move |part| BlockPart { block, part });
                let slots = group.computed(num_blocks).flat_map(of_block).map(slot_of).collect();
                group.set_slots(slots);
            }
        }
        let swap = Swap { id, direction: SwapDirection::Out, transfers, num_spared: 0, num_freed };
        Ok(ledger.begin(group, swap))
    }

    /// Tells whether [`swap_in`](Self::swap_in) of `group` would find enough units and leave [`reserve`](Self::reserve)
    /// units available, which admission requires too. The answer is also `Never` if a sequence of the group is unknown
    /// or not swapped out. The numbers in `Never` count units.
    pub fn can_swap_in(&self, group: &[SequenceId]) -> AllocStatus {
        let (need, limit) = (self.blocks_required(group), self.config.num_blocks);
        let swapped = group.iter().all(|&id| self.state(id) == Some(SequenceState::Swapped));
        if need > limit || !swapped {
            return AllocStatus::Never { need, limit };
        }
        match self.cache.fits(self.arrival(group).need, self.reserve()) {
            true => AllocStatus::Ok,
            false => AllocStatus::Later,
        }
    }

    /// Begins to bring `group` back to memory. The sequences share blocks whose content is still findable, and other
    /// blocks with computed tokens are filled from their slots. Fresh blocks replace the blocks in which nothing was
    /// computed. The sequences are `Arriving` until [`finish_swap`](Self::finish_swap). The watermark does not apply
    /// here.
    ///
    /// # Errors
    /// The manager is unchanged on failure:
    /// - [`BlockError::NotHeld`] if a sequence of the group is unknown, and [`BlockError::WrongState`] if one is not
    ///   swapped out;
    /// - [`BlockError::OutOfBlocks`] if too few units are available.
    pub fn swap_in(&mut self, group: &[SequenceId]) -> Result<Swap, BlockError> {
        let group = self.group_in(group, SequenceState::Swapped)?;
        let num_slots = self.swap_cost(&group);
        let arrival = self.arrival(&group);
        self.expect_room(arrival.need)?;
        // The hits are held first, because a block that is held cannot be evicted for the fresh ones.
        arrival.hits.iter().flatten().for_each(|&block| self.cache.share(block));

        let Self { config, cache, tables, transfers: ledger, .. } = self;
        let id = ledger.next_id();
        let mut transfers = Vec::with_capacity(arrival.need.fresh);
        // The block that each slot is read into; the transfer holds it.
        let mut taken: HashMap<SwapSlot, BlockId> = HashMap::with_capacity(arrival.need.fresh);
        let parts: Vec<_> = tails::parts_of(cache).collect();
        for (&member, hits) in group.iter().zip(arrival.hits) {
            let table = tables.get(member).expect("the group is held");
            let taker = Taker::new(member, table.root());
            let (num_found, mut blocks) = (hits.len(), hits);
            for &slot in &table.slots()[num_found..] {
                let block = *taken.entry(slot).or_insert_with(|| {
                    cache.hold_slot(slot);
                    let block = cache.fetch(slot, taker);
                    transfers.push(BlockSwap { part: BlockPart::whole(block), slot });
                    block
                });
                cache.hold(block);
                blocks.push(block);
            }
            for tokens in table.uncomputed().chunks(config.block_size) {
                blocks.push(cache.take_with(taker, tokens, None).0);
            }
            tables.begin_arriving(member, id, blocks, num_found);
            let table = tables.get_mut(member).expect("the group is held");
            let ahead: Vec<_> = tails::blocks_ahead(table, cache, config.block_size).collect();
            for (pool, (group, ahead)) in table.tails_mut().groups.iter_mut().zip(ahead).enumerate() {
                let mut blocks: Vec<_> = Vec::with_capacity(group.slots().len() + ahead);
                for slots in group.slots().chunks(parts[pool] as usize) {
                    let block = *taken.entry(slots[0]).or_insert_with(|| {
                        let block = cache.take_tail(pool, taker);
                        for (part, &slot) in (0..).zip(slots) {
                            // Each transfer holds its slot and its block.
                            cache.hold_slot(slot);
                            if part > 0 {
                                cache.hold_any(block);
                            }
                            transfers.push(BlockSwap { part: BlockPart { block, part }, slot });
                        }
                        block
                    });
                    cache.hold_any(block);
                    blocks.push(block);
                }
                blocks.extend((0..ahead).map(|_| cache.take_tail(pool, taker)));
                group.put_blocks(blocks);
            }
        }
        let num_spared = num_slots - transfers.len();
        self.counters.swap_spared_blocks += num_spared as u64;
        Ok(ledger.begin(group, Swap { id, direction: SwapDirection::In, transfers, num_spared, num_freed: 0 }))
    }

    /// Takes the caller's report of how a swap ended. The caller reports each swap once. Returns the sequences of the
    /// swap group that still waited for the swap, in the order of their ids. These sequences are now swapped out or
    /// resident. If the swap failed, they hold neither blocks nor slots, as if freed. An unknown swap changes nothing,
    /// and sequences that were freed meanwhile are unaffected.
    pub fn finish_swap(&mut self, id: SwapId, outcome: SwapOutcome) -> Vec<SequenceId> {
        let Some(Flight { direction, mut group, transfers }) = self.transfers.end(id) else { return Vec::new() };
        // The deepest block is released first, as when a sequence is freed, because the transfer may be the last
        // holder.
        for &BlockSwap { part, slot } in transfers.iter().rev() {
            self.cache.release_any(part.block);
            self.cache.release_slot(slot);
        }
        let waiting = match direction {
            SwapDirection::Out => SequenceState::Leaving(id),
            SwapDirection::In => SequenceState::Arriving(id),
        };
        group.retain(|&id| self.state(id) == Some(waiting));
        match (outcome, direction) {
            (SwapOutcome::Failed, _) => {
                self.counters.swaps_failed += 1;
                for &id in &group {
                    self.free(id);
                }
            }
            (SwapOutcome::Done, SwapDirection::Out) => {
                self.counters.swapped_out_blocks += transfers.len() as u64;
                for &id in &group {
                    let blocks = self.tables.finish_leaving(id);
                    blocks.into_iter().rev().for_each(|block| self.cache.release_any(block));
                }
            }
            (SwapOutcome::Done, SwapDirection::In) => {
                self.counters.swapped_in_blocks += transfers.len() as u64;
                group.iter().for_each(|&id| self.arrive(id));
            }
        }
        self.cache.settle();
        group
    }

    fn arrive(&mut self, id: SequenceId) {
        let slots = self.tables.finish_arriving(id);
        slots.into_iter().for_each(|slot| self.cache.release_slot(slot));
        // Publishes again the contents that were evicted meanwhile.
        self.commit(id, 0);
    }

    /// Returns the swap group in the order of ids without duplicates.
    ///
    /// # Errors
    /// Fails with [`BlockError::NotHeld`] or [`BlockError::WrongState`] unless all its sequences are in the `expected`
    /// state.
    fn group_in(&self, group: &[SequenceId], expected: SequenceState) -> Result<Vec<SequenceId>, BlockError> {
        for &id in group {
            match self.state(id) {
                None => return Err(BlockError::NotHeld(id)),
                Some(state) if state != expected => return Err(BlockError::WrongState { id, state }),
                Some(_) => {}
            }
        }
        let mut group = group.to_vec();
        group.sort_unstable();
        group.dedup();
        Ok(group)
    }

    /// Goes through the tables of the known sequences of `group`, each once.
    fn members(&self, group: &[SequenceId]) -> impl Iterator<Item = &Table> {
        let first = |&(index, id): &(usize, &SequenceId)| !group[..index].contains(id);
        group.iter().enumerate().filter(first).filter_map(|(_, &id)| self.tables.get(id))
    }

    /// Lists the trunk blocks with computed tokens of `group`, block by block: the table, the block's index in the
    /// table, and where the block's KV is. A shared block is listed once for each sequence.
    fn locations(&self, group: &[SequenceId]) -> impl Iterator<Item = (&Table, usize, Location)> {
        self.members(group).flat_map(|table| {
            let num_computed = table.num_computed_blocks(self.config.block_size);
            (0..num_computed).map(move |index| match table.slots().get(index) {
                Some(&slot) => (table, index, Location::Slot(slot)),
                None => (table, index, Location::Block(table.blocks()[index])),
            })
        })
    }

    /// Lists the tail blocks of `group` that hold what was computed, each with its pool; for swapped-out sequences, the
    /// slot of each block's first part. A shared block is listed once for each sequence.
    fn tail_locations(&self, group: &[SequenceId]) -> impl Iterator<Item = (&TailPool, Location)> {
        let pools = self.cache.tails().map_or(&[][..], |tails| &tails.pools);
        self.members(group).flat_map(move |table| {
            let num_blocks = blocks_for(table.num_computed(), self.config.block_size);
            table.tails().groups.iter().zip(pools).flat_map(move |(group, pool)| {
                let slots = group.slots().iter().step_by(pool.parts()).map(|&slot| Location::Slot(slot));
                let is_resident = group.slots().is_empty();
                let blocks = group.computed(num_blocks).filter(move |_| is_resident).map(Location::Block);
                slots.chain(blocks).map(move |place| (pool, place))
            })
        })
    }

    /// Returns the bytes of the tail blocks that a sequence holds for tokens that are not computed.
    fn bytes_ahead(&self, table: &Table) -> usize {
        let pools = self.cache.tails().map_or(&[][..], |tails| &tails.pools);
        let ahead = tails::blocks_ahead(table, &self.cache, self.config.block_size);
        ahead.zip(pools).map(|(blocks, pool)| blocks * pool.block_bytes()).sum()
    }

    /// Finds what `group` would share, and what it would take, if it came back now.
    fn arrival(&self, group: &[SequenceId]) -> Arrival {
        let (mut revived, mut copied): (HashSet<BlockId>, HashSet<SwapSlot>) = Default::default();
        let mut num_uncomputed = 0;
        let mut find = |table: &Table| {
            let mut hits = Vec::with_capacity(table.slots().len());
            if table.is_publishing() {
                // Only full blocks that the sequence has computed itself count, because it would write to blocks that
                // others have computed further.
                let computed = &table.slots()[..table.num_computed() / self.config.block_size];
                self.cache.walk_slots(computed, table.root(), |block, cached| {
                    hits.push(block);
                    if cached {
                        revived.insert(block);
                    }
                });
            }
            copied.extend(table.slots()[hits.len()..].iter().copied());
            num_uncomputed += table.uncomputed().len().div_ceil(self.config.block_size);
            hits
        };
        let hits = self.members(group).map(&mut find).collect();
        let tail_bytes = self.tail_bytes_required(group);
        Arrival { hits, need: Need { fresh: copied.len() + num_uncomputed, revived: revived.len(), tail_bytes } }
    }
}

/// Where the KV of one block is: in a block of memory, or in a slot one tier below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Location {
    Block(BlockId),
    Slot(SwapSlot),
}

/// The blocks that a swap group finds in memory when it comes back, and what it takes besides.
struct Arrival {
    /// Leading trunk blocks of each sequence that are findable, one list for each sequence.
    hits: Vec<Vec<BlockId>>,
    /// What must be taken. The revived blocks are those of `hits` that are cached now.
    need: Need,
}

//! Groups of sequences leave their blocks for the swap pool one tier down, and come back (K12).
//!
//! The destination is reserved before anything moves, so a swap cannot wait for another. Copies may take as long as they
//! like while other sequences compute: a swap under way holds its blocks and slots, whatever becomes of the sequences.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::{
    AllocError, AllocStatus, BlockId, BlockManager, SequenceId, SwapId, SwapSlot,
    sequence::{Sequence, SequenceState},
    swap_pool::SwapPool,
};

/// Which way KV goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapDirection {
    /// From blocks to slots.
    Out,
    /// From slots to blocks.
    In,
}

/// One block's worth of KV to be copied; the direction is the swap's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapCopy {
    /// The block of the KV pool.
    pub block: BlockId,
    /// The slot of the swap pool.
    pub slot: SwapSlot,
}

/// What the driver is to copy, in any order. When all is done, or something has failed and nothing is under way any
/// more, it reports so to [`BlockManager::finish_swap`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap {
    /// Names it in the report.
    pub id: SwapId,
    /// Which way.
    pub direction: SwapDirection,
    /// Each block and each slot once, however many sequences share it.
    pub copies: Vec<SwapCopy>,
    /// Blocks that need no copy in, since the prefix index still holds their content.
    pub num_spared: usize,
    /// Blocks that others can have when it ends, as far as can be told when it begins: those that nobody outside the
    /// group holds. None come free on the way in.
    pub num_freed: usize,
}

/// How a swap ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapOutcome {
    /// All copies are where they should be, verified.
    Done,
    /// Some are not. The group has lost its KV, for a tier that fails is a miss, never data.
    Failed,
}

/// A swap under way. It holds every block and slot of its copies.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) direction: SwapDirection,
    pub(crate) group: Vec<SequenceId>,
    pub(crate) copies: Vec<SwapCopy>,
}

/// Swap pool and swaps under way.
#[derive(Debug)]
pub(crate) struct Swaps {
    pub(crate) pool: SwapPool,
    pub(crate) flights: BTreeMap<SwapId, Flight>,
    started: u64,
}

impl Swaps {
    pub(crate) fn new(num_slots: usize, block_size: usize) -> Self {
        Self { pool: SwapPool::new(num_slots, block_size), flights: BTreeMap::new(), started: 0 }
    }

    /// Names the swap that is started next.
    fn next_id(&self) -> SwapId {
        SwapId(self.started)
    }

    fn start(&mut self, group: Vec<SequenceId>, swap: Swap) -> Swap {
        self.started += 1;
        self.flights.insert(swap.id, Flight { direction: swap.direction, group, copies: swap.copies.clone() });
        swap
    }
}

impl BlockManager {
    /// Where the KV of `id` is; none when it has none.
    pub fn state(&self, id: SequenceId) -> Option<SequenceState> {
        self.sequences.get(&id).map(|sequence| sequence.state)
    }

    /// Whether [`swap_out`](Self::swap_out) of `group` would find slots. `Never` too when one of them is not resident:
    /// waiting does not change that.
    pub fn can_swap_out(&self, group: &[SequenceId]) -> AllocStatus {
        let (need, limit) = (self.swap_cost(group), self.swaps.pool.len());
        let resident = group.iter().all(|&id| self.state(id) == Some(SequenceState::Resident));
        match need {
            _ if need > limit || !resident => AllocStatus::Never { need, limit },
            _ if need > self.swaps.pool.free.len() => AllocStatus::Later,
            _ => AllocStatus::Ok,
        }
    }

    /// Blocks that a swap of `group` would copy, whatever the prefix index may spare: those with computed tokens, shared
    /// ones once.
    pub fn swap_cost(&self, group: &[SequenceId]) -> usize {
        match group {
            // A table holds each block once.
            [_] => self.places(group).count(),
            _ => self.places(group).map(|(_, _, place)| place).collect::<HashSet<_>>().len(),
        }
    }

    /// Blocks that the tokens of `group` take, whether computed or not, and whatever the prefix index may spare; shared
    /// ones once. So many it has when it has come back.
    pub fn blocks_required(&self, group: &[SequenceId]) -> usize {
        // What is not computed is not shared.
        let uncomputed = |sequence: &Sequence| {
            let block_size = self.config.block_size;
            sequence.table.num_filled(block_size) - sequence.num_computed_blocks(block_size)
        };
        self.swap_cost(group) + self.members(group).map(uncomputed).sum::<usize>()
    }

    /// Blocks that nobody outside `group` holds, neither a sequence nor a swap under way: what would come free, or be
    /// cached, if it let go of all that it has. Those reserved ahead count.
    pub fn blocks_exclusive(&self, group: &[SequenceId]) -> usize {
        let blocks = self.members(group).flat_map(|sequence| sequence.table.blocks.iter().copied());
        let ref_count = |block: BlockId| self.pool.blocks[block.index()].ref_count;
        if let [_] = group {
            return blocks.filter(|&block| ref_count(block) == 1).count();
        }
        let mut holders: HashMap<BlockId, u32> = HashMap::new();
        blocks.for_each(|block| *holders.entry(block).or_default() += 1);
        holders.into_iter().filter(|&(block, holders)| ref_count(block) == holders).count()
    }

    /// Tokens that would have to be computed again if the resident `group` lost its blocks now and came back at once:
    /// those of the computed ones that the prefix index would not find. What several of them share is computed once.
    pub fn recompute_cost(&self, group: &[SequenceId]) -> usize {
        let block_size = self.config.block_size;
        let lost = self.places(group).filter(|(sequence, index, _)| *index >= sequence.num_published);
        let tokens = lost.map(|(s, index, place)| (place, block_size.min(s.num_computed - index * block_size)));
        match group {
            [_] => tokens.map(|(_, tokens)| tokens).sum(),
            // All that share a block have as many tokens in it.
            _ => tokens.collect::<HashMap<_, _>>().values().sum(),
        }
    }

    /// Begins to move `group` to the swap pool: all at once, for sequences that share blocks are of no use to each other
    /// in two places. Only blocks with computed tokens are copied, as far as those were committed. The sequences are
    /// `Leaving` until [`finish_swap`](Self::finish_swap), and their blocks come free then.
    ///
    /// # Errors
    /// When slots are short, or one of the group is not resident. Nothing has changed then.
    pub fn swap_out(&mut self, group: &[SequenceId]) -> Result<Swap, AllocError> {
        let group = self.group_in(group, SequenceState::Resident)?;
        let (need, available, limit) = (self.swap_cost(&group), self.swaps.pool.free.len(), self.swaps.pool.len());
        if need > available {
            return Err(AllocError::OutOfSwap { need, available, limit });
        }
        // Before the swap holds them too.
        let num_freed = self.blocks_exclusive(&group);
        let Self { pool, sequences, swaps, .. } = self;
        let id = swaps.next_id();
        let mut copies = Vec::with_capacity(need);
        let mut taken: HashMap<BlockId, SwapSlot> = HashMap::with_capacity(need);
        for member in &group {
            let sequence = sequences.get_mut(member).expect("the group is held");
            let (num_computed, num_filled) =
                (sequence.num_computed_blocks(pool.block_size), sequence.table.num_filled(pool.block_size));
            let (computed, uncomputed) = sequence.table.blocks[..num_filled].split_at(num_computed);
            for &block in computed {
                let slot = *taken.entry(block).or_insert_with(|| {
                    pool.hold(block);
                    let slot = swaps.pool.take(pool.tokens(block));
                    copies.push(SwapCopy { block, slot });
                    slot
                });
                swaps.pool.hold(slot);
                sequence.slots.push(slot);
            }
            for &block in uncomputed {
                let filled = usize::from(pool.blocks[block.index()].filled);
                sequence.uncomputed.extend(&pool.tokens(block)[..filled]);
            }
            sequence.state = SequenceState::Leaving(id);
        }
        let swap = Swap { id, direction: SwapDirection::Out, copies, num_spared: 0, num_freed };
        Ok(self.swaps.start(group, swap))
    }

    /// Whether [`swap_in`](Self::swap_in) of `group` would find blocks and leave
    /// [`KvConfig::watermark`](crate::KvConfig::watermark) of them available, as admission does. `Never` too when one of
    /// them is not swapped out.
    pub fn can_swap_in(&self, group: &[SequenceId]) -> AllocStatus {
        let (need, limit) = (self.blocks_required(group), self.config.num_blocks);
        let swapped = group.iter().all(|&id| self.state(id) == Some(SequenceState::Swapped));
        if need > limit || !swapped {
            return AllocStatus::Never { need, limit };
        }
        let arrival = self.arrival(group);
        match arrival.num_fresh + self.reserve() <= self.pool.available() - arrival.num_revived {
            true => AllocStatus::Ok,
            false => AllocStatus::Later,
        }
    }

    /// Begins to bring `group` back: blocks that the prefix index still holds are shared, the others copied from their
    /// slots; blocks of which nothing was computed are fresh ones. The sequences are `Arriving` until [`finish_swap`](Self::finish_swap). The watermark does not apply here.
    ///
    /// # Errors
    /// When blocks are short, or one of the group is not swapped out. Nothing has changed then.
    pub fn swap_in(&mut self, group: &[SequenceId]) -> Result<Swap, AllocError> {
        let group = self.group_in(group, SequenceState::Swapped)?;
        let num_slots = self.swap_cost(&group);
        let arrival = self.arrival(&group);
        self.expect_available(arrival.num_fresh, self.pool.available() - arrival.num_revived)?;
        // Hits first: what is held cannot be evicted for the fresh ones.
        arrival.hits.iter().flatten().for_each(|&block| self.pool.share(block));

        let Self { pool, sequences, swaps, num_swapped, .. } = self;
        let id = swaps.next_id();
        let mut copies = Vec::with_capacity(arrival.num_fresh);
        let mut taken: HashMap<SwapSlot, BlockId> = HashMap::with_capacity(arrival.num_fresh);
        for (&member, hits) in group.iter().zip(arrival.hits) {
            let sequence = sequences.get_mut(&member).expect("the group is held");
            (sequence.num_published, sequence.num_hashed) = (hits.len(), hits.len());
            sequence.table.blocks = hits;
            for (index, &slot) in sequence.slots.iter().enumerate().skip(sequence.num_published) {
                let block = *taken.entry(slot).or_insert_with(|| {
                    let block = pool.take(member);
                    let filled = pool.block_size.min(sequence.table.num_tokens - index * pool.block_size);
                    pool.write(block, 0, &swaps.pool.tokens(slot)[..filled]);
                    swaps.pool.hold(slot);
                    copies.push(SwapCopy { block, slot });
                    block
                });
                pool.hold(block);
                sequence.table.blocks.push(block);
            }
            for tokens in std::mem::take(&mut sequence.uncomputed).chunks(pool.block_size) {
                let block = pool.take(member);
                pool.write(block, 0, tokens);
                sequence.table.blocks.push(block);
            }
            sequence.state = SequenceState::Arriving(id);
            *num_swapped -= 1;
        }
        let num_spared = num_slots - copies.len();
        self.counters.swap_spared_blocks += num_spared as u64;
        Ok(self.swaps.start(group, Swap { id, direction: SwapDirection::In, copies, num_spared, num_freed: 0 }))
    }

    /// The driver reports how a swap ended, once for each. Returns those of its group that still wait for it, in the
    /// order of their ids: swapped out or resident now, or, when it failed, without blocks and slots, as if freed.
    /// An unknown swap changes nothing, and sequences that were freed meanwhile are not concerned.
    pub fn finish_swap(&mut self, id: SwapId, outcome: SwapOutcome) -> Vec<SequenceId> {
        let Some(Flight { direction, mut group, copies }) = self.swaps.flights.remove(&id) else { return Vec::new() };
        // The deepest first, as when a sequence is freed: this may be the last hold.
        for &SwapCopy { block, slot } in copies.iter().rev() {
            self.pool.release(block);
            self.swaps.pool.release(slot);
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
                self.counters.swapped_out_blocks += copies.len() as u64;
                group.iter().for_each(|&id| self.leave(id));
            }
            (SwapOutcome::Done, SwapDirection::In) => {
                self.counters.swapped_in_blocks += copies.len() as u64;
                group.iter().for_each(|&id| self.arrive(id));
            }
        }
        group
    }

    fn leave(&mut self, id: SequenceId) {
        let sequence = self.sequences.get_mut(&id).expect("it waits for its swap");
        sequence.state = SequenceState::Swapped;
        (sequence.num_published, sequence.num_hashed) = (0, 0);
        self.num_swapped += 1;
        sequence.table.blocks.drain(..).rev().for_each(|block| self.pool.release(block));
    }

    fn arrive(&mut self, id: SequenceId) {
        let sequence = self.sequences.get_mut(&id).expect("it waits for its swap");
        sequence.state = SequenceState::Resident;
        sequence.slots.drain(..).for_each(|slot| self.swaps.pool.release(slot));
        // What was evicted meanwhile can be found again.
        let num_computed = sequence.num_computed;
        self.commit(id, num_computed);
    }

    /// The group in the order of ids, each once, if all are in this state.
    fn group_in(&self, group: &[SequenceId], expected: SequenceState) -> Result<Vec<SequenceId>, AllocError> {
        for &id in group {
            match self.state(id) {
                None => return Err(AllocError::NotHeld(id)),
                Some(state) if state != expected => return Err(AllocError::WrongState { id, state }),
                Some(_) => {}
            }
        }
        let mut group = group.to_vec();
        group.sort_unstable();
        group.dedup();
        Ok(group)
    }

    /// Those of `group` that are known, each once.
    fn members(&self, group: &[SequenceId]) -> impl Iterator<Item = &Sequence> {
        let first = |&(index, id): &(usize, &SequenceId)| !group[..index].contains(id);
        group.iter().enumerate().filter(first).filter_map(|(_, id)| self.sequences.get(id))
    }

    /// Where the computed tokens of the group are: sequence, logical block, place.
    fn places(&self, group: &[SequenceId]) -> impl Iterator<Item = (&Sequence, usize, Place)> {
        self.members(group).flat_map(|sequence| {
            let num_computed = sequence.num_computed_blocks(self.config.block_size);
            (0..num_computed).map(move |index| match sequence.slots.get(index) {
                Some(&slot) => (sequence, index, Place::Slot(slot)),
                None => (sequence, index, Place::Block(sequence.table.blocks[index])),
            })
        })
    }

    fn arrival(&self, group: &[SequenceId]) -> Arrival {
        let (mut revived, mut copied): (HashSet<BlockId>, HashSet<SwapSlot>) = Default::default();
        let mut num_uncomputed = 0;
        let mut find = |sequence: &Sequence| {
            let mut hits = Vec::with_capacity(sequence.slots.len());
            if sequence.publishing {
                // Only what it has computed itself: it would write to what others have computed beyond.
                let computed = &sequence.slots[..sequence.num_computed / self.config.block_size];
                let blocks = computed.iter().map(|&slot| self.swaps.pool.tokens(slot));
                self.pool.walk(blocks, &self.hash_prefix(&sequence.root, &[]), |block| hits.push(block));
            }
            revived.extend(hits.iter().copied().filter(|&block| self.pool.is_cached(block)));
            copied.extend(sequence.slots[hits.len()..].iter().copied());
            num_uncomputed += sequence.uncomputed.len().div_ceil(self.config.block_size);
            hits
        };
        let hits = self.members(group).map(&mut find).collect();
        Arrival { hits, num_fresh: copied.len() + num_uncomputed, num_revived: revived.len() }
    }
}

/// What a group that comes back finds, and what it needs besides.
struct Arrival {
    /// For each sequence, leading blocks that are findable.
    hits: Vec<Vec<BlockId>>,
    num_fresh: usize,
    /// Hits that nobody holds yet.
    num_revived: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Block(BlockId),
    Slot(SwapSlot),
}

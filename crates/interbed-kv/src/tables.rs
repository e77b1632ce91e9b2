//! Keeps block tables: which trunk blocks, slots and tail blocks hold the tokens of each sequence.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasherDefault, Hasher},
};

use crate::{
    error::BlockError,
    hash::ChainRoot,
    ids::{BlockId, FetchId, SequenceId, SwapId, SwapSlot, TokenId},
    sequence_state::SequenceState,
    tail_table::TailTables,
};

/// The table of one sequence, which also says how much of the sequence others can find.
///
/// The trunk blocks are in the order of the tokens. Blocks up to the last token are full, except that the block of the
/// last token may be partial; later blocks were reserved ahead and are empty.
#[derive(Debug)]
pub(crate) struct Table {
    state: SequenceState,
    /// The number of leading blocks whose KV is in a tier below memory.
    below: usize,
    /// The trunk blocks in memory, which follow the leading `below` blocks of the sequence. Block number `below` of the
    /// sequence has index 0.
    blocks: Vec<BlockId>,
    /// Slots of the blocks with computed tokens; empty while resident. [logical block]
    slots: Vec<SwapSlot>,
    /// Tokens after the tokens in `slots`, none of them computed; empty unless leaving or swapped.
    uncomputed: Vec<TokenId>,
    /// Number of tokens that have a place, whether computed or not.
    num_tokens: usize,
    /// Number of leading tokens whose KV was reported as computed.
    num_computed: usize,
    /// The number of leading blocks of this table whose contents were found published, or that this sequence has
    /// published.
    num_published: usize,
    /// Whether the sequence may publish its blocks. False without prefix caching, if the root is not shared, for a
    /// sequence that was begun below memory, and after a reset of the cache.
    publishing: bool,
    /// Whether the sequence is longer than memory, so that its blocks may move to a tier below.
    long: bool,
    /// The root of the sequence's chain.
    root: ChainRoot,
    /// What the sequence holds of the tail groups.
    tails: TailTables,
}

impl Table {
    /// Makes the table of a sequence that holds `blocks` for its tokens. The first `num_found` blocks were found in the
    /// cache.
    pub(crate) fn new(
        root: ChainRoot,
        publishing: bool,
        blocks: Vec<BlockId>,
        num_tokens: usize,
        num_found: usize,
        block_size: usize,
    ) -> Self {
        Self {
            state: SequenceState::Resident,
            below: 0,
            blocks,
            slots: Vec::new(),
            uncomputed: Vec::new(),
            num_tokens,
            num_computed: num_found * block_size,
            num_published: num_found,
            publishing,
            long: false,
            root,
            tails: TailTables::default(),
        }
    }

    /// Adds what the sequence holds of the tail groups.
    pub(crate) fn with_tails(self, tails: TailTables) -> Self {
        Self { tails, ..self }
    }

    /// Makes the table of a sequence whose first `below` blocks are in a tier below memory, and that has no other
    /// tokens yet. The sequence publishes none of its blocks.
    pub(crate) fn of_below(root: ChainRoot, below: usize, block_size: usize) -> Self {
        let table = Self::new(root, false, Vec::new(), below * block_size, 0, block_size);
        Self { below, num_computed: table.num_tokens, long: true, ..table }
    }

    /// Makes a copy for another sequence, which begins with all tokens of this one. Blocks that this sequence reserved
    /// ahead are not shared.
    pub(crate) fn fork(&self, block_size: usize) -> Self {
        Self {
            blocks: self.blocks[..self.num_filled(block_size)].to_vec(),
            slots: Vec::new(),
            uncomputed: Vec::new(),
            root: self.root.clone(),
            tails: self.tails.fork(self.below + self.num_filled(block_size)),
            ..*self
        }
    }

    pub(crate) fn state(&self) -> SequenceState {
        self.state
    }

    pub(crate) fn expect_resident(&self, id: SequenceId) -> Result<(), BlockError> {
        match self.state {
            SequenceState::Resident => Ok(()),
            state => Err(BlockError::WrongState { id, state }),
        }
    }

    /// Returns the trunk blocks in memory, which begin with block number [`below`](Self::below) of the sequence.
    pub(crate) fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Returns how many leading blocks have their KV in a tier below memory.
    pub(crate) fn below(&self) -> usize {
        self.below
    }

    /// Notes that the first `count` blocks in memory are now in a tier below memory, takes them out of the table, and
    /// returns them.
    pub(crate) fn move_below(&mut self, count: usize) -> Vec<BlockId> {
        self.below += count;
        self.blocks.drain(..count).collect()
    }

    pub(crate) fn slots(&self) -> &[SwapSlot] {
        &self.slots
    }

    pub(crate) fn uncomputed(&self) -> &[TokenId] {
        &self.uncomputed
    }

    pub(crate) fn num_tokens(&self) -> usize {
        self.num_tokens
    }

    pub(crate) fn num_computed(&self) -> usize {
        self.num_computed
    }

    pub(crate) fn num_published(&self) -> usize {
        self.num_published
    }

    pub(crate) fn is_publishing(&self) -> bool {
        self.publishing
    }

    /// Returns whether the sequence was begun as one that is longer than memory.
    pub(crate) fn is_long(&self) -> bool {
        self.long
    }

    /// Returns the number of leading tokens behind which the sequence may have to go on: its computed tokens, or those
    /// that fill blocks if it is longer than memory, because tiers below memory keep tails behind whole blocks alone.
    pub(crate) fn goes_on_at(&self, block_size: usize) -> usize {
        if self.long { self.num_computed / block_size * block_size } else { self.num_computed }
    }

    pub(crate) fn root(&self) -> &ChainRoot {
        &self.root
    }

    /// Returns how many blocks behind the first [`below`](Self::below) ones hold tokens or, while the sequence is
    /// swapped out, would hold tokens.
    pub(crate) fn num_filled(&self, block_size: usize) -> usize {
        blocks_for(self.num_tokens, block_size) - self.below
    }

    /// Returns how many blocks behind the first [`below`](Self::below) ones have computed tokens, in memory or in
    /// slots. The last of them may be computed only in part.
    pub(crate) fn num_computed_blocks(&self, block_size: usize) -> usize {
        blocks_for(self.num_computed, block_size) - self.below
    }

    /// Returns the partial block, to which the next token will be written, if there is one.
    pub(crate) fn partial(&self, block_size: usize) -> Option<BlockId> {
        let (block, slot) = position(self.num_tokens, block_size);
        (slot > 0).then(|| self.block(block))
    }

    /// Returns block number `index` of the sequence, which must be in memory.
    pub(crate) fn block(&self, index: usize) -> BlockId {
        self.blocks[index - self.below]
    }

    /// Replaces block number `index` of the sequence, which must be in memory.
    pub(crate) fn replace(&mut self, index: usize, block: BlockId) {
        self.blocks[index - self.below] = block;
    }

    /// Adds a block after all others.
    pub(crate) fn push(&mut self, block: BlockId) {
        self.blocks.push(block);
    }

    /// Adds `count` tokens.
    pub(crate) fn add_tokens(&mut self, count: usize) {
        self.num_tokens += count;
    }

    /// Notes that the first `num_computed` tokens have been computed. A number above that of the table's tokens counts
    /// as that number, and one below what was noted before changes nothing.
    pub(crate) fn computed(&mut self, num_computed: usize) {
        self.num_computed = self.num_computed.max(num_computed.min(self.num_tokens));
    }

    /// Notes that one more block is published.
    pub(crate) fn published(&mut self) {
        self.num_published += 1;
    }

    /// Makes the table's blocks count as unpublished, and keeps the sequence from publishing any.
    pub(crate) fn stop_publishing(&mut self) {
        (self.num_published, self.publishing) = (0, false);
    }

    /// Changes the state from resident to leaving. `slots` are those of the blocks with computed tokens, and
    /// `uncomputed` are the tokens behind these blocks.
    pub(crate) fn begin_leaving(&mut self, swap: SwapId, slots: Vec<SwapSlot>, uncomputed: Vec<TokenId>) {
        (self.state, self.slots, self.uncomputed) = (SequenceState::Leaving(swap), slots, uncomputed);
    }

    /// Changes the state from resident to fetching.
    pub(crate) fn begin_fetching(&mut self, fetch: FetchId) {
        self.state = SequenceState::Fetching(fetch);
    }

    /// Changes the state from fetching to resident.
    pub(crate) fn finish_fetching(&mut self) {
        self.state = SequenceState::Resident;
    }

    /// Returns what the sequence holds of the tail groups.
    pub(crate) fn tails(&self) -> &TailTables {
        &self.tails
    }

    pub(crate) fn tails_mut(&mut self) -> &mut TailTables {
        &mut self.tails
    }

    /// Ends the table, and returns the trunk blocks, the slots and the tail tables that it held.
    pub(crate) fn into_places(self) -> (Vec<BlockId>, Vec<SwapSlot>, TailTables) {
        (self.blocks, self.slots, self.tails)
    }
}

/// Holds the tables of all sequences.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// The tables by sequence. Every step looks up every table, hence the simple hash; nothing depends on the map's
    /// order.
    tables: HashMap<SequenceId, Table, BuildHasherDefault<IdHasher>>,
    /// Number of tables that are [`SequenceState::Swapped`].
    num_swapped: usize,
}

impl Tables {
    pub(crate) fn len(&self) -> usize {
        self.tables.len()
    }

    pub(crate) fn num_swapped(&self) -> usize {
        self.num_swapped
    }

    pub(crate) fn get(&self, id: SequenceId) -> Option<&Table> {
        self.tables.get(&id)
    }

    /// Returns the table of `id`, which must be resident.
    ///
    /// # Errors
    /// Fails with [`BlockError::NotHeld`] if `id` has no table, and with [`BlockError::WrongState`] if it is not
    /// resident.
    pub(crate) fn resident(&mut self, id: SequenceId) -> Result<&mut Table, BlockError> {
        let table = self.tables.get_mut(&id).ok_or(BlockError::NotHeld(id))?;
        table.expect_resident(id)?;
        Ok(table)
    }

    pub(crate) fn get_mut(&mut self, id: SequenceId) -> Option<&mut Table> {
        self.tables.get_mut(&id)
    }

    /// Goes through all tables, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SequenceId, &Table)> {
        self.tables.iter().map(|(&id, table)| (id, table))
    }

    /// Goes through all tables, in no order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Table> {
        self.tables.values_mut()
    }

    /// Adds the table of `id`.
    ///
    /// # Panics
    /// Panics if `id` has one already.
    pub(crate) fn insert(&mut self, id: SequenceId, table: Table) {
        let Entry::Vacant(vacant) = self.tables.entry(id) else { panic!("{id} has a table already") };
        vacant.insert(table);
    }

    /// Removes the table of `id`, if the sequence has one; the caller must release the table's places.
    pub(crate) fn remove(&mut self, id: SequenceId) -> Option<Table> {
        let table = self.tables.remove(&id)?;
        self.num_swapped -= usize::from(table.state == SequenceState::Swapped);
        Some(table)
    }

    /// Changes the state of `id` from leaving to swapped, and returns the trunk blocks and tail blocks that the
    /// sequence no longer holds.
    pub(crate) fn finish_leaving(&mut self, id: SequenceId) -> Vec<BlockId> {
        let table = self.tables.get_mut(&id).expect("it waits for its swap");
        (table.state, table.num_published) = (SequenceState::Swapped, 0);
        self.num_swapped += 1;
        let tails = table.tails.groups.iter_mut().flat_map(|group| group.take_blocks());
        std::mem::take(&mut table.blocks).into_iter().chain(tails).collect()
    }

    /// Changes the state of `id` from swapped to arriving in the trunk blocks `blocks`. The first `num_found` blocks
    /// were found in the cache.
    pub(crate) fn begin_arriving(&mut self, id: SequenceId, swap: SwapId, blocks: Vec<BlockId>, num_found: usize) {
        let table = self.tables.get_mut(&id).expect("the group is held");
        (table.state, table.blocks, table.num_published) = (SequenceState::Arriving(swap), blocks, num_found);
        table.uncomputed = Vec::new();
        self.num_swapped -= 1;
    }

    /// Changes the state of `id` from arriving to resident, and returns the slots that the sequence no longer holds.
    pub(crate) fn finish_arriving(&mut self, id: SequenceId) -> Vec<SwapSlot> {
        let table = self.tables.get_mut(&id).expect("it waits for its swap");
        table.state = SequenceState::Resident;
        let tails = table.tails.groups.iter_mut().flat_map(|group| group.set_slots(Vec::new()));
        std::mem::take(&mut table.slots).into_iter().chain(tails).collect()
    }

    /// Replaces each source of `moves`, which must be in descending order, by its destination in all tables.
    pub(crate) fn rename(&mut self, moves: &[(BlockId, BlockId)]) {
        // Most blocks have lower ids than the last source.
        let Some(&(lowest, _)) = moves.last() else { return };
        let renamed: HashMap<_, _> = moves.iter().copied().collect();
        let blocks = self.tables.values_mut().flat_map(|table| {
            let tails = table.tails.groups.iter_mut().flat_map(|group| group.blocks_mut());
            table.blocks.iter_mut().chain(tails)
        });
        for block in blocks.filter(|block| **block >= lowest) {
            *block = renamed.get(block).copied().unwrap_or(*block);
        }
    }
}

/// Returns the number of the block that token number `position` lies in, and the token's place in that block. Block
/// sizes are powers of two, so this needs no division. In a step with many short appends, divisions would cost as much
/// as everything else.
pub(crate) fn position(position: usize, block_size: usize) -> (usize, usize) {
    (position >> block_size.trailing_zeros(), position & (block_size - 1))
}

/// Returns how many blocks `num_tokens` tokens take. The last block may be partial.
pub(crate) fn blocks_for(num_tokens: usize, block_size: usize) -> usize {
    let (full, slots) = position(num_tokens, block_size);
    full + usize::from(slots > 0)
}

/// A hasher for ids that the engine counts up by itself, such as [`SequenceId`], so that the hash need not resist keys
/// that somebody chose.
#[derive(Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u64(&mut self, number: u64) {
        // The map takes the place from the lowest bits and a tag from the highest, so both must depend on the whole
        // number.
        let product = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

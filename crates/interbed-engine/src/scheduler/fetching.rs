//! Schedules sequences whose prefix is fetched from a tier below memory, and collects blocks to be stored there.

use interbed_kv::{BlockId, BlockKey, BlockLabel, Fetch, FetchId, KeyChain, MissingKeys, SequenceId, TokenId};

use super::{Scheduler, StepPlan};
use crate::sequence::{Ahead, Role, Sequence, SequenceStatus};

/// The blocks that were computed since they were last taken.
#[derive(Debug, Default)]
pub(super) struct Computed {
    /// The blocks that may be stored below memory now.
    fresh: Vec<BlockId>,
    /// The blocks that are not to be stored now.
    unstored: Vec<BlockId>,
    /// Whether blocks of generated tokens are to be stored as well.
    stores_generated: bool,
}

impl Computed {
    /// Adds `blocks`, which are to be stored now if `is_wanted` or if all blocks are.
    pub(super) fn add(&mut self, blocks: impl IntoIterator<Item = BlockId>, is_wanted: bool) {
        let list = if is_wanted || self.stores_generated { &mut self.fresh } else { &mut self.unstored };
        list.extend(blocks);
    }
}

impl Scheduler {
    /// Gives contents names, under which a tier below memory keeps them. From now on the scheduler collects computed
    /// blocks of prompts for that tier, and blocks of generated tokens as well if `stores_generated`. Blocks that are
    /// in memory already are collected too.
    pub(crate) fn name_contents(&mut self, chain: KeyChain, stores_generated: bool) {
        self.blocks.name_contents(chain);
        self.computed.fresh.extend(self.blocks.take_published());
        self.computed.stores_generated = stores_generated;
    }

    /// Returns the keys of the blocks of `id`, which was just admitted, that memory does not have. Returns none for
    /// beams of a search, since they make room and come back together.
    pub(crate) fn missing_keys(&self, id: SequenceId) -> MissingKeys {
        let sequence = &self.sequences[&id];
        match sequence.role {
            Role::Answer => self.blocks.missing_keys(id, sequence.tokens()),
            Role::Beam { .. } | Role::Trunk { .. } => MissingKeys::default(),
        }
    }

    /// Returns the seconds in which the tokens of `blocks` blocks would be computed; `None` if none were computed so
    /// far.
    pub(crate) fn recompute_seconds(&self, blocks: usize) -> Option<f64> {
        self.planner.prefill_seconds(blocks * self.blocks.block_size())
    }

    /// Returns the seconds in which one block of a long prompt would be computed; `None` if none were computed so far.
    pub(crate) fn bulk_seconds(&self) -> Option<f64> {
        self.planner.bulk_seconds(self.blocks.block_size())
    }

    /// Takes `id`, which was just admitted, out of the pass, and begins to fetch its next `count` blocks.
    pub(crate) fn begin_fetch(&mut self, id: SequenceId, count: usize, plan: &mut StepPlan) -> Option<Fetch> {
        let fetch = self.blocks.begin_fetch(id, count).ok()?;
        self.await_fetch(id, plan);
        Some(fetch)
    }

    /// Takes `id`, for which a fetch has begun, out of the pass.
    pub(super) fn await_fetch(&mut self, id: SequenceId, plan: &mut StepPlan) {
        plan.take_entry(id);
        self.move_to(id, SequenceStatus::Fetching);
        self.flights.fetches += 1;
    }

    /// Has `id`, which was just admitted, compute its blocks up to block number `first` only. Begins to fetch the
    /// `count` blocks from there on, which come while the sequence computes.
    pub(crate) fn begin_fetch_ahead(
        &mut self,
        id: SequenceId,
        first: usize,
        count: usize,
        plan: &mut StepPlan,
    ) -> Option<Fetch> {
        let fetch = self.blocks.begin_fetch_ahead(id, first, count).ok()?;
        let first = first * self.blocks.block_size();
        self.get_mut(id)?.status = SequenceStatus::Running(Some(Ahead { fetch: fetch.id, first, came: None }));
        plan.take_entry(id);
        self.plan_entry(id, plan);
        self.flights.fetches += 1;
        Some(fetch)
    }

    /// Ends a fetch that was begun by [`begin_fetch_ahead`](Self::begin_fetch_ahead) and whose first `filled` blocks
    /// hold what they should. Returns the sequence, if it still waits for the fetch.
    pub(crate) fn finish_fetch_ahead(&mut self, id: FetchId, filled: usize) -> Option<SequenceId> {
        self.flights.fetches -= 1;
        self.blocks.finish_fetch_ahead(id);
        let (of, ahead) = self.sequences.values_mut().find_map(|sequence| match &mut sequence.status {
            SequenceStatus::Running(Some(ahead)) if ahead.fetch == id => Some((sequence.id, ahead)),
            _ => None,
        })?;
        ahead.came = Some(filled * self.blocks.block_size());
        self.take_what_came(of);
        Some(of)
    }

    /// Has `id` go on behind its fetched blocks, if it has computed all blocks in front of them and the fetch has
    /// ended.
    pub(super) fn take_what_came(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let SequenceStatus::Running(Some(Ahead { first, came: Some(came), .. })) = sequence.status else { return };
        if sequence.computed < first {
            return;
        }
        sequence.status = SequenceStatus::Running(None);
        sequence.computed += came;
        self.blocks.commit(id, sequence.computed);
        // The fetched blocks are below memory already, so they need not be stored.
        self.blocks.take_published();
        self.reconsider();
    }

    /// Ends a fetch whose first `filled` blocks hold what they should. Returns its sequence, if that still waits for
    /// the fetch, and how many tokens of the sequence need not be computed.
    pub(crate) fn finish_fetch(&mut self, id: FetchId, filled: usize) -> Option<(SequenceId, usize)> {
        self.flights.fetches -= 1;
        let finished = self.blocks.finish_fetch(id, filled);
        // The fetched blocks are below memory already, so they need not be stored.
        self.blocks.take_published();
        self.reconsider();
        let (id, computed) = finished?;
        let sequence = self.sequences.get_mut(&id)?;
        sequence.computed = computed;
        self.move_to(id, SequenceStatus::Running(None));
        Some((id, computed))
    }

    /// Adds `id`, whose fetch has ended, to the pass after all, as far as there is room.
    pub(crate) fn rejoin(&self, id: SequenceId, plan: &mut StepPlan) {
        let is_running = self.sequences.get(&id).is_some_and(Sequence::is_running);
        if is_running && plan.budget > 0 && plan.entries.iter().all(|entry| entry.id != id) {
            self.plan_entry(id, plan);
        }
    }

    /// Returns the number of fetches in flight.
    pub(crate) fn num_fetches(&self) -> usize {
        self.flights.fetches
    }

    /// Returns the tokens of block number `index` of `id`.
    pub(crate) fn block_tokens(&self, id: SequenceId, index: usize) -> &[TokenId] {
        let size = self.blocks.block_size();
        &self.sequences[&id].tokens()[index * size..][..size]
    }

    /// Takes the blocks that were computed since the last call, with their keys: first those that may be stored below
    /// memory now, then those that are not to be stored now. Some of the blocks may have left memory meanwhile.
    pub(crate) fn take_computed(&mut self) -> [Vec<(BlockId, BlockKey)>; 2] {
        let Self { computed: Computed { fresh, unstored, .. }, blocks, .. } = self;
        let named = |block| Some((block, blocks.key(block)?));
        [fresh, unstored].map(|blocks| blocks.drain(..).filter_map(named).collect())
    }

    /// Returns the label of `block`, if the block still holds what `key` names.
    pub(crate) fn label(&self, block: BlockId, key: BlockKey) -> Option<BlockLabel> {
        self.blocks.label(block).filter(|label| label.key == key)
    }
}

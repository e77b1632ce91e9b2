//! Schedules sequences whose prefix is fetched from a tier below memory, and collects blocks to be stored there.

use interbed_kv::{BlockId, BlockKey, BlockLabel, Evicted, Fetch, FetchId, KeyChain, SequenceId, TokenId};

use super::{Scheduler, StepPlan};
use crate::sequence::{Ahead, SequenceStatus};

impl Scheduler {
    /// Gives contents names, under which a tier below memory keeps them. From now on the scheduler collects computed
    /// blocks of prompts for that tier, and blocks of generated tokens as well if `stores_generated`. Blocks that are
    /// in memory already are collected too.
    pub(crate) fn name_contents(&mut self, chain: KeyChain, stores_generated: bool) {
        self.blocks.name_contents(chain);
        self.fresh.extend(self.blocks.take_published());
        self.stores_generated = stores_generated;
    }

    /// Returns the keys of the blocks of `id`, which was just admitted, that memory does not have. Returns none for
    /// beams of a search, since they make room and come back together.
    pub(crate) fn missing_keys(&self, id: SequenceId) -> Vec<BlockKey> {
        let sequence = &self.sequences[&id];
        match sequence.lockstep {
            true => Vec::new(),
            false => self.blocks.missing_keys(id, sequence.tokens()),
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
        plan.take_entry(id);
        self.move_to(id, SequenceStatus::Fetching);
        self.num_fetches += 1;
        Some(fetch)
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
        self.get_mut(id)?.ahead = Some(Ahead { fetch: fetch.id, first, came: None });
        plan.take_entry(id);
        self.plan_entry(id, plan);
        self.num_fetches += 1;
        Some(fetch)
    }

    /// Ends a fetch that was begun by [`begin_fetch_ahead`](Self::begin_fetch_ahead) and whose first `filled` blocks
    /// hold what they should. Returns the sequence, if it still waits for the fetch.
    pub(crate) fn finish_fetch_ahead(&mut self, id: FetchId, filled: usize) -> Option<SequenceId> {
        self.num_fetches -= 1;
        self.blocks.finish_fetch_ahead(id);
        let mut all = self.sequences.values_mut();
        let sequence = all.find(|sequence| sequence.ahead.is_some_and(|ahead| ahead.fetch == id))?;
        let tokens = filled * self.blocks.block_size();
        sequence.ahead.iter_mut().for_each(|ahead| ahead.came = Some(tokens));
        let id = sequence.id;
        self.take_what_came(id);
        Some(id)
    }

    /// Has `id` go on behind its fetched blocks, if it has computed all blocks in front of them and the fetch has
    /// ended.
    pub(super) fn take_what_came(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let Some(Ahead { first, came: Some(came), .. }) = sequence.ahead else { return };
        if sequence.computed < first {
            return;
        }
        sequence.ahead = None;
        sequence.computed += came;
        self.blocks.commit(id, sequence.computed);
        // The fetched blocks are below memory already, so they need not be stored.
        self.blocks.take_published();
        self.reconsider();
    }

    /// Ends a fetch whose first `filled` blocks hold what they should. Returns its sequence, if that still waits for
    /// the fetch, and how many tokens of the sequence need not be computed.
    pub(crate) fn finish_fetch(&mut self, id: FetchId, filled: usize) -> Option<(SequenceId, usize)> {
        self.num_fetches -= 1;
        let finished = self.blocks.finish_fetch(id, filled);
        // The fetched blocks are below memory already, so they need not be stored.
        self.blocks.take_published();
        self.reconsider();
        let (id, computed) = finished?;
        let sequence = self.sequences.get_mut(&id)?;
        sequence.computed = computed;
        self.move_to(id, SequenceStatus::Running);
        Some((id, computed))
    }

    /// Adds `id`, whose fetch has ended, to the pass after all, as far as there is room.
    pub(crate) fn rejoin(&self, id: SequenceId, plan: &mut StepPlan) {
        let is_running = self.sequences.get(&id).is_some_and(|sequence| sequence.status == SequenceStatus::Running);
        if is_running && plan.budget > 0 && plan.entries.iter().all(|entry| entry.id != id) {
            self.plan_entry(id, plan);
        }
    }

    /// Returns the number of fetches in flight.
    pub(crate) fn num_fetches(&self) -> usize {
        self.num_fetches
    }

    /// Returns the tokens of block number `index` of `id`.
    pub(crate) fn block_tokens(&self, id: SequenceId, index: usize) -> &[TokenId] {
        let size = self.blocks.block_size();
        &self.sequences[&id].tokens()[index * size..][..size]
    }

    /// Takes the blocks that were computed since the last call and may be stored below memory, with their keys. Some of
    /// the blocks may have left memory meanwhile.
    pub(crate) fn take_fresh(&mut self) -> Vec<(BlockId, BlockKey)> {
        let fresh = std::mem::take(&mut self.fresh);
        self.named(fresh)
    }

    /// Takes the blocks that were computed since the last call and are not to be stored now, with their keys.
    pub(crate) fn take_unstored(&mut self) -> Vec<(BlockId, BlockKey)> {
        let unstored = std::mem::take(&mut self.unstored);
        self.named(unstored)
    }

    fn named(&self, blocks: Vec<BlockId>) -> Vec<(BlockId, BlockKey)> {
        blocks.into_iter().filter_map(|block| Some((block, self.blocks.key(block)?))).collect()
    }

    /// Takes the evicted blocks that may be stored below memory, by
    /// [`BlockManager::take_evicted`](interbed_kv::BlockManager::take_evicted).
    pub(crate) fn take_evicted(&mut self) -> Vec<Evicted> {
        self.blocks.take_evicted()
    }

    /// Returns the label of `block`, if the block still holds what `key` names.
    pub(crate) fn label(&self, block: BlockId, key: BlockKey) -> Option<BlockLabel> {
        self.blocks.label(block).filter(|label| label.key == key)
    }
}

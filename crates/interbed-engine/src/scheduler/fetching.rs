//! Sequences whose prefix comes up from disk, and what goes down.

use interbed_kv::{BlockId, BlockKey, BlockLabel, Evicted, Fetch, FetchId, KeyChain, SequenceId, TokenId};

use super::{Scheduler, StepPlan};
use crate::sequence::{Ahead, SequenceStatus};

impl Scheduler {
    /// From now on contents have names, under which a tier below keeps them: what was computed of prompts, and what was
    /// generated as well if `stores_generated`. What memory has already is to be kept there, too.
    pub(crate) fn name_contents(&mut self, chain: KeyChain, stores_generated: bool) {
        self.blocks.name_contents(chain);
        self.fresh.extend(self.blocks.take_published());
        self.stores_generated = stores_generated;
    }

    /// The names of the blocks of `id`, which was just admitted, that memory does not have. Beams of a search are left
    /// alone, since they make room and come back together.
    pub(crate) fn missing_keys(&self, id: SequenceId) -> Vec<BlockKey> {
        let sequence = &self.sequences[&id];
        match sequence.lockstep {
            true => Vec::new(),
            false => self.blocks.missing_keys(id, sequence.tokens()),
        }
    }

    /// Seconds in which the tokens of `blocks` blocks would be computed; `None` if none were computed so far.
    pub(crate) fn recompute_seconds(&self, blocks: usize) -> Option<f64> {
        self.planner.prefill_seconds(blocks * self.blocks.block_size())
    }

    /// The same for one block of a long prompt.
    pub(crate) fn bulk_seconds(&self) -> Option<f64> {
        self.planner.bulk_seconds(self.blocks.block_size())
    }

    /// `id`, which was just admitted, does not take part in the pass: its next `count` blocks are fetched.
    pub(crate) fn begin_fetch(&mut self, id: SequenceId, count: usize, plan: &mut StepPlan) -> Option<Fetch> {
        let fetch = self.blocks.begin_fetch(id, count).ok()?;
        plan.take_entry(id);
        self.move_to(id, SequenceStatus::Fetching);
        self.num_fetches += 1;
        Some(fetch)
    }

    /// `id`, which was just admitted, computes its blocks up to number `first` only; the `count` blocks from there on
    /// are fetched meanwhile.
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

    /// The same as [`finish_fetch`](Self::finish_fetch) for one that was fetched ahead.
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

    /// If `id` has computed all before what was fetched of it, and that has come, it goes on behind it.
    pub(super) fn take_what_came(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let Some(Ahead { first, came: Some(came), .. }) = sequence.ahead else { return };
        if sequence.computed < first {
            return;
        }
        sequence.ahead = None;
        sequence.computed += came;
        self.blocks.commit(id, sequence.computed);
        // It is below already.
        self.blocks.take_published();
        self.reconsider();
    }

    /// A fetch has ended, and this many of the first blocks hold what they should. Returns its sequence, if that still
    /// waits for it, and how many of its tokens need not be computed.
    pub(crate) fn finish_fetch(&mut self, id: FetchId, filled: usize) -> Option<(SequenceId, usize)> {
        self.num_fetches -= 1;
        let finished = self.blocks.finish_fetch(id, filled);
        // What was fetched is below already.
        self.blocks.take_published();
        self.reconsider();
        let (id, computed) = finished?;
        let sequence = self.sequences.get_mut(&id)?;
        sequence.computed = computed;
        self.move_to(id, SequenceStatus::Running);
        Some((id, computed))
    }

    /// `id`, whose fetch has ended, takes part in the pass after all, as far as there is room.
    pub(crate) fn rejoin(&self, id: SequenceId, plan: &mut StepPlan) {
        let is_running = self.sequences.get(&id).is_some_and(|sequence| sequence.status == SequenceStatus::Running);
        if is_running && plan.budget > 0 && plan.entries.iter().all(|entry| entry.id != id) {
            self.plan_entry(id, plan);
        }
    }

    /// Fetches in flight.
    pub(crate) fn num_fetches(&self) -> usize {
        self.num_fetches
    }

    /// The tokens of block number `index` of `id`.
    pub(crate) fn block_tokens(&self, id: SequenceId, index: usize) -> &[TokenId] {
        let size = self.blocks.block_size();
        &self.sequences[&id].tokens()[index * size..][..size]
    }

    /// Blocks that were computed since the last call and may be stored below, with their names. Some may have gone
    /// meanwhile.
    pub(crate) fn take_fresh(&mut self) -> Vec<(BlockId, BlockKey)> {
        let fresh = std::mem::take(&mut self.fresh);
        self.named(fresh)
    }

    /// The same of those that are not to be stored now.
    pub(crate) fn take_unstored(&mut self) -> Vec<(BlockId, BlockKey)> {
        let unstored = std::mem::take(&mut self.unstored);
        self.named(unstored)
    }

    fn named(&self, blocks: Vec<BlockId>) -> Vec<(BlockId, BlockKey)> {
        blocks.into_iter().filter_map(|block| Some((block, self.blocks.key(block)?))).collect()
    }

    /// See [`BlockManager::take_evicted`](interbed_kv::BlockManager::take_evicted).
    pub(crate) fn take_evicted(&mut self) -> Vec<Evicted> {
        self.blocks.take_evicted()
    }

    /// The label of `block`, if it still holds what `key` names.
    pub(crate) fn label(&self, block: BlockId, key: BlockKey) -> Option<BlockLabel> {
        self.blocks.label(block).filter(|label| label.key == key)
    }
}

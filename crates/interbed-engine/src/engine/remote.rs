//! Between passes, the engine writes KV blocks to a store that servers share, and fetches blocks from it.

use std::collections::VecDeque;
use std::time::Duration;

use interbed_kv::{BlockBytes, BlockId, BlockKey, Evicted, FetchEnded, FetchId, Wanted};
use interbed_kv_remote::RemoteTier;

use super::gone::Gone;
use crate::kv_remote::KvRemoteStatus;
use crate::scheduler::Scheduler;

/// The class of blocks that are stored before anything is known of their use.
const FRESH: u8 = u8::MAX;

/// A shared store, and the blocks that wait to be written to it.
pub(super) struct Remote {
    tier: RemoteTier,
    /// The blocks that are to be stored when there are buffers for them, the oldest first.
    fresh: VecDeque<(BlockId, BlockKey)>,
    /// The most blocks that `fresh` holds.
    fresh_max: usize,
    status: KvRemoteStatus,
}

impl Remote {
    /// Creates the state for an engine with `num_blocks` blocks in memory.
    pub(super) fn new(tier: RemoteTier, num_blocks: usize) -> Self {
        Self { tier, fresh: VecDeque::new(), fresh_max: num_blocks, status: KvRemoteStatus::default() }
    }

    pub(super) fn status(&self) -> KvRemoteStatus {
        let mut store = self.tier.stats();
        store.queued_blocks += self.fresh.len();
        KvRemoteStatus { store, ..self.status }
    }

    /// Returns whether no block waits to be written and nothing is in flight.
    pub(super) fn is_settled(&self) -> bool {
        self.fresh.is_empty() && self.tier.is_settled()
    }

    /// Returns whether to ask for the next `blocks` blocks of a sequence. Computing them takes `computing` seconds, if
    /// that is known.
    pub(super) fn is_worth_asking(&self, blocks: usize, computing: Option<f64>) -> bool {
        self.tier.is_worth_asking(blocks, computing)
    }

    /// Returns the time in which the store is expected to say whether it has the first block of a fetch.
    pub(super) fn answer(&self) -> Duration {
        self.tier.answer()
    }

    /// Asks the store for `wanted`. Computing these blocks takes `computing` seconds, if that is known.
    pub(super) fn fetch(&mut self, id: FetchId, wanted: Vec<Wanted>, computing: Option<f64>) {
        self.tier.fetch(id, wanted, computing);
    }

    /// Gives a fetch up, if it is still in flight.
    pub(super) fn give_up(&mut self, id: FetchId) {
        self.tier.give_up(id);
    }

    /// Returns whether a fetch is in flight.
    pub(super) fn is_fetching(&self) -> bool {
        self.tier.num_fetches() > 0
    }

    /// Makes progress on what is in flight. Returns a fetch that has ended, if one ends within `wait`.
    pub(super) fn poll(&mut self, blocks: &mut dyn BlockBytes, wait: Duration) -> Option<FetchEnded> {
        self.tier.poll(blocks, wait)
    }

    /// Counts a fetch that has ended. Its blocks have `block_size` tokens each.
    pub(super) fn note_fetch(&mut self, ended: &FetchEnded, block_size: usize) {
        self.status.fetches += 1;
        self.status.fetch_seconds += ended.seconds;
        self.status.asked_tokens += (ended.wanted * block_size) as u64;
        self.status.fetched_tokens += (ended.filled * block_size) as u64;
    }

    /// Stages blocks that are to be stored, as far as there are buffers: first those that were evicted, then those of
    /// prompts that were computed.
    pub(super) fn store(&mut self, gone: &Gone, scheduler: &Scheduler, blocks: &mut dyn BlockBytes) {
        let Self { tier, fresh, fresh_max, .. } = self;
        for Evicted { block, label, class } in &gone.evicted {
            if tier.wants(label.key, *class) {
                tier.stage(label.clone(), *class, *block, blocks);
            }
        }
        fresh.extend(&gone.computed);
        // The oldest blocks have left memory by now, or are written when they are evicted.
        fresh.drain(..fresh.len().saturating_sub(*fresh_max));
        // A quarter of the buffers is left for evicted blocks.
        let kept = tier.buffers() / 4;
        while tier.room() > kept
            && let Some((block, key)) = fresh.pop_front()
        {
            if let Some(label) = scheduler.label(block, key)
                && tier.wants(key, FRESH)
            {
                tier.stage(label, FRESH, block, blocks);
            }
        }
    }
}

//! What goes to a store that servers share, between passes.

use std::collections::VecDeque;
use std::time::Duration;

use interbed_kv::{BlockBytes, BlockId, BlockKey, Evicted, FetchEnded, FetchId, Wanted};
use interbed_kv_remote::RemoteTier;

use super::gone::Gone;
use crate::kv_remote::KvRemoteStatus;
use crate::scheduler::Scheduler;

/// The class of blocks that are stored before anything is known of their use.
const FRESH: u8 = u8::MAX;

/// A shared store, and what is on its way there.
pub(super) struct Remote {
    tier: RemoteTier,
    /// Blocks that are to be stored when there are buffers for them, the oldest first.
    fresh: VecDeque<(BlockId, BlockKey)>,
    /// How many of those there may be.
    fresh_max: usize,
    status: KvRemoteStatus,
}

impl Remote {
    /// With `num_blocks` blocks in memory.
    pub(super) fn new(tier: RemoteTier, num_blocks: usize) -> Self {
        Self { tier, fresh: VecDeque::new(), fresh_max: num_blocks, status: KvRemoteStatus::default() }
    }

    pub(super) fn status(&self) -> KvRemoteStatus {
        let mut store = self.tier.stats();
        store.queued_blocks += self.fresh.len();
        KvRemoteStatus { store, ..self.status }
    }

    /// Whether nothing waits to be written, or is in flight.
    pub(super) fn is_settled(&self) -> bool {
        self.fresh.is_empty() && self.tier.is_settled()
    }

    /// Whether to ask for the next `blocks` blocks of a sequence, which would be computed in so many seconds.
    pub(super) fn is_worth_asking(&self, blocks: usize, computing: Option<f64>) -> bool {
        self.tier.is_worth_asking(blocks, computing)
    }

    /// In what time the store is expected to say whether it has the first block of a fetch.
    pub(super) fn answer(&self) -> Duration {
        self.tier.answer()
    }

    /// Asks for `wanted`, which would be computed in so many seconds.
    pub(super) fn fetch(&mut self, id: FetchId, wanted: Vec<Wanted>, computing: Option<f64>) {
        self.tier.fetch(id, wanted, computing);
    }

    /// Ends a fetch, if it is still in flight.
    pub(super) fn give_up(&mut self, id: FetchId) {
        self.tier.give_up(id);
    }

    /// Whether anything is being fetched.
    pub(super) fn is_fetching(&self) -> bool {
        self.tier.num_fetches() > 0
    }

    /// Goes on with what is in flight, and returns a fetch that has ended, if one does within `wait`.
    pub(super) fn poll(&mut self, blocks: &mut dyn BlockBytes, wait: Duration) -> Option<FetchEnded> {
        self.tier.poll(blocks, wait)
    }

    /// A fetch has ended whose blocks have `block_size` tokens.
    pub(super) fn note_fetch(&mut self, ended: &FetchEnded, block_size: usize) {
        self.status.fetches += 1;
        self.status.fetch_seconds += ended.seconds;
        self.status.asked_tokens += (ended.wanted * block_size) as u64;
        self.status.fetched_tokens += (ended.filled * block_size) as u64;
    }

    /// Copies blocks that are to be stored: those that were evicted, then those of prompts that were computed, as far
    /// as there are buffers.
    pub(super) fn store(&mut self, gone: &Gone, scheduler: &Scheduler, blocks: &mut dyn BlockBytes) {
        let Self { tier, fresh, fresh_max, .. } = self;
        for Evicted { block, label, class } in &gone.evicted {
            if tier.wants(label.key, *class) {
                tier.stage(label.clone(), *class, *block, blocks);
            }
        }
        fresh.extend(&gone.computed);
        // The oldest have gone, or are written when they are evicted.
        fresh.drain(..fresh.len().saturating_sub(*fresh_max));
        // Some buffers are left for what is evicted.
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

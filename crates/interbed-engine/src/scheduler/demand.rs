//! Computes how many blocks KV could use, for the trade of memory with weights.

use interbed_kv::{KvUse, LookUp};

use super::Scheduler;
use super::admission::LOOKAHEAD;
use crate::memory_trade::KvDemand;

impl Scheduler {
    /// Returns the blocks that KV has, and those that the next passes could use in addition. These are blocks for
    /// swapped-out sequences, for sequences that one pass could admit, and for the growth of those and of running
    /// sequences. For sequences that must not be preempted again, growth is counted up to their ends.
    pub(crate) fn kv_demand(&self) -> KvDemand {
        let stats = self.blocks.stats();
        let KvUse { present, used, cached } = self.blocks.kv_use();
        let mut wanted = self.blocks.reserve();
        let mut sequences: Vec<_> = self.holders().collect();
        let seats_free = self.config.max_num_seqs - self.queues.seats();
        for id in self.queues.swapped().take(seats_free) {
            wanted += self.blocks_of(id);
            sequences.push(&self.sequences[&id]);
        }
        // A waiting sequence may have to come before all that are swapped out.
        let room = seats_free.saturating_sub(self.queues.swapped().len()).max(seats_free.min(1));
        let mut budget = self.config.max_num_batched_tokens;
        // The urgent sequences of all tenants come first: while one of them lacks blocks, no other may be admitted.
        let of_each =
            self.tenants.of.keys().map(|&tenant| self.queues.waiting_of(tenant).map(|id| &self.sequences[&id]));
        let urgent = of_each.flat_map(|waiting| waiting.take_while(|one| one.is_urgent()));
        let others = self.queues.waiting().map(|id| &self.sequences[&id]).filter(|one| !one.is_urgent());
        for sequence in urgent.chain(others).take(room.min(LOOKAHEAD)) {
            if let Some(limits) = self.long_limits(sequence) {
                wanted += limits.least;
                continue;
            }
            let LookUp { num_blocks, num_cached_tokens, .. } = self.blocks.look_up(sequence.tokens(), &sequence.hashes);
            // A sequence that can never fit is about to be rejected.
            if num_blocks > stats.blocks_total {
                continue;
            }
            wanted += num_blocks;
            sequences.push(sequence);
            budget = budget.saturating_sub(sequence.len() - num_cached_tokens);
            if budget == 0 {
                break;
            }
        }
        // Each running sequence gets a block, however little it is expected to grow.
        wanted += self.growth_of(sequences.iter().copied()).max(self.queues.running().len());
        let promised = self.blocks_promised(sequences.into_iter());
        let wanted = wanted.max(promised.saturating_sub(used));
        KvDemand { present, used, cached, wanted, recompute: self.bulk_seconds() }
    }
}

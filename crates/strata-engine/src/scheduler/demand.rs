//! What KV could use, for whoever divides memory (M4).

use super::{LOOKAHEAD, Scheduler};
use crate::forecast::blocks_wanted;
use crate::memory_trade::KvDemand;

impl Scheduler {
    /// What KV has, and what the next passes could use besides: blocks for the sequences that are swapped out and for those
    /// that one pass could admit, and room for all of them and for those that run to grow.
    pub(crate) fn kv_demand(&self) -> KvDemand {
        let stats = self.blocks.stats();
        let mut wanted = self.blocks.reserve();
        let mut growths: Vec<_> = self.holders().flat_map(|sequence| self.growths(sequence)).collect();
        let mut room = self.config.max_num_seqs - self.seats_taken();
        for &id in self.swapped.values().take(room) {
            wanted += self.blocks_of(id);
            growths.extend(self.growths(&self.sequences[&id]));
            room -= 1;
        }
        let mut budget = self.config.max_num_batched_tokens;
        for id in self.waiting.values().take(room.min(LOOKAHEAD)) {
            let sequence = &self.sequences[id];
            let (blocks, tokens) = self.blocks.demand(&sequence.tokens, &sequence.root);
            // One that can never fit is about to be rejected.
            if blocks > stats.blocks_total {
                continue;
            }
            wanted += blocks;
            growths.extend(self.growths(sequence));
            budget = budget.saturating_sub(tokens);
            if budget == 0 {
                break;
            }
        }
        // A block for each that runs, however little it is expected to grow.
        wanted += blocks_wanted(&mut growths, self.blocks.block_size()).max(self.running.len());
        KvDemand { present: self.blocks.present(), used: stats.blocks_used, wanted }
    }
}

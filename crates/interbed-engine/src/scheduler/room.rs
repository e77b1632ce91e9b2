//! Finds out whether sequences have room to grow: what they are expected to take, and what was promised to them.

use std::collections::HashSet;

use super::Scheduler;
use super::wait::Wait;
use crate::forecast::{Growth, blocks_wanted};
use crate::sequence::Sequence;

impl Scheduler {
    /// Returns the reason, if there is one, why `sequences`, which take `need` blocks now, are not expected to find
    /// enough blocks to grow beside all others. Sequences that must not be preempted again have to find blocks up to
    /// their ends. Any other sequence is admitted when no other holds blocks, however far it may grow.
    pub(super) fn short_of(&self, sequences: &[&Sequence], need: usize) -> Option<Wait> {
        let together = || self.holders().chain(sequences.iter().copied());
        let any_spared = sequences.iter().any(|sequence| sequence.is_spared());
        if any_spared && self.blocks_promised(together()) > self.blocks.usable() {
            return Some(Wait::VeryEnd);
        }
        let available = self.blocks.available();
        if self.holders().next().is_none() {
            return (need > available).then_some(Wait::Blocks);
        }
        (need + self.growth_of(together()) > available).then_some(Wait::Growth)
    }

    /// Returns whether `one`, which takes `need` blocks now, would evict blocks that other tenants have cached within
    /// their shares, while sequences of its own tenant hold blocks that they will give back.
    pub(super) fn takes_what_is_kept(&self, one: &Sequence, need: usize) -> bool {
        let kept = self.blocks.blocks_kept_from(one.hashes.root());
        if kept == 0 || !self.holders().any(|other| other.request.tenant == one.request.tenant) {
            return false;
        }
        let growth = self.growth_of(self.holders().chain(std::iter::once(one)));
        need + growth + kept > self.blocks.available()
    }

    /// Returns the number of blocks that `sequences` are expected to take as they grow.
    pub(super) fn growth_of<'a>(&self, sequences: impl Iterator<Item = &'a Sequence>) -> usize {
        let mut growths: Vec<_> = sequences.flat_map(|one| self.growths(one)).collect();
        blocks_wanted(&mut growths, self.blocks.block_size())
    }

    /// Returns the sequences that hold blocks and are not on their way out.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Sequence> {
        let ids = self.queues.running().chain(self.queues.fetching()).chain(self.queues.arriving());
        ids.map(|id| &self.sequences[&id])
    }

    /// Returns the number of blocks that must be kept for those of `sequences` that must not be preempted again, up to
    /// their ends. The full blocks of a prompt count once for all beams of a search. Blocks of swaps that hang count
    /// too, because no sequence can have them.
    pub(super) fn blocks_promised<'a>(&self, sequences: impl Iterator<Item = &'a Sequence>) -> usize {
        let blocks_total = self.blocks.stats().blocks_total;
        let mut searches = HashSet::new();
        let promised = |one: &Sequence| {
            // The last token has no KV.
            let all = match self.long_limits(one) {
                Some(limits) => limits.least,
                None => self.blocks.num_blocks_alone(one.prompt_len.max(one.tokens_max.saturating_sub(1))),
            };
            let shared = one.search().map_or(0, |_| one.prompt_len / self.blocks.block_size());
            let is_counted = one.search().is_some_and(|search| !searches.insert(search));
            let blocks = (all - shared).saturating_mul(one.seats()).saturating_add(if is_counted { 0 } else { shared });
            // A sequence that would outgrow the whole pool is rejected when it does.
            blocks.min(blocks_total)
        };
        sequences.filter(|one| one.is_spared()).map(promised).sum::<usize>() + self.flights.blocks_hanging()
    }

    /// Returns the number of tokens that `sequence` is expected still to generate. For a sequence that must not be
    /// preempted again, this is all that it may generate.
    pub(super) fn tokens_left(&self, sequence: &Sequence) -> usize {
        let left_max = sequence.tokens_max.saturating_sub(sequence.len());
        if sequence.is_spared() { left_max } else { self.forecast.tokens_left(sequence.generated(), left_max) }
    }

    /// Returns how a sequence will grow: once, or, if it is the trunk of a search, once for each beam.
    fn growths(&self, sequence: &Sequence) -> impl Iterator<Item = Growth> + use<> {
        let tokens = sequence.len();
        let blocks_held = self.blocks_taken(sequence);
        let growth = match self.long_limits(sequence) {
            // A long sequence does not grow in memory, because the stretches that it computes push older ones out.
            Some(_) => Growth { tokens_left: 0, slots_empty: 0, blocks_held },
            None => {
                let slots_empty = blocks_held * self.blocks.block_size() - tokens;
                Growth { tokens_left: self.tokens_left(sequence), slots_empty, blocks_held }
            }
        };
        let branch = Growth { slots_empty: 0, blocks_held: 0, ..growth };
        std::iter::once(growth).chain(std::iter::repeat_n(branch, sequence.seats() - 1))
    }
}

//! Schedules sequences that are longer than memory. The beginning of such a sequence's KV is on disk, and each pass
//! reads it, a stretch at a time; the end is in blocks. Whole stretches leave memory once they are on disk, and only
//! when blocks are short.

use interbed_kernels::STRETCH;
use interbed_kv::{BlockId, ChainRoot, Fetch, KeptTails, SequenceId};

use super::{Scheduler, StepPlan};
use crate::TokenId;
use crate::sequence::{Sequence, SequenceStatus};

/// The number of prompt tokens of a long sequence that one pass should be able to compute beside a stretch that is not
/// on disk yet. A pass should compute many tokens, because each pass reads all KV of the sequence that is below memory.
const CHUNK_LEAST: usize = 64;

/// The limits of sequences that are longer than memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct LongLimits {
    /// The number of blocks in a stretch.
    stretch: usize,
    /// The number of blocks in memory with which a long sequence can run.
    pub(super) least: usize,
    /// The most tokens that a long sequence may have.
    most: usize,
}

/// What a sequence that is longer than memory held when it lost its blocks, as far as others can go on from it. It is
/// still in the blocks, until copies that were not yet taken are made, or a pass begins.
#[derive(Debug)]
pub(crate) struct Parting {
    pub(crate) id: SequenceId,
    /// The tokens up to the place where others can go on.
    pub(crate) tokens: Vec<TokenId>,
    /// The number of blocks before `trunk`.
    pub(crate) below: usize,
    /// The blocks in memory of these tokens, with the KV of all tokens.
    pub(crate) trunk: Vec<BlockId>,
    /// What layers need besides.
    pub(crate) tails: KeptTails,
}

/// Returns the minimum number of KV blocks that a sequence needs in memory to run while the rest of its KV is on disk.
/// A block holds `block_size` tokens, and a forward pass has at most `batched_tokens` tokens.
pub fn blocks_beside_disk(block_size: usize, batched_tokens: usize) -> usize {
    STRETCH.div_ceil(block_size) + CHUNK_LEAST.min(batched_tokens).div_ceil(block_size) + 1
}

impl Scheduler {
    /// Allows sequences to be longer than memory from now on, up to `most` tokens, if memory has room for a stretch and
    /// a chunk.
    pub(crate) fn allow_long(&mut self, most: usize) {
        let block_size = self.blocks.block_size();
        let least = blocks_beside_disk(block_size, self.config.max_num_batched_tokens);
        let least = self.blocks.num_blocks_beside_below(least);
        if STRETCH.is_multiple_of(block_size) && least <= self.blocks.stats().blocks_total {
            self.long = Some(LongLimits { stretch: STRETCH / block_size, least, most });
        }
        self.reconsider();
    }

    /// Has sequences that are longer than memory wait, if they have up to `most` tokens, because they may be allowed
    /// later. With 0, such sequences do not wait.
    pub(crate) fn await_long(&mut self, most: usize) {
        self.long_awaited = most;
        self.reconsider();
    }

    /// Returns whether the engine waits for a tier with which sequences may be longer than memory.
    pub(crate) fn awaits_long(&self) -> bool {
        self.long_awaited > 0
    }

    /// Returns whether `one` is longer than memory, and waits until that is allowed.
    pub(super) fn is_awaiting(&self, one: &Sequence) -> bool {
        one.request.may_be_long && !self.fits_alone(one) && one.len() <= self.long_awaited
    }

    /// Returns the limits of `one` as a sequence that is longer than memory; `None` if it is not longer, or may not be.
    pub(super) fn long_limits(&self, one: &Sequence) -> Option<LongLimits> {
        let limits = self.long.filter(|limits| one.request.may_be_long && one.len() <= limits.most)?;
        (one.is_long() || !self.fits_alone(one)).then_some(limits)
    }

    fn fits_alone(&self, one: &Sequence) -> bool {
        self.blocks.num_blocks_alone(one.len()) <= self.blocks.stats().blocks_total
    }

    /// Returns whether all of `one` should be on disk soon, since memory may not be enough for it.
    pub(super) fn may_outgrow_memory(&self, one: &Sequence) -> bool {
        let half = self.blocks.stats().blocks_total / 2;
        self.long.is_some() && one.request.may_be_long && self.blocks.num_blocks_alone(one.len()) > half
    }

    /// Returns the number of blocks that `one` takes or would take in memory.
    pub(super) fn blocks_taken(&self, one: &Sequence) -> usize {
        let all = self.blocks.num_required_blocks(one.len(), 0);
        match (self.long_limits(one), one.status) {
            (None, _) => all,
            (Some(limits), SequenceStatus::Waiting) => limits.least.min(all),
            (Some(_), _) => self.blocks.blocks_held(one.id),
        }
    }

    /// Drops the blocks of the running `id`, and takes it out of the pass. The sequence comes back as one that is
    /// longer than memory.
    pub(super) fn become_long(&mut self, id: SequenceId, plan: &mut StepPlan) {
        plan.take_entry(id);
        plan.left.push(id);
        self.restart(id);
    }

    /// Drops the blocks of the running `id`. The sequence comes back and goes on behind the KV that it has on disk.
    pub(crate) fn restart(&mut self, id: SequenceId) {
        self.reconsider();
        self.recompute(&[id]);
    }

    /// Drops the blocks of those sequences of a pass that was given up whose states the pass may have changed in place.
    pub(crate) fn restart_changed(&mut self, plan: &StepPlan) {
        let changed: Vec<_> = plan.entries.iter().map(|entry| entry.id).collect();
        for id in changed {
            if self.knows(id) && self.blocks.writes_in_place(id) {
                let group = self.group(id);
                self.reconsider();
                self.recompute(&group);
            }
        }
    }

    /// Begins `id` as a sequence that is longer than memory.
    pub(super) fn start_long(&mut self, id: SequenceId) {
        let sequence = self.sequences.get_mut(&id).expect("a waiting sequence is known");
        (sequence.kept, sequence.computed) = (Some(0), 0);
        let begun = self.blocks.begin_below(id, sequence.hashes.root(), 0, sequence.len());
        begun.expect("one that waits holds nothing");
    }

    /// Has `id`, which has just begun, go on behind its `kept` stretches on disk.
    pub(crate) fn resume_long(&mut self, id: SequenceId, kept: usize) {
        let Some(LongLimits { stretch, .. }) = self.long else { return };
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        (sequence.kept, sequence.computed) = (Some(kept), kept * STRETCH);
        let root: ChainRoot = sequence.hashes.root().clone();
        self.blocks.free(id);
        self.blocks.begin_below(id, &root, kept * stretch, sequence.len()).expect("it has just been freed");
    }

    /// Has `id`, which has just begun and whose layers keep tails, go on behind its `kept` stretches on disk and the
    /// `count` blocks after them. Takes `id` out of the pass, and begins to fetch these blocks and the tails. Returns
    /// `None` if there is no room; the sequence holds nothing then.
    pub(crate) fn fetch_long(
        &mut self,
        id: SequenceId,
        kept: usize,
        count: usize,
        plan: &mut StepPlan,
    ) -> Option<Fetch> {
        let LongLimits { stretch, .. } = self.long?;
        let sequence = self.sequences.get_mut(&id)?;
        let root: ChainRoot = sequence.hashes.root().clone();
        let tokens = &sequence.tokens()[kept * STRETCH..][..count * self.blocks.block_size()];
        self.blocks.free(id);
        let Ok(fetch) = self.blocks.begin_fetch_below(id, &root, kept * stretch, tokens, sequence.len()) else {
            self.start_long(id);
            return None;
        };
        (sequence.kept, sequence.computed) = (Some(kept), kept * STRETCH);
        self.await_fetch(id, plan);
        Some(fetch)
    }

    /// Notes what `id`, which is about to lose its blocks or the states that it keeps, leaves behind for others to go
    /// on from.
    pub(super) fn part(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.get(&id).filter(|sequence| sequence.is_long()) else { return };
        let Some(tails) = self.blocks.kept_tails(id) else { return };
        let (below, computed) = (self.blocks.blocks_below(id).min(tails.count), self.blocks.computed_blocks(id));
        let trunk = computed[..tails.count - below].to_vec();
        let tokens = sequence.tokens()[..tails.count * self.blocks.block_size()].to_vec();
        self.partings.push(Parting { id, tokens, below, trunk, tails });
    }

    /// Takes what sequences that are longer than memory have left behind since the last call.
    pub(crate) fn take_partings(&mut self) -> Vec<Parting> {
        std::mem::take(&mut self.partings)
    }

    /// Gives `id`, which goes on behind its KV below memory, blocks for the next `count` blocks of its tokens, as far
    /// as there are any. Returns how many blocks it got.
    pub(crate) fn take_blocks_to_fetch(&mut self, id: SequenceId, count: usize) -> usize {
        let sequence = &self.sequences[&id];
        let count = count.min(self.blocks.available() / 2);
        let tokens = &sequence.tokens()[sequence.computed..sequence.computed + count * self.blocks.block_size()];
        match self.blocks.append(id, tokens) {
            Ok(()) => count,
            Err(_) => 0,
        }
    }

    /// Returns the running sequences that are longer than memory.
    pub(crate) fn running_long(&self) -> Vec<SequenceId> {
        self.queues.running().filter(|id| self.sequences[id].is_long()).collect()
    }

    /// Returns whether `id` holds nothing and waits to be computed.
    pub(crate) fn is_waiting(&self, id: SequenceId) -> bool {
        self.sequences.get(&id).is_some_and(|sequence| sequence.status == SequenceStatus::Waiting)
    }

    /// Returns whether `id` has not ended.
    pub(crate) fn knows(&self, id: SequenceId) -> bool {
        self.sequences.contains_key(&id)
    }

    /// Gives `id` slots for the next tokens that it computes. It gets as many as the pass has room for, or as many as
    /// there are blocks for when no stretch of the sequence can leave memory.
    pub(super) fn grow_long(&mut self, id: SequenceId, plan: &mut StepPlan) -> Growing {
        let Some(LongLimits { stretch, .. }) = self.long else { return Growing::Short };
        while !self.blocks.keep_states(id) && self.move_below(id) {}
        loop {
            let sequence = &self.sequences[&id];
            let held = self.blocks.num_tokens(id).unwrap_or(0);
            let computed = sequence.computed;
            let end = computed + sequence.pending().min(self.room_of(id, plan));
            let more = self.room_to_grow(id, held, end.saturating_sub(held));
            if held + more < end {
                if self.move_below(id) {
                    continue;
                }
                // Each pass reads all KV that is below memory, so the sequence waits for the disk rather than compute a
                // few tokens.
                if self.blocks.computed_blocks(id).len() >= stretch {
                    plan.waits_for_disk.push(id);
                    return Growing::Waits;
                }
            }
            if held + more <= computed {
                if self.give_up_kept_states(id) {
                    continue;
                }
                return Growing::Short;
            }
            let tokens = &self.sequences[&id].tokens()[held..held + more];
            return match self.blocks.append(id, tokens) {
                Ok(()) => Growing::Grown,
                // A window lacks a place for the next token.
                Err(_) => Growing::Short,
            };
        }
    }

    /// Returns how many more of `count` tokens `id`, which holds `held`, finds blocks for.
    fn room_to_grow(&self, id: SequenceId, held: usize, count: usize) -> usize {
        let block_size = self.blocks.block_size();
        let room = held.next_multiple_of(block_size) - held;
        let mut more = count.min(room + self.blocks.available() * block_size);
        // Windows and states may take a part of what is available.
        while self.blocks.keeps_tails() && more > 0 && !self.blocks.can_append(id, more) {
            more = more.saturating_sub(block_size);
        }
        more
    }

    /// Has a stretch of a running sequence leave memory, if one is on disk, or gives up what such a sequence keeps only
    /// to be stored. Returns whether there is more room now.
    pub(super) fn make_room_below(&mut self) -> bool {
        self.long.is_some()
            && self.running_long().into_iter().any(|id| self.move_below(id) || self.give_up_kept_states(id))
    }

    /// Gives up the states that `id` keeps only to be stored, once they are on their way to disk. Returns whether there
    /// is more room now.
    fn give_up_kept_states(&mut self, id: SequenceId) -> bool {
        let keeps_states = self.blocks.keeps_states();
        if keeps_states {
            self.part(id);
        }
        keeps_states && self.blocks.give_up_kept_states(id)
    }

    /// Has the first stretch of `id` in memory leave memory, if it is on disk. Returns whether it left.
    fn move_below(&mut self, id: SequenceId) -> bool {
        let Some(LongLimits { stretch, .. }) = self.long else { return false };
        let is_kept = |kept| self.blocks.blocks_below(id) < kept * stretch;
        self.sequences[&id].kept.is_some_and(is_kept) && self.blocks.move_below(id, stretch).is_ok()
    }
}

/// The result that says whether a long sequence takes part in a pass.
pub(super) enum Growing {
    Grown,
    /// The sequence takes no part in the pass. It waits until more of its KV has been written to disk, so that blocks
    /// in memory can be reused.
    Waits,
    /// No KV block is available for the sequence's next tokens, because other sequences hold the blocks.
    Short,
}

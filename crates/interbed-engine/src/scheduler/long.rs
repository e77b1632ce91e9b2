//! Sequences that are longer than memory. The beginning of their KV is on disk, and comes up in each pass, a stretch at
//! a time; the end is in blocks. Whole stretches leave memory once they are on disk, and only when blocks are short.

use interbed_kernels::STRETCH;
use interbed_kv::{BlockId, ChainRoot, SequenceId};

use super::{Scheduler, StepPlan};
use crate::sequence::{Sequence, SequenceStatus};

/// Tokens of a prompt that one pass should be able to compute of such a sequence, beside a stretch that is not on disk
/// yet: each pass reads all that is below.
const CHUNK_LEAST: usize = 64;

/// What such sequences need.
#[derive(Debug, Clone, Copy)]
pub(super) struct LongLimits {
    /// Blocks of a stretch.
    stretch: usize,
    /// Blocks in memory with which one can run.
    pub(super) least: usize,
    /// Tokens that one may have.
    most: usize,
}

/// KV blocks of `block_size` tokens that must be in memory for a sequence whose other blocks are on disk, where a pass
/// has `batched_tokens` tokens at the most.
pub fn blocks_beside_disk(block_size: usize, batched_tokens: usize) -> usize {
    STRETCH.div_ceil(block_size) + CHUNK_LEAST.min(batched_tokens).div_ceil(block_size) + 1
}

impl Scheduler {
    /// From now on sequences may be longer than memory, up to `most` tokens, if a stretch and a chunk have room there.
    pub(crate) fn allow_long(&mut self, most: usize) {
        let block_size = self.blocks.block_size();
        let least = blocks_beside_disk(block_size, self.config.max_num_batched_tokens);
        if STRETCH.is_multiple_of(block_size) && least <= self.blocks.stats().blocks_total {
            self.long = Some(LongLimits { stretch: STRETCH / block_size, least, most });
        }
        self.reconsider();
    }

    /// Sequences may become longer than memory later, up to `most` tokens: until then such ones wait. With 0, nothing
    /// is waited for.
    pub(crate) fn await_long(&mut self, most: usize) {
        self.long_awaited = most;
        self.reconsider();
    }

    /// Whether it is waited for that sequences may be longer than memory.
    pub(crate) fn awaits_long(&self) -> bool {
        self.long_awaited > 0
    }

    /// Whether `one` is longer than memory, and waits until it may be.
    pub(super) fn is_awaiting(&self, one: &Sequence) -> bool {
        let fits = self.blocks.num_required_blocks(one.len(), 0) <= self.blocks.stats().blocks_total;
        one.may_be_long && !fits && one.len() <= self.long_awaited
    }

    /// What `one` needs in memory as one that is longer than that; `None` if it is not, or may not be.
    pub(super) fn long_limits(&self, one: &Sequence) -> Option<LongLimits> {
        let limits = self.long.filter(|limits| one.may_be_long && one.len() <= limits.most)?;
        let fits = self.blocks.num_required_blocks(one.len(), 0) <= self.blocks.stats().blocks_total;
        (one.is_long || !fits).then_some(limits)
    }

    /// Whether all of `one` should be on disk soon, since memory may not be enough for it.
    pub(super) fn may_outgrow_memory(&self, one: &Sequence) -> bool {
        let half = self.blocks.stats().blocks_total / 2;
        self.long.is_some() && one.may_be_long && self.blocks.num_required_blocks(one.len(), 0) > half
    }

    /// Blocks that `one` takes or would take.
    pub(super) fn blocks_taken(&self, one: &Sequence) -> usize {
        let all = self.blocks.num_required_blocks(one.len(), 0);
        match (self.long_limits(one), one.status) {
            (None, _) => all,
            (Some(limits), SequenceStatus::Waiting) => limits.least.min(all),
            (Some(_), _) => self.blocks.blocks_held(one.id),
        }
    }

    /// Has the running `id` lose its blocks, to come back as one that is longer than memory.
    pub(super) fn become_long(&mut self, id: SequenceId, plan: &mut StepPlan) {
        plan.take_entry(id);
        plan.left.push(id);
        self.restart(id);
    }

    /// The running `id` loses its blocks, and comes back for what it has on disk.
    pub(crate) fn restart(&mut self, id: SequenceId) {
        self.reconsider();
        self.recompute(&[id]);
    }

    /// Begins `id` as one that is longer than memory.
    pub(super) fn start_long(&mut self, id: SequenceId) {
        let sequence = self.sequences.get_mut(&id).expect("a waiting sequence is known");
        (sequence.is_long, sequence.kept, sequence.computed) = (true, 0, 0);
        self.blocks.begin_below(id, sequence.hashes.root(), 0).expect("one that waits holds nothing");
    }

    /// `id`, which has just begun, has `kept` stretches on disk.
    pub(crate) fn resume_long(&mut self, id: SequenceId, kept: usize) {
        let Some(LongLimits { stretch, .. }) = self.long else { return };
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        (sequence.kept, sequence.computed) = (kept, kept * STRETCH);
        let root: ChainRoot = sequence.hashes.root().clone();
        self.blocks.free(id);
        self.blocks.begin_below(id, &root, kept * stretch).expect("it has just been freed");
    }

    /// Gives `id`, which goes on behind what it has below memory, blocks for `count` blocks of its tokens, as far as
    /// there are any. Returns how many it got.
    pub(crate) fn take_blocks_to_fetch(&mut self, id: SequenceId, count: usize) -> usize {
        let (sequence, stats) = (&self.sequences[&id], self.blocks.stats());
        let count = count.min((stats.blocks_free + stats.blocks_cached) / 2);
        let tokens = &sequence.tokens()[sequence.computed..sequence.computed + count * self.blocks.block_size()];
        match self.blocks.append(id, tokens) {
            Ok(()) => count,
            Err(_) => 0,
        }
    }

    /// `kept` stretches of `id` are on disk and stay there.
    pub(crate) fn set_kept(&mut self, id: SequenceId, kept: usize) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.kept = kept;
        }
    }

    /// Sequences that are longer than memory, and run.
    pub(crate) fn running_long(&self) -> Vec<SequenceId> {
        self.queues.running().filter(|id| self.sequences[id].is_long).collect()
    }

    /// Whether `id` has not ended.
    pub(crate) fn knows(&self, id: SequenceId) -> bool {
        self.sequences.contains_key(&id)
    }

    /// The blocks in memory of `id` whose tokens are all computed, and how many are below.
    pub(crate) fn computed_blocks(&self, id: SequenceId) -> (usize, &[BlockId]) {
        (self.blocks.blocks_below(id), self.blocks.computed_blocks(id))
    }

    /// Gives `id` slots for the next tokens that it computes: as many as the pass has room for, or as there are blocks
    /// for when no stretch of it can leave memory.
    pub(super) fn grow_long(&mut self, id: SequenceId, plan: &mut StepPlan) -> Growing {
        let Some(LongLimits { stretch, .. }) = self.long else { return Growing::Short };
        loop {
            let (sequence, stats) = (&self.sequences[&id], self.blocks.stats());
            let held = self.blocks.num_tokens(id).unwrap_or(0);
            let computed = sequence.computed;
            let end = computed + sequence.pending().min(self.room_of(id, plan));
            let room = held.next_multiple_of(self.blocks.block_size()) - held
                + (stats.blocks_free + stats.blocks_cached) * self.blocks.block_size();
            let more = end.saturating_sub(held).min(room);
            if held + more < end {
                if self.move_below(id) {
                    continue;
                }
                // Each pass reads all that is below: rather than compute a few tokens, it waits for the disk.
                if self.blocks.computed_blocks(id).len() >= stretch {
                    plan.waits_for_disk.push(id);
                    return Growing::Waits;
                }
            }
            if held + more <= computed {
                return Growing::Short;
            }
            let tokens = &self.sequences[&id].tokens()[held..held + more];
            self.blocks.append(id, tokens).expect("there are blocks for so many");
            return Growing::Grown;
        }
    }

    /// Has a stretch of a running sequence leave memory, if one is on disk.
    pub(super) fn make_room_below(&mut self) -> bool {
        self.long.is_some() && self.running_long().into_iter().any(|id| self.move_below(id))
    }

    /// Has the first stretch in memory of `id` leave it, if it is on disk.
    fn move_below(&mut self, id: SequenceId) -> bool {
        let Some(LongLimits { stretch, .. }) = self.long else { return false };
        let is_kept = self.blocks.blocks_below(id) < self.sequences[&id].kept * stretch;
        is_kept && self.blocks.move_below(id, stretch).is_ok()
    }
}

/// Whether a long sequence takes part in a pass.
pub(super) enum Growing {
    Grown,
    /// Not before more of it is on disk.
    Waits,
    /// Others have the blocks.
    Short,
}

//! A sequence that is longer than memory keeps most of its KV on disk. The engine writes its computed blocks, keeps
//! them there for the sequence, and has passes read them.

use std::time::{Duration, Instant};

use interbed_device::KvFrame;
use interbed_kernels::STRETCH;
use interbed_kv::{BlockKey, BlockLabel, BlockPart, FrameOf, FrameTier, KeyChain, MissingKeys, SequenceId, Wanted};
use interbed_model::{FrameId, KvBelow, KvLost};

use super::Worker;
use super::attached_tier::frame_tier;
use super::below::Waits;
use crate::scheduler::StepPlan;
use crate::sequence::Sequence;
use crate::{FoundBelow, RequestError};

/// The longest time for which a sequence waits until the disk has taken blocks that memory has no room for.
const PATIENCE: Duration = Duration::from_secs(20);

/// The number of times at which a sequence that loses KV on disk fails. After fewer losses, it computes the lost KV
/// again.
const LOSSES_MAX: u32 = 16;

/// A sequence that is longer than memory.
pub(super) struct LongSequence {
    /// The key of the chain's root, followed by the key of each full block, as far as keys were needed.
    keys: Vec<BlockKey>,
    owner: BlockKey,
    /// The time since which the sequence has waited for the disk, if it waits.
    waits_since: Option<Instant>,
    losses: u32,
}

impl LongSequence {
    /// Computes the keys of the first `blocks` blocks of `tokens`.
    fn name(&mut self, chain: &KeyChain, tokens: &[u32], block_size: usize, blocks: usize) {
        while self.keys.len() <= blocks {
            let (index, parent) = (self.keys.len() - 1, self.keys[self.keys.len() - 1]);
            self.keys.push(chain.block(parent, &tokens[index * block_size..(index + 1) * block_size]));
        }
    }

    /// Returns for each block in `range` the parent's key, the block's key and the block's tokens.
    fn contents(
        &self,
        range: std::ops::Range<usize>,
        tokens: &[u32],
        block_size: usize,
    ) -> impl Iterator<Item = (BlockKey, BlockKey, Box<[u32]>)> {
        range.map(move |index| {
            (self.keys[index], self.keys[index + 1], tokens[index * block_size..(index + 1) * block_size].into())
        })
    }

    /// Has `tier` keep the stretches among the first `blocks` blocks of `sequence`, up to the first that the tier
    /// lacks. Returns the number of stretches that the tier keeps.
    fn keep(&self, tier: &mut dyn FrameTier, sequence: &Sequence, block_size: usize, blocks: usize) -> usize {
        let (owner, stretch) = (sequence.id.0, STRETCH / block_size);
        for kept in tier.kept_frames(owner)..blocks / stretch {
            let range = kept * stretch..(kept + 1) * stretch;
            let contents: Vec<_> = self.contents(range, sequence.tokens(), block_size).collect();
            if !tier.keep_frame(owner, &contents) {
                break;
            }
        }
        tier.kept_frames(owner)
    }
}

impl Worker {
    /// Resumes sequence `id`, which was just admitted and is longer than memory, behind the KV that it has on disk. If
    /// layers keep tails, the sequence begins with its first token, because the disk has no tails for it. What it
    /// computes need not be written again.
    pub(super) fn resume_long(&mut self, id: SequenceId, plan: &mut StepPlan, index: usize) {
        let block_size = self.scheduler.blocks().block_size();
        let long = &mut self.long;
        let Some((of_tier, tier)) = frame_tier(&mut self.tiers) else { return };
        let sequence = self.scheduler.sequence(id);
        let root = sequence.hashes.root();
        let one = long.entry(id).or_insert_with(|| LongSequence {
            keys: vec![tier.key_chain().root(root)],
            owner: tier.key_chain().owner(sequence.request.tenant.map(|tenant| tenant.0)),
            waits_since: None,
            losses: 0,
        });
        // The last token is always computed.
        let full = if self.scheduler.blocks().keeps_tails() { 0 } else { (sequence.len() - 1) / block_size };
        one.name(tier.key_chain(), sequence.tokens(), block_size, full);
        let found = tier.look_up(&MissingKeys::of_trunk(one.keys[1..=full].to_vec(), 0), None);
        let stretch = STRETCH / block_size;
        let kept = one.keep(tier, sequence, block_size, found).min(full / stretch);
        let tail = found.saturating_sub(kept * stretch);
        self.scheduler.resume_long(id, kept);
        plan.admitted[index].cached = kept * STRETCH;
        let (tokens, loaded) = (found * block_size, kept * STRETCH);
        plan.admitted[index].below = vec![FoundBelow { tier: tier.name(), tokens, loaded, ..FoundBelow::default() }];
        let tail = self.scheduler.take_blocks_to_fetch(id, tail);
        if tail == 0 {
            return;
        }
        let Some(fetch) = self.scheduler.begin_fetch(id, tail, plan) else { return };
        let range = kept * stretch..kept * stretch + tail;
        let contents = one.contents(range, self.scheduler.sequence(id).tokens(), block_size).zip(&fetch.blocks);
        let wanted = contents.map(|((parent, key, tokens), &block)| {
            let part = BlockPart::whole(block);
            Wanted { key, parent, tokens, part }
        });
        tier.fetch(fetch.id, wanted.collect(), None, None);
        let waits = Waits::new(plan.admitted.remove(index), false, [of_tier]);
        self.waiting.insert(fetch.id, waits);
    }

    /// Stages the computed blocks of long sequences for writing, and has the tier keep what is on disk of those
    /// sequences.
    pub(super) fn store_long(&mut self) {
        let block_size = self.scheduler.blocks().block_size();
        let long = &mut self.long;
        let Some((_, tier)) = frame_tier(&mut self.tiers).filter(|_| !long.is_empty()) else { return };
        long.retain(|&id, _| {
            let is_alive = self.scheduler.knows(id);
            if !is_alive {
                tier.release_frames(id.0);
            }
            is_alive
        });
        let Some(blocks) = self.runner.block_bytes() else { return };
        for id in self.scheduler.running_long() {
            let Some(one) = long.get_mut(&id) else { continue };
            let (sequence, manager) = (self.scheduler.sequence(id), self.scheduler.blocks());
            let (below, computed) = (manager.blocks_below(id), manager.computed_blocks(id));
            let (stretch, full) = (STRETCH / block_size, below + computed.len());
            one.name(tier.key_chain(), sequence.tokens(), block_size, full);
            for index in (tier.kept_frames(id.0) * stretch).max(below)..full {
                if tier.has(one.keys[index + 1]) {
                    continue;
                }
                let tokens = sequence.tokens()[index * block_size..(index + 1) * block_size].into();
                let label = BlockLabel { key: one.keys[index + 1], parent: one.keys[index], owner: one.owner, tokens };
                if !tier.stage_needed(label, computed[index - below], blocks) {
                    break;
                }
            }
            let kept = one.keep(tier, sequence, block_size, full);
            self.scheduler.get_mut(id).into_iter().for_each(|sequence| sequence.kept = Some(kept));
        }
    }

    /// Flushes writes that sequences wait for, and fails sequences whose writes the disk does not take.
    pub(super) fn hurry_long(&mut self, plan: &StepPlan) {
        let long = &mut self.long;
        let Some((_, tier)) = frame_tier(&mut self.tiers) else { return };
        let go_on = long.iter_mut().filter(|(id, _)| !plan.waits_for_disk.contains(id));
        go_on.for_each(|(_, one)| one.waits_since = None);
        if plan.waits_for_disk.is_empty() {
            return;
        }
        tier.flush();
        let (now, is_paused) = (Instant::now(), tier.figures().is_paused());
        let waits = plan.waits_for_disk.iter().filter(|id| {
            let since = long.get_mut(id).map(|one| *one.waits_since.get_or_insert(now));
            since.is_some_and(|since| is_paused || now.duration_since(since) > PATIENCE)
        });
        for id in waits.copied().collect::<Vec<_>>() {
            let reason = "its KV is longer than memory, and the disk of --kv-disk does not take more of it";
            self.fail_sequence(id, reason);
        }
    }

    /// Handles the loss of KV on disk of the sequence at entry `lost.sequence` of the plan. The sequence computes its
    /// KV again, or fails if it has lost KV too often. So do those whose states the pass may have changed in place.
    pub(super) fn recover_lost(&mut self, plan: &StepPlan, lost: &KvLost) {
        let id = plan.entries[lost.sequence].id;
        self.scheduler.restart_changed(plan);
        let long = &mut self.long;
        let Some((_, tier)) = frame_tier(&mut self.tiers) else { return };
        tier.release_frames(id.0);
        let losses = long.get_mut(&id).map_or(LOSSES_MAX, |one| {
            one.losses += 1;
            one.losses
        });
        if losses >= LOSSES_MAX {
            self.fail_sequence(id, &lost.to_string());
        } else if !self.scheduler.is_waiting(id) {
            self.scheduler.restart(id);
        }
    }

    fn fail_sequence(&mut self, id: SequenceId, reason: &str) {
        if let Some(sequence) = self.scheduler.remove(id) {
            tracing::warn!("{id} fails: {reason}");
            self.fail(sequence, &RequestError::Forward(reason.to_owned()));
        }
    }
}

/// The frames of KV below memory that a pass reads.
pub(super) struct KeptFrames<'a> {
    pub(super) tier: &'a mut dyn FrameTier,
    /// The sequences whose KV the batch uses, in the order of the batch.
    pub(super) owners: Vec<SequenceId>,
}

impl KvBelow for KeptFrames<'_> {
    fn begin(&mut self, frames: &[FrameId]) {
        let of = |&FrameId { sequence, layer, stretch }: &FrameId| FrameOf {
            owner: self.owners[sequence].0,
            frame: stretch,
            layer,
        };
        self.tier.begin_frames(&mut frames.iter().map(of));
    }

    fn next(&mut self) -> Result<KvFrame, KvLost> {
        match self.tier.next_frame() {
            Ok((buffer, len)) => Ok(KvFrame::new(buffer, len)),
            Err(lost) => {
                let sequence = self.owners.iter().position(|owner| owner.0 == lost.of.owner);
                Err(KvLost { sequence: sequence.unwrap_or(0), reason: lost.reason })
            }
        }
    }
}

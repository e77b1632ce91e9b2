//! A sequence that is longer than memory keeps most of its KV on disk. The engine writes its computed blocks, keeps
//! them there for the sequence, and has passes read them.

use std::time::{Duration, Instant};

use interbed_device::KvFrame;
use interbed_kernels::STRETCH;
use interbed_kv::{
    BlockBytes, BlockId, BlockKey, BlockLabel, BlockManager, BlockPart, FrameOf, FrameTier, KeptTails, KeyChain,
    MissingKeys, SequenceId, Wanted, WantedTails,
};
use interbed_model::{FrameId, KvBelow, KvLost};

use super::Worker;
use super::attached_tier::frame_tier;
use super::below::Waits;
use crate::scheduler::{Parting, StepPlan};
use crate::sequence::Sequence;
use crate::{FoundBelow, RequestError};

/// The longest time for which a sequence waits until the disk has taken blocks that memory has no room for.
const PATIENCE: Duration = Duration::from_secs(20);

/// The number of times at which a sequence that loses KV on disk fails. After fewer losses, it computes the lost KV
/// again.
const LOSSES_MAX: u32 = 16;

/// The number of times in a row that a sequence tries to go on behind tails on disk. If none of them brings the tails
/// to memory, the sequence begins with its first token.
const TRIES_MAX: u32 = 8;

/// The longest time for which a sequence that comes back waits for tails that are still being written.
const WRITES_AWAITED: Duration = Duration::from_secs(2);

/// The time after which such a sequence asks for the first time whether they are written. It asks seldom, because to
/// ask takes the keys of all its blocks.
const FIRST_ASKED: Duration = Duration::from_millis(20);

/// A sequence that is longer than memory.
pub(super) struct LongSequence {
    /// The key of the chain's root, followed by the key of each full block, as far as keys were needed.
    keys: Vec<BlockKey>,
    owner: BlockKey,
    /// The time since which the sequence has waited for the disk, if it waits.
    waits_since: Option<Instant>,
    losses: u32,
    /// The number of blocks behind which the tier has tails of this sequence; 0 if it has none.
    point: usize,
    /// The number of times in a row that tails on disk did not come to memory.
    tries: u32,
    /// The tails that the sequence, which has come back, waits for; `None` if it does not wait.
    coming: Option<Coming>,
}

/// Tails that a sequence waits for, because they are still being written.
#[derive(Debug, Clone, Copy)]
struct Coming {
    /// The time since which the sequence waits.
    since: Instant,
    /// The time at which the sequence asks again.
    asks_at: Instant,
}

/// The KV of all tokens of a sequence that is longer than memory, as far as the sequence is computed.
struct Trunk<'a> {
    tokens: &'a [u32],
    /// The number of leading blocks that are not in memory.
    below: usize,
    /// The blocks after these.
    held: &'a [BlockId],
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

    /// Returns whether the sequence should wait, because tails behind more than the `found` contents of `keys`, behind
    /// which it can go on now, are still being written.
    fn awaits_tails(&mut self, keys: &MissingKeys, found: usize, tier: &dyn FrameTier) -> bool {
        let (now, waits) = (Instant::now(), self.coming.take());
        if keys.tails().is_none() || tier.figures().is_paused() {
            return false;
        }
        let since = waits.map_or(now, |waits| waits.since);
        let coming = keys.keys().iter().take_while(|&&key| tier.has(key)).count();
        let is_coming = || keys.usable(coming, tier.key_chain(), |key| tier.has(key)) > found;
        if now - since >= WRITES_AWAITED || coming <= found || !is_coming() {
            return false;
        }
        self.coming = Some(Coming { since, asks_at: now + FIRST_ASKED + (now - since) });
        true
    }

    /// Stages those of the blocks in memory from number `first` on that `tier` lacks. Returns whether it has, or is
    /// about to have, all of them.
    fn store(
        &mut self,
        Trunk { tokens, below, held }: Trunk<'_>,
        first: usize,
        tier: &mut dyn FrameTier,
        blocks: &mut dyn BlockBytes,
        block_size: usize,
    ) -> bool {
        self.name(tier.key_chain(), tokens, block_size, below + held.len());
        (first.max(below)..below + held.len()).all(|index| {
            let (parent, key) = (self.keys[index], self.keys[index + 1]);
            if tier.has(key) {
                return true;
            }
            let tokens = tokens[index * block_size..(index + 1) * block_size].into();
            let label = BlockLabel { key, parent, owner: self.owner, tokens };
            tier.stage_needed(label, BlockPart::whole(held[index - below]), blocks)
        })
    }

    /// Stages `tails`, which are those of a sequence that begins with `tokens`, if there are buffers for all parts of
    /// them.
    fn store_tails(
        &mut self,
        tokens: &[u32],
        KeptTails { count, blocks: held }: KeptTails,
        tier: &mut dyn FrameTier,
        blocks: &mut dyn BlockBytes,
        manager: &BlockManager,
    ) {
        let block_size = manager.block_size();
        self.name(tier.key_chain(), tokens, block_size, count);
        let keys = manager.keys_below(&self.keys[1..=count], count);
        let of_block = |index: usize| tokens[index * block_size..(index + 1) * block_size].into();
        let Some(tails) = WantedTails::new(&keys, held, of_block) else { return };
        let parts = tails.behind(0, &[], tier.key_chain());
        // A part is of no use without the others.
        if parts.len() > tier.room() {
            return;
        }
        let mut staged = parts.into_iter().map(|Wanted { key, parent, tokens, part }| {
            let label = BlockLabel { key, parent, owner: self.owner, tokens };
            tier.has(key) || tier.stage_needed(label, part, blocks)
        });
        if staged.all(|is_staged| is_staged) {
            self.point = count;
        }
    }
}

impl Worker {
    /// Resumes sequence `id`, which was just admitted and is longer than memory, behind the KV that it has on disk. If
    /// layers keep tails, the sequence goes on where the disk has them too. What it computes up to the end of its KV on
    /// disk need not be written again.
    pub(super) fn resume_long(&mut self, id: SequenceId, plan: &mut StepPlan, index: usize) {
        let (manager, long) = (self.scheduler.blocks(), &mut self.long);
        let (block_size, keeps_tails) = (manager.block_size(), manager.keeps_tails());
        let Some((of_tier, tier)) = frame_tier(&mut self.tiers) else { return };
        let sequence = self.scheduler.sequence(id);
        let root = sequence.hashes.root();
        let one = long.entry(id).or_insert_with(|| LongSequence {
            keys: vec![tier.key_chain().root(root)],
            owner: tier.key_chain().owner(sequence.request.tenant.map(|tenant| tenant.0)),
            waits_since: None,
            losses: 0,
            point: 0,
            tries: 0,
            coming: None,
        });
        // The last token is always computed.
        let full = if one.tries < TRIES_MAX { (sequence.len() - 1) / block_size } else { 0 };
        one.tries %= TRIES_MAX;
        one.name(tier.key_chain(), sequence.tokens(), block_size, full);
        let keys = manager.keys_below(&one.keys[1..=full], 0);
        let found = tier.look_up(&keys, None);
        if one.awaits_tails(&keys, found, tier) {
            tier.flush();
            plan.admitted.remove(index);
            self.scheduler.restart(id);
            self.scheduler.get_mut(id).into_iter().for_each(|sequence| sequence.awaits_tails = true);
            return;
        }
        let stretch = STRETCH / block_size;
        // Tails come with a block of the trunk or more, because a fetch says how many of these it has filled.
        let most = if keeps_tails { found.saturating_sub(1) } else { full } / stretch;
        let kept = one.keep(tier, sequence, block_size, found).min(most);
        let tail = found.saturating_sub(kept * stretch);
        let (tokens, loaded) = (found * block_size, kept * STRETCH);
        plan.admitted[index].below = vec![FoundBelow { tier: tier.name(), tokens, loaded, ..FoundBelow::default() }];
        one.point = if keeps_tails { found } else { 0 };
        let fetch = if keeps_tails && tail > 0 {
            let Some(fetch) = self.scheduler.fetch_long(id, kept, tail, plan) else {
                // There will be room again.
                one.tries += 1;
                plan.admitted.remove(index);
                return self.scheduler.restart(id);
            };
            fetch
        } else {
            self.scheduler.resume_long(id, kept);
            plan.admitted[index].cached = kept * STRETCH;
            let tail = self.scheduler.take_blocks_to_fetch(id, tail);
            let Some(fetch) = (tail > 0).then(|| self.scheduler.begin_fetch(id, tail, plan)).flatten() else { return };
            fetch
        };
        let (manager, sequence) = (self.scheduler.blocks(), self.scheduler.sequence(id));
        let first = kept * stretch;
        let contents = one.contents(first..first + fetch.blocks.len(), sequence.tokens(), block_size);
        let wanted = contents.zip(&fetch.blocks).map(|((parent, key, tokens), &block)| {
            let part = BlockPart::whole(block);
            Wanted { key, parent, tokens, part }
        });
        let keys = manager.keys_below(&one.keys[1..=found], first);
        let tails = WantedTails::new(&keys, fetch.tails, |index| self.scheduler.block_tokens(id, index).into());
        tier.fetch(fetch.id, wanted.collect(), tails, None);
        let waits = Waits::new(plan.admitted.remove(index), false, [of_tier]);
        self.waiting.insert(fetch.id, waits);
    }

    /// Lets sequences that wait for tails on disk be admitted once it is time to ask for them again.
    pub(super) fn ask_for_tails(&mut self) {
        let now = Instant::now();
        for (&id, Coming { asks_at, .. }) in self.long.iter().filter_map(|(id, one)| Some((id, one.coming?))) {
            self.scheduler.get_mut(id).into_iter().for_each(|sequence| sequence.awaits_tails = asks_at > now);
        }
    }

    /// Returns whether any sequence waits until it asks again for tails on disk.
    pub(super) fn awaits_tails(&self) -> bool {
        let now = Instant::now();
        self.long.values().any(|one| one.coming.is_some_and(|coming| coming.asks_at > now))
    }

    /// Returns whether sequence `id`, whose fetch has ended, goes on behind what has come. If the sequence is longer
    /// than memory and lacks its tails, because the fetch has not brought all of them, it begins again.
    pub(super) fn goes_on(&mut self, id: SequenceId, has_all: bool) -> bool {
        let keeps_tails = self.scheduler.blocks().keeps_tails();
        let Some(one) = self.long.get_mut(&id).filter(|_| keeps_tails) else { return true };
        one.tries = if has_all { 0 } else { one.tries + 1 };
        if !has_all {
            self.scheduler.restart(id);
        }
        has_all
    }

    /// Stages the computed blocks of long sequences for writing, with what others need to go on behind them, and has
    /// the tier keep what is on disk of those sequences.
    pub(super) fn store_long(&mut self) {
        let partings = self.scheduler.take_partings();
        let Self { long, tiers, scheduler, runner, .. } = self;
        let Some((_, tier)) = frame_tier(tiers).filter(|_| !long.is_empty()) else { return };
        if let Some(blocks) = runner.block_bytes() {
            for Parting { id, tokens, below, trunk, tails } in partings {
                let Some(one) = long.get_mut(&id) else { continue };
                let all = Trunk { tokens: &tokens, below, held: &trunk };
                if one.store(all, below, tier, blocks, scheduler.blocks().block_size()) {
                    one.store_tails(&tokens, tails, tier, blocks, scheduler.blocks());
                }
            }
        }
        long.retain(|&id, _| {
            let is_alive = scheduler.knows(id);
            if !is_alive {
                tier.release_frames(id.0);
            }
            is_alive
        });
        let Some(blocks) = runner.block_bytes() else { return };
        // Until copies are made, what was moved is not where the tables say.
        if scheduler.blocks().has_copies() {
            return;
        }
        for id in scheduler.running_long() {
            let Some(one) = long.get_mut(&id) else { continue };
            let (sequence, manager) = (scheduler.sequence(id), scheduler.blocks());
            // Tails come first, because they find room together, or none of them does.
            let tails = manager.kept_tails(id).filter(|tails| manager.is_point_below(id, one.point, tails.count));
            if let Some(tails) = tails {
                one.store_tails(sequence.tokens(), tails, tier, blocks, manager);
            }
            let (below, held) = (manager.blocks_below(id), manager.computed_blocks(id));
            let (block_size, full) = (manager.block_size(), below + held.len());
            let first = tier.kept_frames(id.0) * (STRETCH / block_size);
            one.store(Trunk { tokens: sequence.tokens(), below, held }, first, tier, blocks, block_size);
            let kept = one.keep(tier, sequence, block_size, full);
            scheduler.get_mut(id).into_iter().for_each(|sequence| sequence.kept = Some(kept));
        }
    }

    /// Flushes writes that sequences wait for, and fails running sequences whose writes the disk does not take.
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
        let running = plan.waits_for_disk.iter().filter(|&&id| !self.scheduler.is_waiting(id));
        let waits = running.filter(|id| {
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

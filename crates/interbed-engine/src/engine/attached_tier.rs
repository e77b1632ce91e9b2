//! A tier below memory that the engine uses, and the blocks that wait to be written to it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use interbed_kv::{
    BlockBytes, BlockId, BlockKey, BlockLabel, BlockPart, Evicted, FetchEnded, FetchId, FrameTier, LowerTier, Wanted,
    WantedPoint, WantedTails,
};

use super::idle_blocks::IdleBlocks;
use crate::scheduler::Scheduler;
use crate::status::TierStatus;
use crate::tier_policy::{StoreMode, TierPolicy};
use crate::tiers_below::TierBelow;

/// The class of blocks that are stored before anything is known of their use.
const FRESH: u8 = u8::MAX;

/// The class of blocks that are stored because nobody has used them for a while.
const IDLE: u8 = u8::MAX - 1;

/// The class of what sequences need to go on behind contents, besides the KV of all tokens.
const POINT: u8 = u8::MAX - 2;

/// The blocks that memory has given up, and the computed blocks that tiers below memory may store.
pub(super) struct Gone {
    pub(super) evicted: Vec<Evicted>,
    /// Blocks that were computed and are to be stored at once.
    pub(super) computed: Vec<(BlockId, BlockKey)>,
    /// Blocks that were computed and are to be stored when they have been idle for a while.
    pub(super) unstored: Vec<(BlockId, BlockKey)>,
    /// What sequences need to go on behind contents that memory has given up, content by content.
    pub(super) evicted_points: Vec<Vec<Evicted>>,
    /// Blocks behind whose contents sequences are likely to go on.
    pub(super) points: Vec<WantedPoint>,
}

/// A tier below memory, and the blocks that wait to be written to it.
pub(super) struct AttachedTier {
    pub(super) tier: Box<dyn LowerTier>,
    policy: TierPolicy,
    /// The blocks that are to be stored when there are buffers for them, the oldest first.
    fresh: VecDeque<(BlockId, BlockKey)>,
    /// The most blocks that `fresh` holds.
    fresh_max: usize,
    idle: IdleBlocks,
    /// The blocks behind whose contents sequences may go on, until what they need for that is stored.
    points: IdleBlocks,
    /// The number of parts that the first of `points` needs, if they found no room together.
    head_parts: usize,
    status: TierStatus,
}

impl AttachedTier {
    /// Creates the state for an engine with `num_blocks` blocks in memory.
    pub(super) fn new(TierBelow { tier, policy }: TierBelow, num_blocks: usize) -> Self {
        let idle_max = policy.idle_after.map_or(0, |_| num_blocks);
        Self {
            status: TierStatus { name: tier.name(), ..TierStatus::default() },
            tier,
            fresh: VecDeque::new(),
            fresh_max: if policy.drops_fresh { num_blocks } else { usize::MAX },
            idle: IdleBlocks::new(policy.idle_after.unwrap_or_default(), idle_max),
            points: match (policy.mode, policy.idle_after) {
                (StoreMode::Evict, None) => IdleBlocks::new(Duration::ZERO, 0),
                (StoreMode::Evict, Some(after)) => IdleBlocks::new(after, num_blocks),
                _ => IdleBlocks::new(Duration::ZERO, num_blocks),
            },
            head_parts: 0,
            policy,
        }
    }

    pub(super) fn status(&self) -> TierStatus {
        TierStatus { store: self.tier.figures(), fresh_blocks: self.fresh.len(), ..self.status }
    }

    /// Returns whether no block waits to be written and nothing is in flight.
    pub(super) fn is_settled(&self) -> bool {
        self.fresh.is_empty() && self.idle.is_empty() && self.points.is_empty() && self.tier.is_settled()
    }

    /// Returns how many of the first `found` blocks are to be computed rather than read, where `parts` more must be
    /// read with them. Computing all of the blocks takes `computing` seconds, if that is known.
    pub(super) fn recomputed(&mut self, found: usize, parts: usize, computing: Option<f64>) -> usize {
        let reading = self.tier.read_seconds(found + parts);
        let computed = self.policy.recompute.blocks(found, reading, computing);
        self.status.recomputed += u64::from(found > 0 && computed == found);
        computed
    }

    /// Begins to read `wanted`. Computing these blocks takes `computing` seconds, if that is known. `is_shared` says
    /// whether the blocks in front of them are computed meanwhile.
    pub(super) fn fetch(
        &mut self,
        id: FetchId,
        (wanted, tails): (Vec<Wanted>, Option<WantedTails>),
        computing: Option<f64>,
        is_shared: bool,
    ) {
        self.status.shared += u64::from(is_shared);
        self.tier.fetch(id, wanted, tails, computing);
    }

    /// Counts a fetch that has ended. Its blocks have `block_size` tokens each.
    pub(super) fn note_fetch(&mut self, ended: &FetchEnded, block_size: usize) {
        self.status.fetches += 1;
        self.status.fetch_seconds += ended.seconds;
        self.status.fetches_cut += u64::from(ended.filled < ended.wanted);
        self.status.asked_tokens += (ended.wanted * block_size) as u64;
        self.status.fetched_tokens += (ended.filled * block_size) as u64;
    }

    /// Stages what is to be stored, as far as there are buffers: what points need that were given up, blocks that were
    /// evicted, what other points need, blocks that were computed, and blocks that have been idle.
    pub(super) fn store(&mut self, gone: &Gone, scheduler: &Scheduler, blocks: &mut dyn BlockBytes) {
        let Self { tier, policy, fresh, fresh_max, idle, points, .. } = self;
        let now = Instant::now();
        // A part of a point is of no use without the others.
        for parts in &gone.evicted_points {
            if parts.len() <= tier.room() {
                let parts = parts.iter().map(|Evicted { part, label, .. }| (label.clone(), *part));
                stage_point(tier.as_mut(), parts, blocks);
            }
        }
        for Evicted { part, label, class } in &gone.evicted {
            if tier.wants(label.key, *class) {
                tier.stage(label.clone(), *class, *part, blocks);
            }
        }
        // A tier that does not keep the KV of answers has no use for what follows it.
        let keeps_answers = policy.mode != StoreMode::Eager || policy.idle_after.is_some();
        let of_use = gone.points.iter().filter(|point| keeps_answers || !point.is_of_answer);
        points.add(of_use.map(|point| (point.block, point.key)), now);
        if policy.mode == StoreMode::Evict {
            idle.add(gone.computed.iter().copied(), now);
        } else {
            fresh.extend(&gone.computed);
        }
        fresh.drain(..fresh.len().saturating_sub(*fresh_max));
        idle.add(gone.unstored.iter().copied(), now);
        // First, because what a point needs finds room together, or none of it does.
        self.store_points(scheduler, blocks, now);
        let Self { tier, fresh, idle, .. } = self;
        // A quarter of the buffers is left for evicted blocks.
        let kept = tier.buffers() / 4;
        while tier.room() > kept
            && let Some((block, key)) = fresh.pop_front()
        {
            if let Some(label) = scheduler.label(block, key)
                && tier.wants(key, FRESH)
            {
                tier.stage(label, FRESH, BlockPart::whole(block), blocks);
            }
        }
        while tier.room() > kept
            && let Some((block, key)) = idle.take(now)
        {
            let Some(label) = scheduler.label(block, key) else { continue };
            if scheduler.blocks().is_held(block) && !idle.is_hurried() {
                idle.add([(block, key)], now);
            } else if tier.wants(key, IDLE) {
                tier.stage(label, IDLE, BlockPart::whole(block), blocks);
            }
        }
    }

    /// Stores what sequences need to go on behind contents, as far as there are buffers for all that one content needs.
    fn store_points(&mut self, scheduler: &Scheduler, blocks: &mut dyn BlockBytes, now: Instant) {
        let Self { tier, points, head_parts, .. } = self;
        // Until copies are made, what was moved is not where the tables say.
        if scheduler.blocks().has_copies() {
            return;
        }
        while let Some((block, key)) = points.next(now) {
            let is_there = scheduler.blocks().key(block) == Some(key);
            if is_there && *head_parts > tier.room() {
                return;
            }
            let parts = scheduler.blocks().point_parts(block).filter(|_| is_there).unwrap_or_default();
            // What finds no room even in empty buffers is not stored.
            let fits = parts.len() <= tier.buffers();
            if fits && parts.len() > tier.room() {
                *head_parts = parts.len();
                return;
            }
            *head_parts = 0;
            points.take(now);
            if fits {
                stage_point(tier.as_mut(), parts, blocks);
            }
        }
    }

    /// Makes all idle blocks due for storing now, because the engine stops.
    pub(super) fn hurry(&mut self) {
        [&mut self.idle, &mut self.points].into_iter().for_each(|blocks| blocks.hurry(Instant::now()));
    }
}

/// Stages those parts of a point that `tier` lacks.
fn stage_point(
    tier: &mut dyn LowerTier,
    parts: impl IntoIterator<Item = (BlockLabel, BlockPart)>,
    blocks: &mut dyn BlockBytes,
) {
    for (label, part) in parts {
        if tier.lacks(label.key) {
            tier.stage(label, POINT, part, blocks);
        }
    }
}

/// Returns the nearest tier that keeps sequences which are longer than memory, with its index.
pub(super) fn frame_tier(tiers: &mut [AttachedTier]) -> Option<(usize, &mut dyn FrameTier)> {
    tiers.iter_mut().enumerate().find_map(|(index, tier)| Some((index, tier.tier.frames()?)))
}

//! The cache where layers keep tails: trunk blocks and tail blocks of several sizes under one budget, and the resume
//! points.

use super::{Cache, Taker};
use crate::{
    block_bytes::BlockPart,
    contents::ContentId,
    ids::{BlockId, SwapSlot},
    key::BlockLabel,
    losses::Loss,
    names::WantedPoint,
    resume_points::Lasts,
    tail_table::TailTable,
    tails::Tails,
};

/// The memory that a sequence would take out of what is available.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Need {
    /// Number of trunk blocks that must be taken.
    pub(crate) fresh: usize,
    /// Number of cached trunk blocks that would be in use again.
    pub(crate) revived: usize,
    /// The bytes of the tail blocks that must be taken, or that would be in use again.
    pub(crate) tail_bytes: usize,
}

/// What is left of a resume point that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// The contents that led to this point and lead to no other, each before the content that it continues.
    pub(super) useless: Vec<ContentId>,
    /// Whether the point was wanted. True in models without tail groups, whose contents all count as wanted points.
    pub(super) was_wanted: bool,
}

impl Cache {
    pub(crate) fn tails(&self) -> Option<&Tails> {
        self.tails.as_deref()
    }

    pub(crate) fn tails_mut(&mut self) -> Option<&mut Tails> {
        self.tails.as_deref_mut()
    }

    /// Returns the number of units that `need` takes out of the available ones, rounded up.
    pub(crate) fn cost(&self, need: Need) -> usize {
        let blocks = need.fresh + need.revived;
        self.tails().map_or(blocks, |tails| tails.units(blocks * tails.block_bytes + need.tail_bytes))
    }

    /// Returns whether enough memory is available for `need`, and `reserve` units besides.
    pub(crate) fn fits(&self, need: Need, reserve: usize) -> bool {
        let blocks = need.fresh + need.revived;
        let Some(tails) = self.tails() else { return blocks + reserve <= self.unused() };
        let bytes = blocks * tails.block_bytes + need.tail_bytes + reserve * tails.unit_bytes;
        // Blocks that take no memory are still limited in number.
        blocks <= self.unused() + self.blocks.num_withdrawn() && bytes <= self.available_bytes(tails)
    }

    /// Returns the bytes of the budget that no held block takes.
    pub(super) fn available_bytes(&self, tails: &Tails) -> usize {
        let used = self.blocks.present() - self.unused();
        tails.usable_bytes().saturating_sub(used * tails.block_bytes + tails.held_bytes())
    }

    /// Returns how many of `blocks`, which a look-up has found, a sequence can share: those up to the last resume
    /// point, or all of them if no layer keeps tails.
    pub(crate) fn resumable(&self, blocks: &[BlockId]) -> usize {
        let Some(tails) = self.tails() else { return blocks.len() };
        let is_point = |block: &BlockId| tails.points.contains(self.blocks.content(*block));
        blocks.iter().rposition(is_point).map_or(0, |last| last + 1)
    }

    /// Returns the content of the trunk block `block`, which must have one.
    pub(crate) fn content_of(&self, block: BlockId) -> ContentId {
        self.blocks.content(block)
    }

    /// Takes a tail block of pool number `pool`, with one holder.
    ///
    /// # Panics
    /// Panics if too little memory is [available](Self::fits); callers check that first.
    pub(crate) fn take_tail(&mut self, pool: usize, taker: Taker) -> BlockId {
        loop {
            let spare = self.spare_bytes();
            let one = &mut self.tails_mut().expect("there are pools").pools[pool];
            if let Some(block) = one.take() {
                return block;
            }
            match spare >= one.block_bytes() && one.present() < one.len() {
                true => one.grow(),
                false => self.give_up(Some(taker)),
            }
        }
    }

    /// Takes a tail block in the way of [`take_tail`](Self::take_tail), or returns `None` if too little memory is
    /// available.
    pub(crate) fn try_take_tail(&mut self, pool: usize, taker: Taker) -> Option<BlockId> {
        let tail_bytes = self.tails()?.pools[pool].block_bytes();
        self.fits(Need { tail_bytes, ..Need::default() }, 0).then(|| self.take_tail(pool, taker))
    }

    /// Takes a trunk block, which is then in no list and holds no content.
    pub(super) fn vacate_beside_tails(&mut self, taker: Taker) -> BlockId {
        loop {
            if let Some(block) = self.blocks.take() {
                return block;
            }
            let needed = self.tails().map_or(0, |tails| tails.block_bytes);
            match self.spare_bytes() >= needed && self.blocks.present() < self.blocks.len() {
                true => self.blocks.set_usable(self.blocks.usable() + 1),
                false if needed == 0 => return self.evict(Some(taker)),
                false => self.give_up(Some(taker)),
            }
        }
    }

    /// Gives back memory above the budget, as [`withdraw_excess_bytes`](Self::withdraw_excess_bytes) does. The manager
    /// calls it after it has released tail blocks.
    pub(crate) fn settle(&mut self) {
        if self.tails.is_some() {
            self.withdraw_excess_bytes();
        }
    }

    /// Takes memory away from blocks that nobody holds, until all blocks fit into the budget.
    pub(super) fn withdraw_excess_bytes(&mut self) {
        while let Some(tails) = self.tails()
            && self.present_bytes(tails) > tails.usable_bytes()
        {
            let cached_bytes = self.policy.len() * tails.block_bytes + tails.cached_bytes();
            if !self.withdraw_any() {
                if cached_bytes == 0 {
                    return;
                }
                self.give_up(None);
            }
        }
    }

    /// Makes the content of the last block of `chain` a resume point, unless it is one, and makes the point last for
    /// the reason `lasts`. `chain` is all trunk blocks of a sequence up to there, which must be findable. `tables`
    /// holds the tail blocks that a sequence needs to go on behind them, one table for each tail group.
    pub(crate) fn add_point(&mut self, chain: &[BlockId], tables: &[TailTable], lasts: Lasts) {
        let Self { tails: Some(tails), blocks, contents, block_size, .. } = self else { return };
        let Some(&last) = chain.last() else { return };
        let content = blocks.content(last);
        if !tails.points.contains(content) {
            for (pool, table) in tails.pools.iter_mut().zip(tables) {
                let first = chain.len() - pool.keeps().tail_blocks(chain.len(), *block_size);
                for (index, &of) in chain.iter().enumerate().skip(first) {
                    let block = match table {
                        TailTable::Window(window) => window.block(index),
                        TailTable::State(state) => state.from.expect("something is computed"),
                    };
                    pool.pin(blocks.content(of), block);
                }
            }
            tails.points.add(content, |content| contents.parent_content(content));
        }
        tails.points.make_lasting(content, lasts);
    }

    /// Removes a holder of the tail block `block` of pool number `pool`. The caller then calls
    /// [`settle`](Self::settle).
    pub(crate) fn release_tail(&mut self, pool: usize, block: BlockId) {
        if let Some(tails) = self.tails_mut() {
            tails.pools[pool].release(block);
        }
    }

    /// Adds a holder to a trunk block or tail block, which must have one.
    pub(crate) fn hold_any(&mut self, block: BlockId) {
        match self.tails.as_mut().and_then(|tails| tails.pool_of_mut(block)) {
            Some(pool) => pool.hold(block),
            None => self.hold(block),
        }
    }

    /// Removes a holder of a trunk block or tail block.
    pub(crate) fn release_any(&mut self, block: BlockId) {
        match self.tails.as_mut().and_then(|tails| tails.pool_of_mut(block)) {
            Some(pool) => pool.release(block),
            None => self.release(block),
        }
    }

    /// Takes a slot for a part of a tail block, with one holder.
    ///
    /// # Panics
    /// Panics if no slot is free; callers check that first.
    pub(crate) fn take_tail_slot(&mut self) -> SwapSlot {
        self.slots.take_for_tail()
    }

    /// Returns how many tables and transfers hold the tail block `block` of pool number `pool`.
    pub(crate) fn tail_holders(&self, pool: usize, block: BlockId) -> u32 {
        self.tails().map_or(0, |tails| tails.pools[pool].holders(block))
    }

    /// Returns whether a resume point needs the tail block `block` of pool number `pool`.
    pub(crate) fn is_pinned(&self, pool: usize, block: BlockId) -> bool {
        self.tails().is_some_and(|tails| tails.pools[pool].content(block).is_some())
    }

    /// Returns for which reason a resume point behind the first `num_blocks` blocks lasts because of its position
    /// alone: what [`Tails::milestone`] says, or [`Lasts::No`] if no layer keeps tails.
    pub(crate) fn milestone(&self, num_blocks: usize) -> Lasts {
        self.tails().map_or(Lasts::No, |tails| tails.milestone(num_blocks))
    }

    /// Notes that a hit has ended at the content of `block`, which is a resume point.
    pub(crate) fn note_hit(&mut self, block: BlockId) {
        let content = self.blocks.content(block);
        self.tails.iter_mut().for_each(|tails| tails.points.hit(content));
    }

    /// Makes the last resume point among the contents of `chain`, if there is one, lasting for the reason
    /// [`Lasts::OfAnswer`].
    pub(crate) fn keep_last_point(&mut self, chain: &[BlockId]) {
        let resumable = self.resumable(chain);
        if let (Some(tails), Some(last)) = (&mut self.tails, resumable.checked_sub(1)) {
            tails.points.make_lasting(self.blocks.content(chain[last]), Lasts::OfAnswer);
        }
    }

    /// Ends the resume point at the content whose state is in the tail block `block` of pool number `pool`.
    pub(crate) fn drop_point_of_state(&mut self, pool: usize, block: BlockId) {
        if let Some(content) = self.tails().and_then(|tails| tails.pools[pool].content(block)) {
            self.tails.iter_mut().for_each(|tails| tails.given_up += 1);
            self.drop_point(content, Loss::Withdrawn);
        }
    }

    /// Ends the resume point `content`. Contents that lead to no other point are forgotten if nobody holds them, with
    /// the reason `loss`.
    fn drop_point(&mut self, content: ContentId, loss: Loss) {
        let Ended { useless, was_wanted } = self.end_point(content);
        self.forget_useless(useless, loss, was_wanted);
    }

    /// Ends the resume point at `content`, if there is one. If it was wanted, tiers below memory learn of it.
    pub(super) fn end_point(&mut self, content: ContentId) -> Ended {
        let Some(tails) = self.tails() else { return Ended { useless: Vec::new(), was_wanted: true } };
        let was_wanted = tails.points.is_wanted(content);
        if !tails.points.contains(content) {
            return Ended { useless: Vec::new(), was_wanted };
        }
        if let Some(block) = self.contents.block(content).filter(|_| was_wanted)
            && let Some(parts) = self.point_parts(block)
            && let Some(names) = &mut self.names
        {
            names.evict_point(parts, self.policy.class(block));
        }
        let Self { tails: Some(tails), contents, block_size, .. } = self else {
            return Ended { useless: Vec::new(), was_wanted };
        };
        for pool in &mut tails.pools {
            let mut last = Some(content);
            for _ in 0..pool.keeps().tail_blocks(usize::MAX, *block_size) {
                let Some(content) = last else { break };
                pool.unpin(content);
                last = contents.parent_content(content);
            }
        }
        Ended { useless: tails.points.remove(content, |content| contents.parent_content(content)), was_wanted }
    }

    /// Returns the points that have become wanted since the last call, without those that have ended. Returns none
    /// unless contents have keys.
    pub(crate) fn take_wanted_points(&mut self) -> Vec<WantedPoint> {
        let Self { tails: Some(tails), contents, names: Some(names), .. } = self else { return Vec::new() };
        let wanted = tails.points.take_wanted().into_iter().filter(|&content| tails.points.is_wanted(content));
        let block = |content| {
            let block = contents.block(content)?;
            Some(WantedPoint { block, key: names.key(block), is_of_answer: tails.points.is_of_answer(content) })
        };
        wanted.filter_map(block).collect()
    }

    /// Returns the parts of tail blocks that a sequence needs to go on behind the content of the trunk block `block`,
    /// each with its label. Returns `None` if the content is no resume point, or contents have no keys.
    pub(crate) fn point_parts(&self, block: BlockId) -> Option<Vec<(BlockLabel, BlockPart)>> {
        let (tails, names) = (self.tails()?, self.names.as_ref()?);
        let point = self.blocks.content_of(block).filter(|&content| tails.points.contains(content))?;
        let mut parts = Vec::new();
        for (group, pool) in (0..).zip(&tails.pools) {
            let mut last = Some(point);
            for _ in 0..pool.keeps().tail_blocks(usize::MAX, self.block_size) {
                let Some(content) = last else { break };
                let (block, companion) = (self.contents.block(content)?, pool.companion(content)?);
                let tokens = self.contents.tokens(content);
                parts.extend((0..pool.parts() as u32).map(|part| {
                    let label = names.part_label(block, (group, part), tokens);
                    (label, BlockPart { block: companion, part })
                }));
                last = self.contents.parent_content(content);
            }
        }
        Some(parts)
    }

    /// Ends all resume points, because no content is findable from now on.
    pub(super) fn end_points(&mut self) {
        let Self { tails: Some(tails), blocks, .. } = self else { return };
        let points: Vec<_> =
            blocks.contents().map(|(_, content)| content).filter(|&content| tails.points.contains(content)).collect();
        // What leads to no point any more is forgotten with everything else.
        points.into_iter().for_each(|content| drop(self.end_point(content)));
        self.tails.iter_mut().for_each(|tails| tails.points.clear());
    }

    /// Forgets those contents of `useless` that nobody holds. Each of them comes before the content that it continues.
    /// `was_wanted` says whether the point to which they led was wanted, so that tiers below memory learn of their
    /// eviction.
    pub(super) fn forget_useless(&mut self, useless: Vec<ContentId>, loss: Loss, was_wanted: bool) {
        for content in useless {
            if !self.contents.is_findable(content) || self.contents.users(content) > 0 {
                continue;
            }
            let block = self.contents.block(content).expect("what can be found is in a block");
            self.policy.forget(block);
            self.owners.revive(block);
            self.owners.give_back(block);
            self.forget(block, content, loss, was_wanted);
            self.blocks.free_last(block);
        }
    }

    /// Gives up one thing that nobody holds: the memory of a free block; or else a passing point; or else a lasting
    /// point or a cached block, whose blocks become free as far as nothing else needs them.
    ///
    /// # Panics
    /// Panics if everything is held.
    fn give_up(&mut self, taker: Option<Taker>) {
        if self.withdraw_any() {
            return;
        }
        let loss = taker.map_or(Loss::Withdrawn, |taker| Loss::Evicted(taker.sequence));
        let cached = self.policy.len();
        let tails = self.tails_mut().expect("there are pools");
        if let Some(point) = tails.points.oldest_passing() {
            tails.given_up += 1;
            return self.drop_point(point, loss);
        }
        // Points take no more than half of what is cached.
        let in_points = tails.cached_bytes();
        if (cached == 0 || in_points > cached * tails.block_bytes)
            && let Some(point) = tails.points.oldest_lasting()
        {
            tails.given_up += 1;
            return self.drop_point(point, loss);
        }
        let block = self.evict(taker);
        self.blocks.free_last(block);
    }

    /// Takes the memory of a free tail block or else a free trunk block away. Returns false if there is none.
    fn withdraw_any(&mut self) -> bool {
        if self.tails.as_mut().is_some_and(|tails| tails.withdraw_free()) {
            return true;
        }
        let takes_memory = self.tails().is_some_and(|tails| tails.block_bytes > 0);
        if !takes_memory || self.blocks.num_free() == 0 {
            return false;
        }
        self.blocks.set_usable(self.blocks.usable() - 1);
        self.blocks.withdraw_free()
    }

    /// Returns the bytes of the budget that no present block takes.
    fn spare_bytes(&self) -> usize {
        self.tails().map_or(0, |tails| tails.usable_bytes().saturating_sub(self.present_bytes(tails)))
    }

    /// Returns the bytes of all trunk blocks and tail blocks that have memory.
    pub(super) fn present_bytes(&self, tails: &Tails) -> usize {
        self.blocks.present() * tails.block_bytes + tails.present_bytes()
    }
}

mod invariants;

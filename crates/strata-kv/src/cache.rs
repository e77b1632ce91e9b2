//! The contents in memory: which are in use, which are cached, and which gives way when a block is wanted.

use std::collections::HashSet;

use crate::{
    blocks::{Blocks, Resize},
    contents::{ContentId, Contents, Parent, Publication},
    eviction::{Content, EvictionPolicy},
    hash::{BlockHash, ChainHasher, ChainRoot},
    ids::{BlockId, SequenceId, SwapSlot, TokenId},
    losses::{Loss, Losses},
    miss::MissReason,
    prefix_hashes::PrefixHashes,
    slots::Slots,
};

/// Contents, the places that they lie in, and the policy that chooses among the cached ones.
///
/// Every block is exactly one of *free*, *cached* (its content can be found, and nobody uses it), *used* (a table or a
/// transfer holds it) and *withdrawn*. A block on its way is held by its transfer, and so neither free nor cached.
///
/// | state | leaves it by |
/// |---|---|
/// | free | `take`, `fetch` → used |
/// | used | last `release` → cached if its content can be found, else free |
/// | cached | `share` → used; eviction → used by `take`, withdrawn by a smaller pool, free to compact; `reset` → free |
#[derive(Debug)]
pub(crate) struct Cache {
    contents: Contents,
    blocks: Blocks,
    slots: Slots,
    policy: Box<dyn EvictionPolicy>,
    losses: Losses,
    block_size: usize,
    /// Tokens in used blocks.
    tokens_used: usize,
    evictions: u64,
}

/// What became of a full block that was to be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Published {
    /// It can be found.
    Itself,
    /// An equal one can be found, and is held instead.
    Equal(BlockId),
    /// Neither, for now.
    Refused,
}

impl Cache {
    pub(crate) fn new(
        num_blocks: usize,
        num_slots: usize,
        block_size: usize,
        hasher: ChainHasher,
        policy: Box<dyn EvictionPolicy>,
    ) -> Self {
        Self {
            contents: Contents::new(num_blocks, num_slots, block_size, hasher),
            blocks: Blocks::new(num_blocks),
            slots: Slots::new(num_slots),
            policy,
            losses: Losses::new(num_blocks),
            block_size,
            tokens_used: 0,
            evictions: 0,
        }
    }

    pub(crate) fn hasher(&self) -> &ChainHasher {
        self.contents.hasher()
    }

    pub(crate) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    pub(crate) fn num_cached(&self) -> usize {
        self.policy.len()
    }

    pub(crate) fn tokens_used(&self) -> usize {
        self.tokens_used
    }

    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Blocks that can be taken.
    pub(crate) fn available(&self) -> usize {
        self.blocks.num_free() + self.policy.len()
    }

    /// Tables and transfers that hold `block`.
    pub(crate) fn holders(&self, block: BlockId) -> u32 {
        self.contents.users(self.blocks.content(block))
    }

    /// Whether others hold the block besides whoever asks.
    pub(crate) fn is_shared(&self, block: BlockId) -> bool {
        self.holders(block) > 1
    }

    /// The tokens in `block`.
    pub(crate) fn tokens(&self, block: BlockId) -> &[TokenId] {
        let content = self.blocks.content(block);
        &self.contents.tokens(content)[..self.contents.filled(content)]
    }

    /// Gives `hit` the findable blocks of `token_ids` in order, and whether each is cached; returns how many. The last
    /// token is never part of them: it must be computed, to yield logits.
    pub(crate) fn walk(
        &self,
        token_ids: &[TokenId],
        hashes: &PrefixHashes,
        mut hit: impl FnMut(BlockId, bool),
    ) -> usize {
        if hashes.root_hash().is_none() {
            return 0;
        }
        let blocks = findable(token_ids).chunks_exact(self.block_size).enumerate();
        let hashed = blocks.map(|(index, tokens)| (hashes.get(index), tokens));
        self.contents.walk(hashes.root(), hashed, |content| self.visit(content, &mut hit))
    }

    /// The same for contents in `slots`, all of which are full.
    pub(crate) fn walk_slots(&self, slots: &[SwapSlot], root: &ChainRoot, mut hit: impl FnMut(BlockId, bool)) -> usize {
        let contents = slots.iter().map(|&slot| self.slots.content(slot));
        let hashed = contents.map(|content| (self.contents.hash(content), self.contents.tokens(content)));
        self.contents.walk(root, hashed, |content| self.visit(content, &mut hit))
    }

    fn visit(&self, content: ContentId, hit: &mut impl FnMut(BlockId, bool)) {
        let block = self.contents.block(content).expect("what can be found is in a block");
        hit(block, self.contents.users(content) == 0);
    }

    /// How many blocks a look-up finds, and why not the next one too.
    pub(crate) fn explain(&self, token_ids: &[TokenId], hashes: &PrefixHashes) -> (usize, MissReason) {
        let mut last = None;
        let num_matched = self.walk(token_ids, hashes, |block, _| last = Some(block));
        let Some(root) = hashes.root_hash() else { return (num_matched, MissReason::NotCacheable) };
        let Some(missed) = findable(token_ids).chunks_exact(self.block_size).nth(num_matched) else {
            return (num_matched, MissReason::PartialBlock);
        };
        let previous = last.and_then(|block| self.contents.hash(self.blocks.content(block))).unwrap_or(root);
        let loss = self.losses.loss(hashes.get_or_hash(num_matched, previous, missed));
        let reason = loss.map(MissReason::from).unwrap_or_else(|| {
            let tokens = self.hasher().block(BlockHash(0), missed);
            match num_matched == 0 && self.losses.other_root(tokens, previous) {
                true => MissReason::OtherSalt,
                false => MissReason::NeverSeen,
            }
        });
        (num_matched, reason)
    }

    /// One more look-up: the clock by which the ages of losses are told.
    pub(crate) fn tick(&mut self) {
        self.losses.tick();
    }

    /// One more table holds `block`, which a look-up has found.
    pub(crate) fn share(&mut self, block: BlockId) {
        self.policy.hit(block);
        let content = self.blocks.content(block);
        if self.contents.users(content) == 0 {
            self.tokens_used += self.block_size;
        }
        self.contents.hold(content);
    }

    /// One more holder of `block`, which is used.
    pub(crate) fn hold(&mut self, block: BlockId) {
        let content = self.blocks.content(block);
        assert!(self.contents.users(content) > 0, "{block} is held once more, but nobody holds it");
        self.contents.hold(content);
    }

    /// An empty block for one table to write to: a free one, else a cached one gives way to `id`.
    ///
    /// # Panics
    /// When nothing is [`available`](Self::available), which callers test first.
    pub(crate) fn take(&mut self, id: SequenceId) -> BlockId {
        self.take_with(id, &[], None).0
    }

    /// The same with as many of `tokens` in it as fit, and with this hash if it is full; returns it and the other
    /// tokens.
    #[inline]
    pub(crate) fn take_with<'t>(
        &mut self,
        id: SequenceId,
        tokens: &'t [TokenId],
        hash: Option<BlockHash>,
    ) -> (BlockId, &'t [TokenId]) {
        let block = self.vacate(id);
        let (content, rest) = self.contents.create(block, tokens, hash);
        self.blocks.occupy(block, content);
        self.tokens_used += tokens.len() - rest.len();
        (block, rest)
    }

    /// A block for what `slot` holds, one holder's, as [`take`](Self::take) gives it. Until the transfer that fills it
    /// has ended, nobody may read it. Where the content has a block already that a look-up does not find, this one
    /// holds a content that is equal.
    pub(crate) fn fetch(&mut self, slot: SwapSlot, id: SequenceId) -> BlockId {
        // First: it may be the content's own block that gives way.
        let block = self.vacate(id);
        let content = self.slots.content(slot);
        match self.contents.block(content) {
            None => {
                self.contents.set_block(content, block);
                self.contents.hold(content);
                self.blocks.occupy(block, content);
            }
            Some(_) => {
                let (equal, _) = self.contents.create(block, &[], None);
                self.contents.copy(content, equal, self.contents.filled(content));
                self.blocks.occupy(block, equal);
            }
        }
        self.tokens_used += self.contents.filled(content);
        block
    }

    /// A block like the first `filled` tokens of `source`, which the caller holds and lets go of for it.
    pub(crate) fn unshare(&mut self, source: BlockId, filled: usize, id: SequenceId) -> BlockId {
        let block = self.take(id);
        self.contents.copy(self.blocks.content(source), self.blocks.content(block), filled);
        self.tokens_used += filled;
        self.release(source);
        block
    }

    /// Writes `tokens` into `block`, which its only holder owns, behind the `at` tokens in it, as many as fit; returns
    /// the rest.
    pub(crate) fn write<'t>(&mut self, block: BlockId, at: usize, tokens: &'t [TokenId]) -> &'t [TokenId] {
        let mut content = self.blocks.content(block);
        if self.contents.is_below(content) {
            content = self.part(block, at);
        }
        let rest = self.contents.write(content, at, tokens);
        self.tokens_used += tokens.len() - rest.len();
        rest
    }

    /// What lies in a slot does not change with the block: from now on `block` has a content of its own, with the first
    /// `filled` tokens.
    fn part(&mut self, block: BlockId, filled: usize) -> ContentId {
        let below = self.blocks.content(block);
        let (content, _) = self.contents.create(block, &[], None);
        self.contents.copy(below, content, filled);
        self.blocks.occupy(block, content);
        assert_eq!(self.contents.release(below), 0, "{block} is written to, but shared");
        self.contents.clear_block(below);
        content
    }

    /// One holder lets go of `block`. If it was the last, a findable content is cached; any other cannot be found
    /// again, and its block is the first to be reused. Where there are more blocks than there should be, one is
    /// withdrawn.
    pub(crate) fn release(&mut self, block: BlockId) {
        let content = self.blocks.content(block);
        if self.contents.release(content) > 0 {
            return;
        }
        self.tokens_used -= self.contents.filled(content);
        match self.contents.is_findable(content) {
            true => self.policy.insert(block, self.contents.is_leaf(content)),
            false => {
                self.contents.clear_block(content);
                self.blocks.free_first(block);
            }
        }
        self.withdraw_excess();
    }

    /// A slot for what `block` holds, with one holder.
    ///
    /// # Panics
    /// When none is free, which callers test first.
    pub(crate) fn take_slot(&mut self, block: BlockId) -> SwapSlot {
        let content = self.blocks.content(block);
        self.contents.add_slot(content);
        self.slots.take(content)
    }

    /// One more holder of `slot`.
    pub(crate) fn hold_slot(&mut self, slot: SwapSlot) {
        self.slots.hold(slot);
    }

    /// One holder of `slot` less; the last frees it.
    pub(crate) fn release_slot(&mut self, slot: SwapSlot) {
        if let Some(content) = self.slots.release(slot) {
            self.contents.remove_slot(content);
        }
    }

    /// What the first blocks of chains from `root` continue, until it is [released](Self::release_root).
    pub(crate) fn hold_root(&mut self, root: &ChainRoot) -> Parent {
        self.contents.hold_root(root)
    }

    pub(crate) fn release_root(&mut self, root: Parent) {
        self.contents.release_root(root);
    }

    /// What the blocks behind `block` continue.
    pub(crate) fn parent(&self, block: BlockId) -> Parent {
        Parent::content(self.blocks.content(block))
    }

    /// Makes the full and computed `block`, which the caller holds, findable behind `parent`, or takes an equal one for
    /// it.
    pub(crate) fn publish(&mut self, block: BlockId, parent: Parent) -> Published {
        let content = self.blocks.content(block);
        match self.contents.publish(content, parent) {
            // A sequence that was forked from the same one has published the block that both hold.
            Publication::Equal(equal) if equal == content => Published::Itself,
            // A sequence forked from this one would hold what comes behind it without holding its parent.
            Publication::Equal(_) if self.is_shared(block) => Published::Refused,
            Publication::Equal(equal) => {
                let equal = self.contents.block(equal).expect("what can be found is in a block");
                self.share(equal);
                self.release(block);
                Published::Equal(equal)
            }
            // Its descendants would have no findable parent. The next commit tries again.
            Publication::Full => Published::Refused,
            Publication::New(hash) => {
                let parent = self.contents.parent_block(parent);
                if let Err(root) = parent {
                    let rootless = self.hasher().block(BlockHash(0), self.contents.tokens(content));
                    self.losses.note_first(rootless, root);
                }
                self.policy.publish(block, Content { hash, parent: parent.ok() });
                Published::Itself
            }
        }
    }

    /// Nothing can be found any more. Used blocks keep what they hold for their holders; cached ones are free.
    pub(crate) fn reset(&mut self) {
        let mut cached = Vec::new();
        for (block, content) in self.blocks.contents().filter(|&(_, content)| self.contents.is_findable(content)) {
            self.policy.forget(block);
            self.contents.hash(content).into_iter().for_each(|hash| self.losses.lose(hash, Loss::Reset));
            if self.contents.users(content) == 0 {
                cached.push((block, content));
            }
        }
        self.contents.unpublish_all();
        for (block, content) in cached {
            self.contents.clear_block(content);
            self.blocks.free_last(block);
        }
    }

    /// Changes how many blocks may be used. Growing adds free ones; shrinking withdraws free ones, then cached ones,
    /// never used ones: what is missing then is withdrawn when it is let go of.
    pub(crate) fn set_usable(&mut self, usable: usize) {
        if usable != self.blocks.usable() {
            self.policy.resize(usable);
        }
        self.blocks.set_usable(usable);
        self.withdraw_excess();
    }

    pub(crate) fn take_resize(&mut self) -> Resize {
        self.blocks.take_resize()
    }

    /// If blocks lie above the usable ones and none is free, makes up to so many of the cached ones free.
    pub(crate) fn make_room_to_move(&mut self, num_blocks: usize) {
        if self.blocks.num_free() > 0 {
            return;
        }
        for _ in 0..num_blocks.min(self.blocks.num_holes()).min(self.policy.len()) {
            let block = self.evict(None);
            self.blocks.free_last(block);
        }
    }

    /// Moves up to `max` contents from the highest blocks to the lowest free ones, but for those that are `pinned`.
    /// Tables that name a source are the caller's to tell; contents stay what they are.
    pub(crate) fn relocate(&mut self, max: usize, pinned: &HashSet<BlockId>) -> Vec<(BlockId, BlockId)> {
        let moves = self.blocks.plan_moves(max, pinned);
        for &(source, destination) in &moves {
            let content = self.blocks.content(source);
            self.contents.set_block(content, destination);
            if self.contents.is_findable(content) {
                self.policy.moved(source, destination);
            }
        }
        self.blocks.relocate(&moves);
        moves
    }

    /// See [`Blocks::exchange`].
    pub(crate) fn exchange(&mut self, max: usize) -> usize {
        self.blocks.exchange(max)
    }

    /// A block in no list, whose content has ended or left it.
    fn vacate(&mut self, id: SequenceId) -> BlockId {
        self.blocks.take().unwrap_or_else(|| self.evict(Some(id)))
    }

    /// The content that the policy picks gives up its block, which is in no list then, for `id` or for a smaller pool.
    /// The content ends, unless it lies below as well.
    fn evict(&mut self, id: Option<SequenceId>) -> BlockId {
        let victim = self.policy.victim().expect("a block is taken only when one is available");
        let (hash, leaf) = self.contents.evict(self.blocks.content(victim));
        leaf.into_iter().for_each(|parent| self.policy.became_leaf(parent));
        self.losses.lose(hash, id.map_or(Loss::Withdrawn, Loss::Evicted));
        self.evictions += 1;
        victim
    }

    fn withdraw_excess(&mut self) {
        while self.blocks.has_excess() && self.available() > 0 {
            if !self.blocks.withdraw_free() {
                let block = self.evict(None);
                self.blocks.withdraw(block);
            }
        }
    }
}

/// Tokens that can be found: the last one must be computed, to yield logits.
fn findable(token_ids: &[TokenId]) -> &[TokenId] {
    &token_ids[..token_ids.len().saturating_sub(1)]
}

mod invariants;
#[cfg(test)]
mod tests;

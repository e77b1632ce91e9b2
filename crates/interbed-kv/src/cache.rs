//! Manages the contents in memory: which are in use, which are cached, and which is evicted when a block is needed.

use std::collections::HashSet;

use crate::{
    blocks::{Blocks, Resize},
    contents::{ContentId, Contents, Parent, Publication},
    eviction::{Content, EvictionPolicy},
    hash::{BlockHash, ChainHasher, ChainRoot},
    ids::{BlockId, SequenceId, SwapSlot, TokenId},
    key::{BlockKey, BlockLabel, KeyChain},
    losses::{Loss, Losses},
    miss::MissReason,
    names::{Above, Names},
    owners::{Owners, Tenant},
    prefix_hashes::PrefixHashes,
    slots::Slots,
    tails::Tails,
};

mod beside_tails;

use beside_tails::Ended;
pub(crate) use beside_tails::Need;

/// Holds contents, their locations, and the policy that chooses among the cached ones.
///
/// Every trunk block is exactly one of *free*, *cached* (its content is findable, and nothing holds it), *used* (a
/// table or a transfer holds it) and *withdrawn*. A transfer in flight holds its blocks, so they are neither free nor
/// cached.
///
/// | state | leaves it by |
/// |---|---|
/// | free | `take`, `fetch` → used; `exchange`, a smaller pool, or memory for tail blocks → withdrawn |
/// | used | last `release` → cached if a hit could use its content, else free |
/// | cached | `share` → used; the end of the last resume point that it leads to, or `reset` → free; eviction (below) |
/// | withdrawn | `exchange`, a larger pool, or memory that `take` finds to spare beside tail blocks → free |
///
/// An evicted block becomes used by `take` or `fetch`, withdrawn by a smaller pool, and free by `promise`, by
/// `give_up`, or to compact. Besides, `relocate` gives a free block the state of a used or cached one, which is free
/// then.
#[derive(Debug)]
pub(crate) struct Cache {
    contents: Contents,
    blocks: Blocks,
    slots: Slots,
    policy: Box<dyn EvictionPolicy>,
    owners: Owners,
    losses: Losses,
    /// The keys of the contents; `None` unless a tier below memory asked for them.
    names: Option<Names>,
    /// The tail groups; `None` if all layers keep the KV of all tokens.
    tails: Option<Box<Tails>>,
    block_size: usize,
    /// The number of tokens in used trunk blocks; those in a shared block count once.
    tokens_used: usize,
    evictions: u64,
}

/// The sequence for which a block is taken, and its tenant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taker {
    pub(crate) sequence: SequenceId,
    pub(crate) tenant: Tenant,
}

impl Taker {
    /// Makes the taker for `sequence`, whose chain begins at `root`.
    pub(crate) fn new(sequence: SequenceId, root: &ChainRoot) -> Self {
        Self { sequence, tenant: root.tenant() }
    }
}

/// The result of publishing a full block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Published {
    /// The block is findable.
    Itself,
    /// An equal block was findable already. The caller now holds that one instead.
    Equal(BlockId),
    /// The block is not findable for now, and no equal block replaces it. The next commit tries again.
    Refused,
}

impl Cache {
    pub(crate) fn new(
        num_blocks: usize,
        num_slots: usize,
        block_size: usize,
        hasher: ChainHasher,
        policy: Box<dyn EvictionPolicy>,
        tails: Option<Box<Tails>>,
    ) -> Self {
        Self {
            contents: Contents::new(num_blocks, num_slots, block_size, hasher),
            blocks: Blocks::new(num_blocks),
            slots: Slots::new(num_slots),
            policy,
            owners: Owners::new(num_blocks),
            losses: Losses::new(num_blocks),
            names: None,
            tails,
            block_size,
            tokens_used: 0,
            evictions: 0,
        }
    }

    pub(crate) fn hasher(&self) -> &ChainHasher {
        self.contents.hasher()
    }

    /// Gives every findable content a key under `chain`, from now on. Contents that are findable already count as
    /// published now.
    pub(crate) fn name_contents(&mut self, chain: KeyChain) {
        let mut names = Names::new(chain, self.blocks.len());
        let mut is_named = vec![false; self.blocks.len()];
        let mut chain = Vec::new();
        for (block, content) in self.blocks.contents().filter(|&(_, content)| self.contents.is_findable(content)) {
            // The key of a content depends on the key of the content that it continues, which is therefore computed
            // first.
            let (mut block, mut content) = (block, content);
            while !is_named[block.index()] {
                is_named[block.index()] = true;
                chain.push((block, content));
                let Above::Block(above) = self.contents.above(content) else { break };
                (block, content) = (above, self.blocks.content(above));
            }
            for (block, content) in chain.drain(..).rev() {
                names.publish(block, self.contents.above(content), self.contents.tokens(content));
            }
        }
        self.names = Some(names);
        self.tails.iter_mut().for_each(|tails| tails.points.list_wanted());
    }

    pub(crate) fn names(&self) -> Option<&Names> {
        self.names.as_ref()
    }

    pub(crate) fn names_mut(&mut self) -> Option<&mut Names> {
        self.names.as_mut()
    }

    /// Returns the key of the content of `block`. Returns `None` if the content is not findable, or contents have no
    /// keys.
    pub(crate) fn key(&self, block: BlockId) -> Option<BlockKey> {
        let content = self.blocks.content_of(block)?;
        let names = self.names.as_ref()?;
        self.contents.is_findable(content).then(|| names.key(block))
    }

    /// Returns the label of the content of `block`. Returns `None` if the content is not findable, or contents have no
    /// keys.
    pub(crate) fn label(&self, block: BlockId) -> Option<BlockLabel> {
        let content = self.blocks.content_of(block)?;
        let names = self.names.as_ref()?;
        let above = self.contents.is_findable(content).then(|| self.contents.above(content))?;
        Some(names.label(block, above, self.contents.tokens(content)))
    }

    pub(crate) fn contents(&self) -> &Contents {
        &self.contents
    }

    pub(crate) fn contents_mut(&mut self) -> &mut Contents {
        &mut self.contents
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

    /// Returns how many units can be taken: those of free and cached blocks.
    pub(crate) fn available(&self) -> usize {
        match &self.tails {
            None => self.unused(),
            Some(tails) => self.available_bytes(tails) / tails.unit_bytes,
        }
    }

    /// Returns how many trunk blocks are free or cached.
    pub(crate) fn unused(&self) -> usize {
        self.blocks.num_free() + self.policy.len()
    }

    /// Returns how many tables and transfers hold the trunk block `block`, which must have a content.
    pub(crate) fn holders(&self, block: BlockId) -> u32 {
        self.contents.users(self.blocks.content(block))
    }

    /// Returns whether `block` has more than one holder.
    pub(crate) fn is_shared(&self, block: BlockId) -> bool {
        self.holders(block) > 1
    }

    /// Returns the tokens in `block`, at most `block_size`.
    pub(crate) fn tokens(&self, block: BlockId) -> &[TokenId] {
        let content = self.blocks.content(block);
        &self.contents.tokens(content)[..self.contents.filled(content)]
    }

    /// Calls `hit` with each findable block of `token_ids` in order, and with whether the block is cached. Returns the
    /// number of these blocks. A hit never contains the last token, because it must be computed to yield logits.
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

    /// Calls `hit` with each findable block whose content equals that of the slot in the same place of `slots`, up to
    /// the first slot without one, and with whether the block is cached. Returns the number of these blocks. All
    /// contents in `slots` must be full.
    pub(crate) fn walk_slots(&self, slots: &[SwapSlot], root: &ChainRoot, mut hit: impl FnMut(BlockId, bool)) -> usize {
        let contents = slots.iter().map(|&slot| self.slots.content(slot));
        let hashed = contents.map(|content| (self.contents.hash(content), self.contents.tokens(content)));
        self.contents.walk(root, hashed, |content| self.visit(content, &mut hit))
    }

    fn visit(&self, content: ContentId, hit: &mut impl FnMut(BlockId, bool)) {
        let block = self.contents.block(content).expect("what can be found is in a block");
        hit(block, self.contents.users(content) == 0);
    }

    /// Returns how many leading blocks of `token_ids` a sequence would find, and why it would not find the next one.
    pub(crate) fn explain(&self, token_ids: &[TokenId], hashes: &PrefixHashes) -> (usize, MissReason) {
        let mut found = Vec::new();
        self.walk(token_ids, hashes, |block, _| found.push(block));
        let num_matched = self.resumable(&found);
        let last = num_matched.checked_sub(1).and_then(|last| self.contents.hash(self.blocks.content(found[last])));
        (num_matched, self.explain_behind(token_ids, hashes, num_matched, last))
    }

    /// Returns why a look-up that has found `num_found` blocks, in memory or below, finds no more. `last` is the hash
    /// of the last block that was found; the call computes it if it is not given.
    pub(crate) fn explain_behind(
        &self,
        token_ids: &[TokenId],
        hashes: &PrefixHashes,
        num_found: usize,
        last: Option<BlockHash>,
    ) -> MissReason {
        let Some(root) = hashes.root_hash() else { return MissReason::NotCacheable };
        let blocks = findable(token_ids).chunks_exact(self.block_size);
        let Some(missed) = blocks.clone().nth(num_found) else { return MissReason::PartialBlock };
        if let Some(tails) = self.tails()
            && self.walk(token_ids, hashes, |_, _| ()) > num_found
        {
            return if tails.keep_states() { MissReason::NoState } else { MissReason::NoWindow };
        }
        let previous = last.unwrap_or_else(|| {
            let found = blocks.take(num_found).enumerate();
            found.fold(root, |previous, (index, tokens)| hashes.get_or_hash(index, previous, tokens))
        });
        let loss = self.losses.loss(hashes.get_or_hash(num_found, previous, missed));
        loss.map(MissReason::from).unwrap_or_else(|| {
            let tokens = self.hasher().block(BlockHash(0), missed);
            match num_found == 0 && self.losses.other_root(tokens, previous) {
                true => MissReason::OtherSalt,
                false => MissReason::NeverSeen,
            }
        })
    }

    /// Counts one more look-up, because the ages of losses are measured in look-ups.
    pub(crate) fn tick(&mut self) {
        self.losses.tick();
    }

    /// Adds a table as a holder of `block`, which a look-up has found, and tells the policy of the find.
    pub(crate) fn share(&mut self, block: BlockId) {
        self.policy.hit(block);
        let content = self.blocks.content(block);
        if self.contents.users(content) == 0 {
            self.tokens_used += self.block_size;
            self.owners.revive(block);
        }
        self.contents.hold(content);
    }

    /// Adds a holder of `block`, which must have one.
    pub(crate) fn hold(&mut self, block: BlockId) {
        let content = self.blocks.content(block);
        assert!(self.contents.users(content) > 0, "{block} is held once more, but nobody holds it");
        self.contents.hold(content);
    }

    /// Takes an empty trunk block for one table to write to. The block is a free one or, if there is none, a cached one
    /// that is evicted. Where layers keep tails, the memory of free tail blocks and of resume points that end may be
    /// used before a block is evicted.
    ///
    /// # Panics
    /// Panics if no unit is [`available`](Self::available); callers check that first.
    pub(crate) fn take(&mut self, taker: Taker) -> BlockId {
        self.take_with(taker, &[], None).0
    }

    /// Takes a block in the way of [`take`](Self::take), and fills it with as many of `tokens` as fit. If the tokens
    /// fill the block, its hash is set to `hash`. Returns the block and the remaining tokens.
    #[inline]
    pub(crate) fn take_with<'t>(
        &mut self,
        taker: Taker,
        tokens: &'t [TokenId],
        hash: Option<BlockHash>,
    ) -> (BlockId, &'t [TokenId]) {
        let block = self.vacate(taker);
        let (content, rest) = self.contents.create(block, tokens, hash);
        self.blocks.occupy(block, content);
        self.tokens_used += tokens.len() - rest.len();
        (block, rest)
    }

    /// Takes a block for the content of `slot`, in the way of [`take`](Self::take), with one holder. The block must not
    /// be read until the transfer that fills it has ended. If the content already has a block, which look-ups do not
    /// find, the new block gets an equal content.
    pub(crate) fn fetch(&mut self, slot: SwapSlot, taker: Taker) -> BlockId {
        // The block is taken first, because the evicted block may be the content's own.
        let block = self.vacate(taker);
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

    /// Takes a new block and copies the first `filled` tokens of `source` to it; the caller copies the KV. Afterwards
    /// the caller holds the new block, and no longer `source`.
    pub(crate) fn unshare(&mut self, source: BlockId, filled: usize, taker: Taker) -> BlockId {
        let block = self.take(taker);
        self.contents.copy(self.blocks.content(source), self.blocks.content(block), filled);
        self.tokens_used += filled;
        self.release(source);
        block
    }

    /// Writes as many of `tokens` as fit into `block`, after the `at` tokens in it. Returns the rest. The block must
    /// have only one holder.
    pub(crate) fn write<'t>(&mut self, block: BlockId, at: usize, tokens: &'t [TokenId]) -> &'t [TokenId] {
        let mut content = self.blocks.content(block);
        if self.contents.is_below(content) {
            content = self.part(block, at);
        }
        let rest = self.contents.write(content, at, tokens);
        self.tokens_used += tokens.len() - rest.len();
        rest
    }

    /// Gives `block` a content of its own, with the first `filled` tokens of the old content, because a content that
    /// also lies in a slot must not change.
    fn part(&mut self, block: BlockId, filled: usize) -> ContentId {
        let below = self.blocks.content(block);
        let (content, _) = self.contents.create(block, &[], None);
        self.contents.copy(below, content, filled);
        self.blocks.occupy(block, content);
        assert_eq!(self.contents.release(below), 0, "{block} is written to, but shared");
        self.contents.clear_block(below);
        content
    }

    /// Removes a holder of `block`. If it was the last, a findable content becomes cached, or is forgotten if no hit
    /// could use it. Any other content ends or lies only below, and its block is the next to be taken. If more blocks
    /// are present than may be used, some are withdrawn.
    pub(crate) fn release(&mut self, block: BlockId) {
        let content = self.blocks.content(block);
        if self.contents.release(content) > 0 {
            return;
        }
        self.tokens_used -= self.contents.filled(content);
        match self.contents.is_findable(content) {
            true if self.tails.as_ref().is_some_and(|tails| !tails.points.leads(content)) => {
                self.policy.forget(block);
                self.forget(block, content, Loss::Withdrawn, false);
                self.owners.give_back(block);
                self.blocks.free_first(block);
            }
            true => {
                self.policy.insert(block, self.contents.is_leaf(content));
                self.owners.cache(block);
            }
            false => {
                self.contents.clear_block(content);
                self.owners.give_back(block);
                self.blocks.free_first(block);
            }
        }
        self.withdraw_excess();
    }

    /// Takes a slot for the content of `block`, with one holder.
    ///
    /// # Panics
    /// Panics if no slot is free; callers check that first.
    pub(crate) fn take_slot(&mut self, block: BlockId) -> SwapSlot {
        let content = self.blocks.content(block);
        self.contents.add_slot(content);
        self.slots.take(content)
    }

    /// Adds a holder of `slot`, which must have a holder.
    pub(crate) fn hold_slot(&mut self, slot: SwapSlot) {
        self.slots.hold(slot);
    }

    /// Removes a holder of `slot`. Removing the last one frees the slot.
    pub(crate) fn release_slot(&mut self, slot: SwapSlot) {
        if let Some(content) = self.slots.release(slot) {
            self.contents.remove_slot(content);
        }
    }

    /// Returns the parent of the first blocks of chains from `root`. The cache keeps the root until it is
    /// [released](Self::release_root).
    pub(crate) fn hold_root(&mut self, root: &ChainRoot) -> Parent {
        self.contents.hold_root(root)
    }

    pub(crate) fn release_root(&mut self, root: Parent) {
        self.contents.release_root(root);
    }

    /// Returns the parent that a block has which continues `block`.
    pub(crate) fn parent(&self, block: BlockId) -> Parent {
        Parent::content(self.blocks.content(block))
    }

    /// Makes `block` findable as a child of `parent`, or replaces it by an equal findable block. The block must be
    /// full, computed and held by the caller.
    pub(crate) fn publish(&mut self, block: BlockId, parent: Parent) -> Published {
        let content = self.blocks.content(block);
        match self.contents.publish(content, parent) {
            // A sequence forked from the same one has already published the block that both hold.
            Publication::Equal(equal) if equal == content => Published::Itself,
            // If the block were replaced here, a sequence forked from this one would hold later blocks without their
            // parent.
            Publication::Equal(_) if self.is_shared(block) => Published::Refused,
            Publication::Equal(equal) => {
                let equal = self.contents.block(equal).expect("what can be found is in a block");
                self.share(equal);
                self.release(block);
                Published::Equal(equal)
            }
            // If later blocks were published without this one, they would have no findable parent. The next commit
            // tries again.
            Publication::Full => Published::Refused,
            Publication::New(hash) => {
                let parent = self.contents.parent_block(parent);
                if let Err(root) = parent {
                    let rootless = self.hasher().block(BlockHash(0), self.contents.tokens(content));
                    self.losses.note_first(rootless, root);
                }
                let owner = self.owners.of(block);
                self.policy.publish(block, Content { hash, parent: parent.ok(), owner });
                if let Some(names) = &mut self.names {
                    names.publish(block, self.contents.above(content), self.contents.tokens(content));
                }
                Published::Itself
            }
        }
    }

    /// Makes every content unfindable. Used blocks keep their contents for their holders; cached blocks become free.
    pub(crate) fn reset(&mut self) {
        self.end_points();
        let mut cached = Vec::new();
        for (block, content) in self.blocks.contents().filter(|&(_, content)| self.contents.is_findable(content)) {
            self.policy.forget(block);
            self.contents.hash(content).into_iter().for_each(|hash| self.losses.lose(hash, Loss::Reset));
            if self.contents.users(content) == 0 {
                cached.push((block, content));
            }
        }
        self.contents.unpublish_all();
        self.names.iter_mut().for_each(Names::reset);
        for (block, content) in cached {
            self.contents.clear_block(content);
            self.owners.revive(block);
            self.owners.give_back(block);
            self.blocks.free_last(block);
        }
    }

    /// Keeps `count` free blocks for the next sequence, as far as there are so many. If `may_evict` is set, the call
    /// evicts cached blocks to get them. Returns the blocks that are kept.
    pub(crate) fn promise(&mut self, count: usize, may_evict: bool) -> impl Iterator<Item = BlockId> {
        if may_evict {
            while self.blocks.num_free() < count && !self.policy.is_empty() {
                let block = self.evict(None);
                self.blocks.free_last(block);
            }
        }
        self.blocks.promise(count);
        self.blocks.promised()
    }

    /// Puts the blocks that were kept for the next sequence back in front of the free list, by [`Blocks::redeem`].
    pub(crate) fn redeem(&mut self) {
        self.blocks.redeem();
    }

    /// Changes how many units may be used. Growing adds free blocks or, where layers keep tails, allows memory for
    /// blocks that are taken later. Shrinking withdraws free blocks, then cached ones and those of resume points, but
    /// never used ones: the missing ones are withdrawn as blocks are released.
    pub(crate) fn set_usable(&mut self, usable: usize) {
        if let Some(tails) = &mut self.tails {
            if usable != tails.usable {
                tails.usable = usable;
                self.policy.resize(usable);
            }
            return self.withdraw_excess();
        }
        if usable != self.blocks.usable() {
            self.policy.resize(usable);
        }
        self.blocks.set_usable(usable);
        self.withdraw_excess();
    }

    pub(crate) fn take_resize(&mut self) -> Resize {
        let mut resize = self.blocks.take_resize();
        let pools = self.tails.iter_mut().flat_map(|tails| &mut tails.pools);
        pools.for_each(|pool| pool.add_resize(&mut resize));
        resize
    }

    /// Evicts and frees up to `num_blocks` cached blocks, if no block is free and withdrawn blocks have ids below the
    /// usable number. Does nothing where layers keep tails.
    pub(crate) fn make_room_to_move(&mut self, num_blocks: usize) {
        if self.blocks.num_free() > 0 {
            return;
        }
        // An eviction could end a whole chain where some layers keep tails, which is more than order is worth.
        if self.tails.is_some() {
            return;
        }
        for _ in 0..num_blocks.min(self.blocks.num_holes()).min(self.policy.len()) {
            let block = self.evict(None);
            self.blocks.free_last(block);
        }
    }

    /// Moves up to `max` contents from the highest trunk blocks to the lowest free ones, except from `pinned` blocks.
    /// Returns the moves as pairs of source and destination, the highest source first. The contents do not change. The
    /// caller copies the bytes and updates tables.
    pub(crate) fn relocate(&mut self, max: usize, pinned: &HashSet<BlockId>) -> Vec<(BlockId, BlockId)> {
        let moves = self.blocks.plan_moves(max, pinned);
        for &(source, destination) in &moves {
            let content = self.blocks.content(source);
            self.contents.set_block(content, destination);
            self.owners.moved(source, destination);
            if self.contents.is_findable(content) {
                self.policy.moved(source, destination);
                self.names.iter_mut().for_each(|names| names.moved(source, destination));
            }
        }
        self.blocks.relocate(&moves);
        moves
    }

    /// Gives the memory of the highest free blocks to the lowest withdrawn ones, up to `max` times. Returns how many
    /// times.
    pub(crate) fn exchange(&mut self, max: usize) -> usize {
        self.blocks.exchange(max)
    }

    /// Returns how many cached blocks `tenant` should not take from others as long as it can do without, by
    /// [`Owners::kept_from`].
    pub(crate) fn kept_from(&self, tenant: Tenant) -> usize {
        self.owners.kept_from(tenant, self.blocks.usable())
    }

    /// Takes a trunk block, which is then in no list and holds no content, by eviction if none is free. The block then
    /// belongs to the taker's tenant.
    fn vacate(&mut self, taker: Taker) -> BlockId {
        let block = match &self.tails {
            None => self.blocks.take().unwrap_or_else(|| self.evict(Some(taker))),
            Some(_) => self.vacate_beside_tails(taker),
        };
        self.owners.take(block, taker.tenant);
        block
    }

    /// Evicts the content that the policy picks for `taker`, and returns its block, which is then in no list. The
    /// content ends, unless it lies in a slot as well. If `taker` is `None`, the block is for a smaller pool, a move or
    /// a promise.
    ///
    /// # Panics
    /// Panics if no block is cached.
    fn evict(&mut self, taker: Option<Taker>) -> BlockId {
        let loser = self.owners.loser(taker.map(|taker| taker.tenant), self.blocks.usable());
        let victim = self.policy.victim(loser).expect("a block is taken only when one is available");
        self.owners.revive(victim);
        self.owners.give_back(victim);
        let content = self.blocks.content(victim);
        let loss = taker.map_or(Loss::Withdrawn, |taker| Loss::Evicted(taker.sequence));
        let Ended { useless, was_wanted } = self.end_point(content);
        self.forget(victim, content, loss, was_wanted);
        self.forget_useless(useless, loss, was_wanted);
        self.evictions += 1;
        victim
    }

    /// Ends the findable `content` of `block`, which nobody holds and no content continues. The policy has forgotten
    /// the block. If `is_of_use`, tiers below memory learn of the eviction.
    fn forget(&mut self, block: BlockId, content: ContentId, loss: Loss, is_of_use: bool) {
        if let Some(names) = self.names.as_mut().filter(|_| is_of_use) {
            let (above, tokens) = (self.contents.above(content), self.contents.tokens(content));
            names.evict(block, above, tokens, self.policy.class(block));
        }
        let (hash, leaf) = self.contents.evict(content);
        leaf.into_iter().for_each(|parent| self.policy.became_leaf(parent));
        self.losses.lose(hash, loss);
    }

    fn withdraw_excess(&mut self) {
        if self.tails.is_some() {
            return self.withdraw_excess_bytes();
        }
        while self.blocks.has_excess() && self.available() > 0 {
            if !self.blocks.withdraw_free() {
                let block = self.evict(None);
                self.blocks.withdraw(block);
            }
        }
    }
}

/// Returns the tokens that a look-up may find. These are all but the last, which must be computed to yield logits.
fn findable(token_ids: &[TokenId]) -> &[TokenId] {
    &token_ids[..token_ids.len().saturating_sub(1)]
}

mod invariants;
#[cfg(test)]
mod tests;

//! The tree of contents. Each content knows which tokens its KV is of, what it continues, how many use it, and where it
//! lies.
//!
//! A content keeps its id as long as it lies anywhere. Moves, swaps and evictions change its locations, never the
//! content.

use std::collections::HashMap;

use crate::{
    changes::{CacheChange, CacheChanges},
    hash::{BlockHash, ChainHasher, ChainRoot},
    ids::{BlockId, TokenId},
    names::Above,
    root_table::{RootId, RootTable},
};

const NONE: u32 = u32::MAX;

/// The most contents in one bucket of the index. Ordinary hashes never come near this limit. Because of the limit,
/// hashes that were made to collide cannot make look-ups slow.
pub(crate) const BUCKET_MAX: usize = 32;

/// Identifies a content as long as the content lies anywhere. This is no block id, because contents move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ContentId(pub(crate) u32);

impl ContentId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// Content or root that a findable content continues, in four bytes. Parents outlive their children, so a number is
/// enough to name a parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parent(u32);

/// A [`Parent`], decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Continues {
    /// The content continues no other content: it is the first of its chain.
    Root(RootId),
    /// The content continues this content.
    Content(ContentId),
}

impl Parent {
    /// The parent of a content that is not findable.
    const NONE: Self = Self(u32::MAX);
    const ROOT: u32 = 1 << 31;

    fn root(root: RootId) -> Self {
        Self(root.0 | Self::ROOT)
    }

    pub(crate) fn content(content: ContentId) -> Self {
        Self(content.0)
    }

    fn get(self) -> Option<Continues> {
        match self {
            Self::NONE => None,
            Self(number) if number & Self::ROOT != 0 => Some(Continues::Root(RootId(number & !Self::ROOT))),
            Self(number) => Some(Continues::Content(ContentId(number))),
        }
    }
}

/// The outcome of publishing a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Publication {
    /// The content has become findable under this hash.
    New(BlockHash),
    /// An equal content is findable: another one, or the content itself.
    Equal(ContentId),
    /// The index has no room for another content of this hash, so the content stays unfindable.
    Full,
}

/// One content, in 32 bytes; its tokens are stored separately. The alignment keeps a node from spanning two cache
/// lines.
#[derive(Debug, Clone)]
#[repr(align(32))]
struct Node {
    /// Hash of the content and of everything before it, valid if `hashed` is set.
    hash: BlockHash,
    /// Content or root that the content continues, while the content is findable: full, computed, in a block, and in
    /// the index. Otherwise [`Parent::NONE`].
    parent: Parent,
    /// Number of findable contents that continue this content.
    children: u32,
    /// Number of tables that hold the content's block, and of transfers that read or write it.
    users: u32,
    /// Number of the block that the content lies in, or `NONE`.
    block: u32,
    /// The next content in the same bucket of the index, while the content is findable. For a vacant node, the next
    /// vacant node.
    next: u32,
    /// The number of tokens in the content.
    filled: u16,
    hashed: bool,
    /// Whether the content lies in any slot of the tier below, besides a block or alone.
    below: bool,
}

const _: () = assert!(size_of::<Node>() == 32);

impl Node {
    const VACANT: Self = Self {
        hash: BlockHash(0),
        parent: Parent::NONE,
        children: 0,
        users: 0,
        block: NONE,
        next: NONE,
        filled: 0,
        hashed: false,
        below: false,
    };
}

/// All contents, and the index that finds them by hash.
///
/// A content has at most one block, and any number of slots below. A content is findable from when it is published
/// until it is evicted or forgotten; all that time it is full, computed and in a trunk block, and its parent is
/// findable or a root. A content ends when it loses its last location.
///
/// A findable content stands for a prefix, which is the path from the root to it. The tails that a sequence needs to go
/// on behind the prefix are no part of the content; `resume_points.rs` and `tail_pool.rs` say which tail blocks belong
/// to it.
#[derive(Debug)]
pub(crate) struct Contents {
    block_size: usize,
    hasher: ChainHasher,
    nodes: Vec<Node>,     // [content]
    tokens: Vec<TokenId>, // [content, position]
    /// First content of each bucket. The hash table's chains run through the nodes, so that the table never allocates.
    heads: Vec<u32>, // [bucket]
    /// Number of slots that hold each content that is `below`.
    slots: HashMap<ContentId, u32>,
    /// The first vacant node; the others follow by their `next`.
    vacant: u32,
    num_contents: usize,
    num_findable: usize,
    roots: RootTable,
    /// Changes of which contents are findable, since the last time the changes were taken; `None` unless changes are
    /// recorded.
    changes: Option<CacheChanges>,
}

impl Contents {
    /// Allocates memory for the contents of `num_blocks` blocks and `num_slots` slots.
    pub(crate) fn new(num_blocks: usize, num_slots: usize, block_size: usize, hasher: ChainHasher) -> Self {
        let capacity = num_blocks + num_slots;
        let node = |next: usize| Node { next: if next < capacity { next as u32 } else { NONE }, ..Node::VACANT };
        Self {
            block_size,
            hasher,
            nodes: (1..=capacity).map(node).collect(),
            tokens: vec![0; capacity * block_size],
            // There are at most two thirds as many findable contents as buckets, so that most buckets hold one or none.
            heads: vec![NONE; num_blocks + num_blocks.div_ceil(2)],
            slots: HashMap::new(),
            vacant: 0,
            num_contents: 0,
            num_findable: 0,
            roots: RootTable::default(),
            changes: None,
        }
    }

    /// Begins to record which contents become findable and which no longer are.
    pub(crate) fn record_changes(&mut self) {
        self.changes.get_or_insert_default();
    }

    pub(crate) fn records_changes(&self) -> bool {
        self.changes.is_some()
    }

    /// Returns the changes that were not yet taken; `None` unless changes are recorded.
    pub(crate) fn changes(&mut self) -> Option<&mut CacheChanges> {
        self.changes.as_mut()
    }

    pub(crate) fn hasher(&self) -> &ChainHasher {
        &self.hasher
    }

    /// Creates a content in `block`, with one user and as many of `tokens` as fit, and sets `hash` if these tokens fill
    /// the block. Returns the content and the remaining tokens.
    ///
    /// # Panics
    /// Panics if there are more contents than locations, which is impossible.
    #[inline]
    pub(crate) fn create<'t>(
        &mut self,
        block: BlockId,
        tokens: &'t [TokenId],
        hash: Option<BlockHash>,
    ) -> (ContentId, &'t [TokenId]) {
        let content = ContentId(self.vacant);
        let (fit, rest) = tokens.split_at(tokens.len().min(self.block_size));
        self.tokens[content.index() * self.block_size..][..fit.len()].copy_from_slice(fit);
        let node = &mut self.nodes[content.index()];
        self.vacant = node.next;
        *node = Node { users: 1, block: block.0, filled: fit.len() as u16, ..Node::VACANT };
        if let Some(hash) = hash.filter(|_| fit.len() == self.block_size) {
            (node.hash, node.hashed) = (hash, true);
        }
        self.num_contents += 1;
        (content, rest)
    }

    /// Copies the first `filled` tokens of `source` into the empty `content`. Copies the hash as well if `filled` is a
    /// full block.
    pub(crate) fn copy(&mut self, source: ContentId, content: ContentId, filled: usize) {
        let start = source.index() * self.block_size;
        self.tokens.copy_within(start..start + filled, content.index() * self.block_size);
        let (hash, hashed) = (self.node(source).hash, self.node(source).hashed && filled == self.block_size);
        let node = self.node_mut(content);
        (node.hash, node.hashed, node.filled) = (hash, hashed, filled as u16);
    }

    /// Writes as many of `tokens` as fit, from position `at` on. Returns the rest.
    pub(crate) fn write<'t>(&mut self, content: ContentId, at: usize, tokens: &'t [TokenId]) -> &'t [TokenId] {
        let (fit, rest) = tokens.split_at(tokens.len().min(self.block_size - at));
        self.tokens[content.index() * self.block_size + at..][..fit.len()].copy_from_slice(fit);
        self.node_mut(content).filled = (at + fit.len()) as u16;
        rest
    }

    /// Returns the hash of the content and of everything before it, if it was computed.
    pub(crate) fn hash(&self, content: ContentId) -> Option<BlockHash> {
        let node = self.node(content);
        node.hashed.then_some(node.hash)
    }

    /// Returns the number of tokens in the content.
    pub(crate) fn filled(&self, content: ContentId) -> usize {
        self.node(content).filled.into()
    }

    /// Returns the tokens of a full content. If the content is partial, arbitrary tokens follow its own.
    pub(crate) fn tokens(&self, content: ContentId) -> &[TokenId] {
        &self.tokens[content.index() * self.block_size..][..self.block_size]
    }

    /// Returns how many tables hold the content's block, and transfers read or write it.
    pub(crate) fn users(&self, content: ContentId) -> u32 {
        self.node(content).users
    }

    /// Adds one user.
    pub(crate) fn hold(&mut self, content: ContentId) {
        self.node_mut(content).users += 1;
    }

    /// Removes one user. Returns how many remain.
    pub(crate) fn release(&mut self, content: ContentId) -> u32 {
        let users = &mut self.node_mut(content).users;
        *users = users.checked_sub(1).expect("a released content is used");
        *users
    }

    pub(crate) fn block(&self, content: ContentId) -> Option<BlockId> {
        let block = self.node(content).block;
        (block != NONE).then_some(BlockId(block))
    }

    /// Sets the block of `content`, which lay in another block before, or in none.
    pub(crate) fn set_block(&mut self, content: ContentId, block: BlockId) {
        self.node_mut(content).block = block.0;
    }

    /// Takes the block away from `content`, which must be unfindable and have no users. The content ends if that was
    /// its last location.
    pub(crate) fn clear_block(&mut self, content: ContentId) {
        let node = self.node_mut(content);
        node.block = NONE;
        if !node.below {
            self.end(content);
        }
    }

    /// Returns whether `content` lies in any slot.
    pub(crate) fn is_below(&self, content: ContentId) -> bool {
        self.node(content).below
    }

    /// Adds a slot that holds `content`.
    pub(crate) fn add_slot(&mut self, content: ContentId) {
        self.node_mut(content).below = true;
        *self.slots.entry(content).or_default() += 1;
    }

    /// Removes a slot that held `content`. The content ends if the slot was its last location.
    pub(crate) fn remove_slot(&mut self, content: ContentId) {
        let slots = self.slots.get_mut(&content).expect("it lies in the slot that it leaves");
        *slots -= 1;
        if *slots > 0 {
            return;
        }
        self.slots.remove(&content);
        let node = self.node_mut(content);
        node.below = false;
        if node.block == NONE {
            self.end(content);
        }
    }

    /// Returns what the first contents of chains from `root` continue. The root stays known until the caller
    /// [releases](Self::release_root) it.
    pub(crate) fn hold_root(&mut self, root: &ChainRoot) -> Parent {
        Parent::root(self.roots.hold(root, &self.hasher))
    }

    pub(crate) fn release_root(&mut self, root: Parent) {
        if let Some(Continues::Root(root)) = root.get() {
            self.roots.release(root);
        }
    }

    pub(crate) fn is_findable(&self, content: ContentId) -> bool {
        self.node(content).parent != Parent::NONE
    }

    /// Returns the change that reports that `content` has become findable. The content must be findable.
    pub(crate) fn as_stored(&self, content: ContentId) -> CacheChange<'_> {
        let node = self.node(content);
        let parent = match node.parent.get().expect("a findable content continues something") {
            Continues::Root(_) => None,
            Continues::Content(parent) => Some(self.node(parent).hash),
        };
        CacheChange::Stored { hash: node.hash, parent, tokens: self.tokens(content) }
    }

    /// Returns whether no findable content continues `content`.
    pub(crate) fn is_leaf(&self, content: ContentId) -> bool {
        self.node(content).children == 0
    }

    /// Walks the longest chain of findable contents from `root` whose tokens are those of `blocks`. Each block is given
    /// by its hash, which the call computes if it is missing, and its tokens. Calls `hit` with each content in order,
    /// and returns the length of the chain in blocks.
    pub(crate) fn walk<'t>(
        &self,
        root: &ChainRoot,
        blocks: impl Iterator<Item = (Option<BlockHash>, &'t [TokenId])>,
        mut hit: impl FnMut(ContentId),
    ) -> usize {
        let Some(root) = self.roots.find(root) else { return 0 };
        let (mut last, mut parent, mut length) = (self.roots.hash(root), Parent::root(root), 0);
        for (hash, tokens) in blocks {
            last = hash.unwrap_or_else(|| self.hasher.block(last, tokens));
            let Some(content) = self.find(last, parent, tokens) else { break };
            hit(content);
            parent = Parent::content(content);
            length += 1;
        }
        length
    }

    /// Returns the findable content with this hash, parent and tokens. The hash only says where to look.
    #[inline]
    pub(crate) fn find(&self, hash: BlockHash, parent: Parent, tokens: &[TokenId]) -> Option<ContentId> {
        self.candidates(self.bucket(hash)).find(|&candidate| self.is_equal(candidate, hash, parent, tokens))
    }

    fn is_equal(&self, candidate: ContentId, hash: BlockHash, parent: Parent, tokens: &[TokenId]) -> bool {
        let node = self.node(candidate);
        node.hash == hash && node.parent == parent && self.tokens(candidate) == tokens
    }

    /// Makes `content`, which is full and computed, findable as a child of `parent`, unless an equal content is
    /// findable.
    #[inline]
    pub(crate) fn publish(&mut self, content: ContentId, parent: Parent) -> Publication {
        let node = self.node(content);
        let hash = if node.hashed { node.hash } else { self.note_hash(content, parent) };
        let (bucket, mut length) = (self.bucket(hash), 0);
        for candidate in self.candidates(bucket) {
            if self.is_equal(candidate, hash, parent, self.tokens(content)) {
                return Publication::Equal(candidate);
            }
            length += 1;
        }
        if length >= BUCKET_MAX {
            return Publication::Full;
        }
        match parent.get().expect("a findable content continues something") {
            Continues::Content(parent) => self.node_mut(parent).children += 1,
            Continues::Root(root) => self.roots.hold_again(root),
        }
        let next = std::mem::replace(&mut self.heads[bucket], content.0);
        let node = self.node_mut(content);
        (node.parent, node.next) = (parent, next);
        self.num_findable += 1;
        if self.changes.is_some() {
            self.note_stored(content);
        }
        Publication::New(hash)
    }

    fn note_stored(&mut self, content: ContentId) {
        let CacheChange::Stored { hash, parent, .. } = self.as_stored(content) else { return };
        let tokens = &self.tokens[content.index() * self.block_size..][..self.block_size];
        self.changes.iter_mut().for_each(|changes| changes.stored(hash, parent, tokens));
    }

    fn note_hash(&mut self, content: ContentId, parent: Parent) -> BlockHash {
        let hash = self.hasher.block(self.hash_of(parent), self.tokens(content));
        let node = self.node_mut(content);
        (node.hash, node.hashed) = (hash, true);
        hash
    }

    /// Makes `content`, which has no children, unfindable. Returns its parent if the parent is a content.
    #[inline]
    pub(crate) fn unpublish(&mut self, content: ContentId) -> Option<ContentId> {
        let node = self.node_mut(content);
        let (parent, next) =
            (std::mem::replace(&mut node.parent, Parent::NONE), std::mem::replace(&mut node.next, NONE));
        let bucket = self.bucket(self.node(content).hash);
        let before = self.candidates(bucket).find(|before| self.node(*before).next == content.0);
        match before {
            Some(before) => self.node_mut(before).next = next,
            None => {
                assert_eq!(self.heads[bucket], content.0, "a content is not in the index that it is removed from");
                self.heads[bucket] = next;
            }
        }
        self.num_findable -= 1;
        let hash = self.node(content).hash;
        if let Some(changes) = &mut self.changes {
            changes.removed(hash);
        }
        match parent.get().expect("it could be found") {
            Continues::Content(parent) => {
                self.node_mut(parent).children -= 1;
                Some(parent)
            }
            Continues::Root(root) => {
                self.roots.release(root);
                None
            }
        }
    }

    /// Takes the block away from `content`, which must be findable and have neither users nor children. Returns the
    /// content's hash, and the block of its parent if that is a content that now has neither users nor children.
    #[inline]
    pub(crate) fn evict(&mut self, content: ContentId) -> (BlockHash, Option<BlockId>) {
        let node = self.node(content);
        assert!(node.users == 0 && node.children == 0, "a content was evicted, but is used or has children");
        let hash = node.hash;
        let parent = self.unpublish(content).map(|parent| self.node(parent));
        let leaf =
            parent.filter(|parent| parent.children == 0 && parent.users == 0).map(|parent| BlockId(parent.block));
        self.clear_block(content);
        (hash, leaf)
    }

    /// Returns what comes before `content`, which must be findable.
    pub(crate) fn above(&self, content: ContentId) -> Above<'_> {
        match self.node(content).parent.get().expect("a findable content continues something") {
            Continues::Root(root) => Above::Root(self.roots.root(root)),
            Continues::Content(parent) => Above::Block(self.block(parent).expect("what can be found is in a block")),
        }
    }

    /// Returns the content that `content` continues; `None` if `content` is the first of its chain, or not findable.
    pub(crate) fn parent_content(&self, content: ContentId) -> Option<ContentId> {
        match self.node(content).parent.get()? {
            Continues::Content(parent) => Some(parent),
            Continues::Root(_) => None,
        }
    }

    /// Returns the block of `parent`, or the hash of `parent` if it is a root.
    #[inline]
    pub(crate) fn parent_block(&self, parent: Parent) -> Result<BlockId, BlockHash> {
        match parent.get().expect("only a content that continues something has such a parent") {
            Continues::Root(root) => Err(self.roots.hash(root)),
            Continues::Content(content) => Ok(self.block(content).expect("what can be found is in a block")),
        }
    }

    /// Makes every content unfindable.
    pub(crate) fn unpublish_all(&mut self) {
        self.heads.fill(NONE);
        self.roots = RootTable::default();
        self.num_findable = 0;
        for node in self.nodes.iter_mut().filter(|node| node.parent != Parent::NONE) {
            (node.children, node.parent, node.next) = (0, Parent::NONE, NONE);
        }
        if let Some(changes) = &mut self.changes {
            changes.cleared();
        }
    }

    fn end(&mut self, content: ContentId) {
        let vacant = std::mem::replace(&mut self.vacant, content.0);
        let node = self.node_mut(content);
        assert!(node.users == 0 && node.parent == Parent::NONE, "content {} has ended, but is used", content.0);
        node.next = vacant;
        self.num_contents -= 1;
    }

    /// Returns the hash from which the hashes of children of `parent`, which must exist, are computed.
    fn hash_of(&self, parent: Parent) -> BlockHash {
        match parent.get().expect("only a content that continues something has such a parent") {
            Continues::Root(root) => self.roots.hash(root),
            Continues::Content(content) => self.node(content).hash,
        }
    }

    fn candidates(&self, bucket: usize) -> impl Iterator<Item = ContentId> {
        let mut at = self.heads[bucket];
        std::iter::from_fn(move || {
            let content = (at != NONE).then_some(ContentId(at))?;
            at = self.node(content).next;
            Some(content)
        })
    }

    fn bucket(&self, hash: BlockHash) -> usize {
        // Scaled to the length, which need not be a power of two.
        ((u128::from(hash.0) * self.heads.len() as u128) >> 64) as usize
    }

    fn node(&self, content: ContentId) -> &Node {
        &self.nodes[content.index()]
    }

    fn node_mut(&mut self, content: ContentId) -> &mut Node {
        &mut self.nodes[content.index()]
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>() + self.heads.capacity() * size_of::<u32>()
    }
}

mod invariants;
#[cfg(test)]
mod tests;

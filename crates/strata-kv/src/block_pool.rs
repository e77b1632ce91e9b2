//! The physical blocks: who is free, cached or used, what each holds, and which of them can be found.

use crate::{
    BlockHash, BlockId, ChainHasher, ChainRoot, Content, EvictionPolicy, KvConfig, TokenId, block_list::BlockList,
    prefix_index::PrefixIndex, resize::Resized,
};

/// What a published block continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Parent {
    /// Nothing: it is the first of its chain.
    Root(ChainRoot),
    /// The content that `block` had in its `generation`, which is still there: parents outlive their children.
    Block { block: BlockId, generation: u32 },
}

/// Place of a published block in its chain.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) hash: BlockHash,
    pub(crate) parent: Parent,
}

/// State of one block (K1).
///
/// | state | `ref_count` | `link` | leaves it by |
/// |---|---|---|---|
/// | free | 0 | none | `take` → used; a smaller pool → withdrawn |
/// | used | ≥ 1 | none until published | last `release` → cached if published, else free |
/// | cached | 0 | some | `share` → used; eviction or `reset` → free |
/// | withdrawn | 0 | none | a larger pool → free |
#[derive(Debug, Default)]
pub(crate) struct Block {
    /// Block tables that hold the block.
    pub(crate) ref_count: u32,
    /// Counts the contents that the block has lost, so that a name of an old one fits none of its successors.
    pub(crate) generation: u32,
    /// Published blocks whose parent this is.
    pub(crate) children: u32,
    /// Some while published: full, computed, and in the index.
    pub(crate) link: Option<Link>,
}

/// All blocks. Callers keep to the transitions of [`Block`]; a breach panics, since it would serve wrong KV.
#[derive(Debug)]
pub(crate) struct BlockPool {
    pub(crate) block_size: usize,
    pub(crate) hasher: ChainHasher,
    pub(crate) blocks: Vec<Block>,              // [block]
    pub(crate) tokens: Vec<TokenId>,            // [block, slot]
    pub(crate) free: BlockList,                 // no content
    pub(crate) cached: Box<dyn EvictionPolicy>, // published, held by nobody
    pub(crate) index: PrefixIndex,              // published
    pub(crate) withdrawn: BlockList,            // without memory
    pub(crate) resized: Resized,
    /// Blocks that shall not be withdrawn; more are there only while they are used.
    pub(crate) usable: usize,
    pub(crate) evictions: u64,
}

impl BlockPool {
    pub(crate) fn new(config: &KvConfig, hasher: ChainHasher, policy: Box<dyn EvictionPolicy>) -> Self {
        let mut free = BlockList::new(config.num_blocks);
        (0..config.num_blocks).for_each(|block| free.push_back(BlockId(block as u32)));
        Self {
            block_size: config.block_size,
            hasher,
            blocks: std::iter::repeat_with(Block::default).take(config.num_blocks).collect(),
            tokens: vec![0; config.num_blocks * config.block_size],
            free,
            cached: policy,
            index: PrefixIndex::new(config.num_blocks),
            withdrawn: BlockList::new(config.num_blocks),
            resized: Resized::new(config.num_blocks),
            usable: config.num_blocks,
            evictions: 0,
        }
    }

    /// Blocks that `take` can give.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.cached.len()
    }

    pub(crate) fn is_cached(&self, block: BlockId) -> bool {
        let Block { ref_count, link, .. } = &self.blocks[block.index()];
        *ref_count == 0 && link.is_some()
    }

    pub(crate) fn tokens(&self, block: BlockId) -> &[TokenId] {
        &self.tokens[block.index() * self.block_size..][..self.block_size]
    }

    /// Writes `tokens` into the slots of `block` from `slot` on, as many as fit; returns the rest.
    pub(crate) fn write<'t>(&mut self, block: BlockId, slot: usize, tokens: &'t [TokenId]) -> &'t [TokenId] {
        let (fit, rest) = tokens.split_at(tokens.len().min(self.block_size - slot));
        self.tokens[block.index() * self.block_size + slot..][..fit.len()].copy_from_slice(fit);
        rest
    }

    /// The longest chain of published blocks from `root` that holds a prefix of `tokens`, given to `hit` in order;
    /// returns its length. The last token is never part of it: it must be computed, to yield logits.
    pub(crate) fn walk(&self, tokens: &[TokenId], root: &ChainRoot, mut hit: impl FnMut(BlockId)) -> usize {
        let findable = tokens.len().saturating_sub(1) / self.block_size * self.block_size;
        let mut parent = Parent::Root(root.clone());
        let mut hash = self.hasher.root(root);
        for (length, tokens) in tokens[..findable].chunks_exact(self.block_size).enumerate() {
            hash = self.hasher.block(hash, tokens);
            let Some(block) = self.find(hash, &parent, tokens) else { return length };
            hit(block);
            parent = self.as_parent(block);
        }
        findable / self.block_size
    }

    /// The published block with this very content. The hash only says where to look (K2).
    pub(crate) fn find(&self, hash: BlockHash, parent: &Parent, tokens: &[TokenId]) -> Option<BlockId> {
        self.index.candidates(hash).find(|&block| {
            let link = self.blocks[block.index()].link.as_ref();
            link.is_some_and(|link| link.hash == hash && link.parent == *parent) && self.tokens(block) == tokens
        })
    }

    /// How the children of `block` name it.
    pub(crate) fn as_parent(&self, block: BlockId) -> Parent {
        Parent::Block { block, generation: self.blocks[block.index()].generation }
    }

    /// One more table holds `block`, which is used or cached, since a look-up has found it.
    pub(crate) fn share(&mut self, block: BlockId) {
        self.cached.hit(block);
        self.blocks[block.index()].ref_count += 1;
    }

    /// A block for one table to write to: a free one, else the content of a cached one is given up.
    ///
    /// # Panics
    /// When nothing is [`available`](Self::available), which callers test first.
    pub(crate) fn take(&mut self) -> BlockId {
        let block = self.free.pop_front().unwrap_or_else(|| self.evict());
        self.blocks[block.index()].ref_count = 1;
        block
    }

    /// One table lets go of `block`. If it was the last, a published block becomes cached; any other holds nothing
    /// that could be found again and is the first to be reused. Where there are more blocks than there should be, one
    /// is withdrawn.
    pub(crate) fn release(&mut self, block: BlockId) {
        let state = &mut self.blocks[block.index()];
        state.ref_count = state.ref_count.checked_sub(1).expect("a released block is held");
        if state.ref_count > 0 {
            return;
        }
        match state.link {
            Some(_) => self.cached.insert(block, state.children == 0),
            None => self.free.push_front(block),
        }
        self.withdraw_excess();
    }

    /// Makes the full and computed `block` findable; no equal one may be published. False when the index has no room
    /// for one more block of this hash: the block then stays private.
    #[must_use]
    pub(crate) fn publish(&mut self, block: BlockId, hash: BlockHash, parent: Parent) -> bool {
        if !self.index.insert(hash, block) {
            return false;
        }
        let parent_block = match parent {
            Parent::Root(_) => None,
            Parent::Block { block, .. } => Some(block),
        };
        if let Some(parent) = parent_block {
            self.blocks[parent.index()].children += 1;
        }
        self.cached.publish(block, Content { hash, parent: parent_block });
        self.blocks[block.index()].link = Some(Link { hash, parent });
        true
    }

    /// Drops all published content. Blocks in use keep theirs for their holders, but can no longer be found.
    pub(crate) fn reset(&mut self) {
        self.index = PrefixIndex::new(self.blocks.len());
        for index in 0..self.blocks.len() {
            let block = BlockId(index as u32);
            if self.is_cached(block) {
                self.free.push_back(block);
            }
            let state = &mut self.blocks[index];
            state.children = 0;
            if state.link.take().is_some() {
                self.cached.forget(block);
                state.generation = state.generation.wrapping_add(1);
            }
        }
    }

    /// Gives up the content of the cached block that the policy picks; the block is in no list then.
    pub(crate) fn evict(&mut self) -> BlockId {
        let victim = self.cached.victim().expect("a block is taken only when one is available");
        let state = &mut self.blocks[victim.index()];
        assert!(state.ref_count == 0 && state.children == 0, "{victim} was evicted, but is held or has children");
        let Link { hash, parent } = state.link.take().expect("a cached block is published");
        state.generation = state.generation.wrapping_add(1);
        if let Parent::Block { block: parent, .. } = parent {
            let state = &mut self.blocks[parent.index()];
            state.children -= 1;
            if state.children == 0 && state.ref_count == 0 {
                self.cached.became_leaf(parent);
            }
        }
        self.index.remove(hash, victim);
        self.evictions += 1;
        victim
    }
}

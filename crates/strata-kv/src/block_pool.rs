//! The physical blocks: who is free, cached or used, what each holds, and which of them can be found.

use crate::{
    BlockHash, BlockId, ChainHasher, Content, EvictionPolicy, KvConfig, PrefixHashes, SequenceId, TokenId,
    block_list::BlockList,
    losses::{Loss, Losses},
    prefix_index::PrefixIndex,
    root_table::{RootId, RootTable},
};

/// What a published block continues, in four bytes: parents outlive their children, so a number is enough to name one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parent(u32);

/// [`Parent`], spelt out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Continues {
    /// Nothing: the block is the first of its chain.
    Root(RootId),
    /// The content of this block.
    Block(BlockId),
}

impl Parent {
    /// Of a block that is not published.
    pub(crate) const NONE: Self = Self(u32::MAX);
    const ROOT: u32 = 1 << 31;

    pub(crate) fn root(root: RootId) -> Self {
        Self(root.0 | Self::ROOT)
    }

    pub(crate) fn block(block: BlockId) -> Self {
        Self(block.0)
    }

    pub(crate) fn get(self) -> Option<Continues> {
        match self {
            Self::NONE => None,
            Self(number) if number & Self::ROOT != 0 => Some(Continues::Root(RootId(number & !Self::ROOT))),
            Self(number) => Some(Continues::Block(BlockId(number))),
        }
    }
}

/// State of one block (K1), in 24 bytes.
///
/// | state | `ref_count` | published | leaves it by |
/// |---|---|---|---|
/// | free | 0 | no | `take` → used; a smaller pool, or an exchange → withdrawn |
/// | used | ≥ 1 | from `publish` until `reset` | last `release` → cached if published, else free |
/// | cached | 0 | yes | `share` → used; eviction → used by `take`, withdrawn by a smaller pool, free to compact; `reset` → free |
/// | withdrawn | 0 | no | a larger pool, or an exchange → free |
///
/// A move makes a free block what the used or cached one was, which is free then. Where there are more blocks than may be
/// used, what becomes free or cached is withdrawn at once, or another in its place.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    /// Names the content and all before it; means nothing until the block is published, or its sequence says so.
    pub(crate) hash: BlockHash,
    /// Block tables that hold the block, and swaps under way that read or write it.
    pub(crate) ref_count: u32,
    /// Published blocks whose parent this is.
    pub(crate) children: u32,
    /// Place in a chain while published: full, computed, and in the index.
    pub(crate) parent: Parent,
    /// Tokens in it.
    pub(crate) filled: u16,
    pub(crate) withdrawn: bool,
    /// Whether it came or left since the last report.
    pub(crate) resized: bool,
}

const _: () = assert!(size_of::<Block>() == 24);

impl Block {
    pub(crate) const NEW: Self = Self {
        hash: BlockHash(0),
        ref_count: 0,
        children: 0,
        parent: Parent::NONE,
        filled: 0,
        withdrawn: false,
        resized: false,
    };

    pub(crate) fn is_published(&self) -> bool {
        self.parent != Parent::NONE
    }
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
    pub(crate) roots: RootTable,
    /// Blocks that shall not be withdrawn; more are there only while they are used.
    pub(crate) usable: usize,
    /// Blocks without memory.
    pub(crate) num_withdrawn: usize,
    /// Those of them whose numbers are below `usable`.
    pub(crate) num_holes: usize,
    /// No block below this number is withdrawn.
    pub(crate) first_withdrawn: usize,
    /// Blocks that came or left since the last report.
    pub(crate) num_resized: usize,
    /// Tokens in used blocks.
    pub(crate) slots_filled: usize,
    pub(crate) evictions: u64,
    pub(crate) losses: Losses,
}

impl BlockPool {
    pub(crate) fn new(config: &KvConfig, hasher: ChainHasher, policy: Box<dyn EvictionPolicy>) -> Self {
        let mut free = BlockList::new(config.num_blocks);
        (0..config.num_blocks).for_each(|block| free.push_back(BlockId(block as u32)));
        Self {
            block_size: config.block_size,
            hasher,
            blocks: vec![Block::NEW; config.num_blocks],
            tokens: vec![0; config.num_blocks * config.block_size],
            free,
            cached: policy,
            index: PrefixIndex::new(config.num_blocks),
            roots: RootTable::default(),
            usable: config.num_blocks,
            num_withdrawn: 0,
            num_holes: 0,
            first_withdrawn: config.num_blocks,
            num_resized: 0,
            slots_filled: 0,
            evictions: 0,
            losses: Losses::new(config.num_blocks),
        }
    }

    /// Blocks that `take` can give.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.cached.len()
    }

    pub(crate) fn is_cached(&self, block: BlockId) -> bool {
        let block = &self.blocks[block.index()];
        block.ref_count == 0 && block.is_published()
    }

    /// Whether others hold the block besides whoever asks.
    pub(crate) fn is_shared(&self, block: BlockId) -> bool {
        self.blocks[block.index()].ref_count > 1
    }

    pub(crate) fn tokens(&self, block: BlockId) -> &[TokenId] {
        &self.tokens[block.index() * self.block_size..][..self.block_size]
    }

    /// Writes `tokens` into the slots of `block`, which is used, from `slot` on, as many as fit; returns the rest.
    pub(crate) fn write<'t>(&mut self, block: BlockId, slot: usize, tokens: &'t [TokenId]) -> &'t [TokenId] {
        let (fit, rest) = tokens.split_at(tokens.len().min(self.block_size - slot));
        self.tokens[block.index() * self.block_size + slot..][..fit.len()].copy_from_slice(fit);
        let filled = &mut self.blocks[block.index()].filled;
        self.slots_filled -= usize::from(*filled);
        *filled = (slot + fit.len()) as u16;
        self.slots_filled += usize::from(*filled);
        rest
    }

    /// Writes the first `slots` tokens of `source` into `destination`, which is used.
    pub(crate) fn copy_tokens(&mut self, source: BlockId, destination: BlockId, slots: usize) {
        let start = source.index() * self.block_size;
        self.tokens.copy_within(start..start + slots, destination.index() * self.block_size);
        self.blocks[destination.index()].filled = slots as u16;
        self.slots_filled += slots;
    }

    /// The longest chain of published blocks that holds `blocks` of tokens, hashed in `hashes` as far as they are, given to
    /// `hit` in order; returns its length.
    pub(crate) fn walk<'t>(
        &self,
        blocks: impl Iterator<Item = &'t [TokenId]>,
        hashes: &PrefixHashes,
        mut hit: impl FnMut(BlockId),
    ) -> usize {
        let (Some(mut hash), Some(root)) = (hashes.root_hash(), self.roots.find(hashes.root())) else { return 0 };
        let mut parent = Parent::root(root);
        let mut length = 0;
        for tokens in blocks {
            hash = hashes.get_or_hash(length, hash, tokens);
            let Some(block) = self.find(hash, parent, tokens) else { break };
            hit(block);
            parent = Parent::block(block);
            length += 1;
        }
        length
    }

    /// The published block with this very content. The hash only says where to look (K2).
    pub(crate) fn find(&self, hash: BlockHash, parent: Parent, tokens: &[TokenId]) -> Option<BlockId> {
        self.index.candidates(hash).find(|&candidate| {
            let block = &self.blocks[candidate.index()];
            block.hash == hash && block.parent == parent && self.tokens(candidate) == tokens
        })
    }

    /// The hash that `block` was given, or was published under.
    pub(crate) fn hash(&self, block: BlockId) -> BlockHash {
        self.blocks[block.index()].hash
    }

    /// Notes the hash of the full `block` ahead of its being published.
    pub(crate) fn set_hash(&mut self, block: BlockId, hash: BlockHash) {
        self.blocks[block.index()].hash = hash;
    }

    /// The hash that the children of `parent`, which is there, continue.
    pub(crate) fn hash_of(&self, parent: Parent) -> BlockHash {
        match parent.get().expect("only a block that continues something has such a parent") {
            Continues::Root(root) => self.roots.hash(root),
            Continues::Block(block) => self.blocks[block.index()].hash,
        }
    }

    /// One more table holds `block`, which a look-up has found.
    pub(crate) fn share(&mut self, block: BlockId) {
        self.cached.hit(block);
        if self.is_cached(block) {
            self.slots_filled += self.block_size;
        }
        self.blocks[block.index()].ref_count += 1;
    }

    /// One more holder of `block`, which is used.
    pub(crate) fn hold(&mut self, block: BlockId) {
        let ref_count = &mut self.blocks[block.index()].ref_count;
        assert!(*ref_count > 0, "{block} is held once more, but nobody holds it");
        *ref_count += 1;
    }

    /// A block for one table to write to: a free one, else the content of a cached one is given up for `id`.
    ///
    /// # Panics
    /// When nothing is [`available`](Self::available), which callers test first.
    pub(crate) fn take(&mut self, id: SequenceId) -> BlockId {
        let block = self.free.pop_front().unwrap_or_else(|| self.evict(Some(id)));
        let state = &mut self.blocks[block.index()];
        state.ref_count = 1;
        state.filled = 0;
        block
    }

    /// One holder lets go of `block`. If it was the last, a published block becomes cached; any other holds nothing that
    /// could be found again and is the first to be reused. Where there are more blocks than there should be, one is
    /// withdrawn.
    pub(crate) fn release(&mut self, block: BlockId) {
        let state = &mut self.blocks[block.index()];
        state.ref_count = state.ref_count.checked_sub(1).expect("a released block is held");
        if state.ref_count > 0 {
            return;
        }
        self.slots_filled -= usize::from(state.filled);
        match state.is_published() {
            true => self.cached.insert(block, state.children == 0),
            false => self.free.push_front(block),
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
        let parent_block = match parent.get().expect("a published block continues something") {
            Continues::Block(parent) => {
                self.blocks[parent.index()].children += 1;
                Some(parent)
            }
            Continues::Root(root) => {
                self.roots.hold_again(root);
                let rootless = self.hasher.block(BlockHash(0), self.tokens(block));
                self.losses.note_first(rootless, self.roots.hash(root));
                None
            }
        };
        self.cached.publish(block, Content { hash, parent: parent_block });
        let state = &mut self.blocks[block.index()];
        (state.hash, state.parent) = (hash, parent);
        true
    }

    /// Drops all published content. Blocks in use keep theirs for their holders, but can no longer be found.
    pub(crate) fn reset(&mut self) {
        self.index = PrefixIndex::new(self.blocks.len());
        self.roots = RootTable::default();
        for index in 0..self.blocks.len() {
            let block = BlockId(index as u32);
            if self.is_cached(block) {
                self.free.push_back(block);
            }
            let state = &mut self.blocks[index];
            if state.is_published() {
                self.cached.forget(block);
                self.losses.lose(state.hash, Loss::Reset);
            }
            (state.children, state.parent) = (0, Parent::NONE);
        }
    }

    /// Gives up the content of the cached block that the policy picks, for `id` or for a smaller pool; the block is in no
    /// list then.
    pub(crate) fn evict(&mut self, id: Option<SequenceId>) -> BlockId {
        let victim = self.cached.victim().expect("a block is taken only when one is available");
        let state = &mut self.blocks[victim.index()];
        assert!(state.ref_count == 0 && state.children == 0, "{victim} was evicted, but is held or has children");
        let parent = std::mem::replace(&mut state.parent, Parent::NONE);
        let hash = state.hash;
        match parent.get().expect("a cached block is published") {
            Continues::Block(parent) => {
                let state = &mut self.blocks[parent.index()];
                state.children -= 1;
                if state.children == 0 && state.ref_count == 0 {
                    self.cached.became_leaf(parent);
                }
            }
            Continues::Root(root) => self.roots.release(root),
        }
        self.index.remove(hash, victim);
        self.losses.lose(hash, id.map_or(Loss::Withdrawn, Loss::Evicted));
        self.evictions += 1;
        victim
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Adaptive;

    #[test]
    fn bookkeeping_takes_less_than_100_bytes_a_block() {
        // Just above a power of two, where tables that are rounded up are largest.
        for num_blocks in [100_000, (1 << 17) + 4] {
            let config = KvConfig { num_blocks, ..KvConfig::default() };
            let policy = Adaptive::new(num_blocks);
            let of_policy = policy.bytes();
            let pool = BlockPool::new(&config, ChainHasher::new(0), Box::new(policy));
            let of_states = pool.blocks.capacity() * size_of::<Block>();
            let of_lists = pool.free.bytes() + pool.index.bytes() + pool.losses.bytes();
            // Each block in one table.
            let of_tables = num_blocks * size_of::<BlockId>();
            let bytes = (of_states + of_lists + of_policy + of_tables) as f64 / num_blocks as f64;
            println!("{bytes:.1} bytes a block of {num_blocks}");
            assert!((80.0..100.0).contains(&bytes), "{bytes}");
        }
    }
}

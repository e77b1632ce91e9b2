//! Keeps the names of the contents in memory for the tiers below: which content each block holds, what has become
//! findable, and what was evicted.

use crate::{
    block_bytes::BlockPart,
    hash::ChainRoot,
    ids::{BlockId, TokenId},
    key::{BlockKey, BlockLabel, KeyChain},
};

/// A content that memory has lost, or a part of the windows and states behind it. The bytes are in its block until the
/// next copy or pass writes to the block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evicted {
    /// The place of the bytes.
    pub part: BlockPart,
    /// The label under which tiers keep the bytes.
    pub label: BlockLabel,
    /// Class that the eviction policy gives the content for its use; see
    /// [`EvictionPolicy::class`](crate::EvictionPolicy::class).
    pub class: u8,
}

/// A content behind which sequences are likely to go on, so that tiers below memory keep what they need for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedPoint {
    /// The block of the content.
    pub block: BlockId,
    /// The key of the content.
    pub key: BlockKey,
    /// Whether the only sign of its use is that an answer has ended there. A tier that does not keep the KV of answers
    /// has no use for it then.
    pub is_of_answer: bool,
}

/// The place before a findable content in its chain.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Above<'a> {
    /// The content of this block comes before the content.
    Block(BlockId),
    /// No content comes before the content: it is the first of a chain.
    Root(&'a ChainRoot),
}

#[derive(Debug, Clone, Copy, Default)]
struct Name {
    key: BlockKey,
    /// The index of the block's owner in `owners`.
    owner: u32,
}

/// Keeps the keys of the contents in memory, and lists those that were published or evicted, for the tiers below.
#[derive(Debug)]
pub(crate) struct Names {
    chain: KeyChain,
    names: Vec<Name>, // [block], valid while its content is findable
    /// The marks of all owners that were seen, one for each tenant.
    owners: Vec<BlockKey>,
    published: Vec<BlockId>,
    evicted: Vec<Evicted>,
    /// The parts of the resume points that have ended, point by point.
    evicted_points: Vec<Vec<Evicted>>,
}

impl Names {
    pub(crate) fn new(chain: KeyChain, num_blocks: usize) -> Self {
        let names = vec![Name::default(); num_blocks];
        Self {
            chain,
            names,
            owners: Vec::new(),
            published: Vec::new(),
            evicted: Vec::new(),
            evicted_points: Vec::new(),
        }
    }

    pub(crate) fn chain(&self) -> &KeyChain {
        &self.chain
    }

    pub(crate) fn key(&self, block: BlockId) -> BlockKey {
        self.names[block.index()].key
    }

    /// Notes that `block` can be found now, and computes its key.
    pub(crate) fn publish(&mut self, block: BlockId, above: Above<'_>, tokens: &[TokenId]) {
        let (parent, owner) = match above {
            Above::Block(above) => (self.key(above), self.names[above.index()].owner),
            Above::Root(root) => (self.chain.root(root), self.owner(root)),
        };
        self.names[block.index()] = Name { key: self.chain.block(parent, tokens), owner };
        self.published.push(block);
    }

    /// Notes that `block`, which nobody uses, is about to be evicted.
    pub(crate) fn evict(&mut self, block: BlockId, above: Above<'_>, tokens: &[TokenId], class: u8) {
        let label = self.label(block, above, tokens);
        self.evicted.push(Evicted { part: BlockPart::whole(block), label, class });
    }

    pub(crate) fn label(&self, block: BlockId, above: Above<'_>, tokens: &[TokenId]) -> BlockLabel {
        let Name { key, owner } = self.names[block.index()];
        let parent = match above {
            Above::Block(above) => self.key(above),
            Above::Root(root) => self.chain.root(root),
        };
        BlockLabel { key, parent, owner: self.owners[owner as usize], tokens: tokens.into() }
    }

    /// Notes that the content of `from` is in `to` now.
    pub(crate) fn moved(&mut self, from: BlockId, to: BlockId) {
        self.names[to.index()] = self.names[from.index()];
        self.published.iter_mut().filter(|block| **block == from).for_each(|block| *block = to);
    }

    /// Notes that nothing can be found any more.
    pub(crate) fn reset(&mut self) {
        self.published.clear();
        self.evicted_points.clear();
    }

    pub(crate) fn take_published(&mut self) -> Vec<BlockId> {
        std::mem::take(&mut self.published)
    }

    pub(crate) fn take_evicted(&mut self) -> Vec<Evicted> {
        std::mem::take(&mut self.evicted)
    }

    /// Notes that a resume point is about to end, and which parts of blocks it needs.
    pub(crate) fn evict_point(&mut self, parts: Vec<(BlockLabel, BlockPart)>, class: u8) {
        let evicted = |(label, part)| Evicted { part, label, class };
        self.evicted_points.push(parts.into_iter().map(evicted).collect());
    }

    pub(crate) fn take_evicted_points(&mut self) -> Vec<Vec<Evicted>> {
        std::mem::take(&mut self.evicted_points)
    }

    /// Returns the label of part number `part` of the block that group number `group` keeps of the content of `block`,
    /// which has `tokens`.
    pub(crate) fn part_label(&self, block: BlockId, (group, part): (u32, u32), tokens: &[TokenId]) -> BlockLabel {
        let Name { key, owner } = self.names[block.index()];
        BlockLabel {
            key: self.chain.part(key, group, part),
            parent: key,
            owner: self.owners[owner as usize],
            tokens: tokens.into(),
        }
    }

    fn owner(&mut self, root: &ChainRoot) -> u32 {
        let owner = self.chain.owner(root.tenant());
        let known = self.owners.iter().position(|&known| known == owner);
        known.unwrap_or_else(|| {
            self.owners.push(owner);
            self.owners.len() - 1
        }) as u32
    }
}

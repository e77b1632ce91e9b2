//! Keeps the keys of the contents in memory for the tiers below: which content each block holds, what has become
//! findable, and what was evicted.

use crate::{
    block_bytes::BlockPart,
    hash::ChainRoot,
    ids::{BlockId, TokenId},
    key::{BlockKey, BlockLabel, KeyChain},
};

/// A content that memory has lost, or a part of a tail block of a resume point that has ended. The bytes are in the
/// block until the next copy or pass writes to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evicted {
    /// The part of memory with the bytes.
    pub part: BlockPart,
    /// The label under which tiers keep the bytes.
    pub label: BlockLabel,
    /// The class that the eviction policy gave to the content; see
    /// [`EvictionPolicy::class`](crate::EvictionPolicy::class).
    pub class: u8,
}

/// A resume point behind which sequences are likely to go on, so that tiers below memory keep its tails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedPoint {
    /// The trunk block of the point's content.
    pub block: BlockId,
    /// The key of the point's content.
    pub key: BlockKey,
    /// Whether the only sign of the point's use is that an answer has ended there. A tier that does not keep the KV of
    /// answers has no use for the point then.
    pub is_of_answer: bool,
}

/// What a findable content continues.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Above<'a> {
    /// The content continues that of this block.
    Block(BlockId),
    /// The content is the first of a chain with this root.
    Root(&'a ChainRoot),
}

#[derive(Debug, Clone, Copy, Default)]
struct Name {
    key: BlockKey,
    /// The index of the owner mark in `owners`.
    owner: u32,
}

/// The keys of the contents in memory, and lists of those that were published or evicted, for the tiers below.
#[derive(Debug)]
pub(crate) struct Names {
    chain: KeyChain,
    names: Vec<Name>, // [block], valid while its content is findable
    /// The owner marks of all tenants that were seen, each once.
    owners: Vec<BlockKey>,
    published: Vec<BlockId>,
    evicted: Vec<Evicted>,
    /// The parts of tail blocks of the wanted resume points that have ended, one list for each point.
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

    /// Notes that the content of `block`, which continues `above`, has become findable, and computes its key.
    pub(crate) fn publish(&mut self, block: BlockId, above: Above<'_>, tokens: &[TokenId]) {
        let (parent, owner) = match above {
            Above::Block(above) => (self.key(above), self.names[above.index()].owner),
            Above::Root(root) => (self.chain.root(root), self.owner(root)),
        };
        self.names[block.index()] = Name { key: self.chain.block(parent, tokens), owner };
        self.published.push(block);
    }

    /// Notes that the content of `block`, which nothing holds, is about to be evicted.
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

    /// Notes that no content is findable any more.
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

    /// Notes that a wanted resume point is about to end. `parts` are the parts of tail blocks that it needs, each with
    /// its label, and `class` is the class of its content.
    pub(crate) fn evict_point(&mut self, parts: Vec<(BlockLabel, BlockPart)>, class: u8) {
        let evicted = |(label, part)| Evicted { part, label, class };
        self.evicted_points.push(parts.into_iter().map(evicted).collect());
    }

    pub(crate) fn take_evicted_points(&mut self) -> Vec<Vec<Evicted>> {
        std::mem::take(&mut self.evicted_points)
    }

    /// Returns the label of part number `part` of the tail block that tail group number `group` keeps for the content
    /// of `block`, which has these `tokens`.
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

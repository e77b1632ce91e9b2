//! Tells which parts of tail blocks a sequence needs to go on behind a content.

use std::sync::Arc;

use crate::config::{KvConfig, TailConfig};

/// Tells which parts of tail blocks a sequence needs to go on behind a content, for the tail groups of one
/// [`KvConfig`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TailParts {
    groups: Vec<TailConfig>,
    block_size: usize,
}

/// One part of a tail block that a sequence needs to go on behind a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TailPart {
    /// The index of the tail group in [`KvConfig::tails`].
    pub(crate) group: u32,
    /// The number, in the sequence, of the content that the tail block belongs to.
    pub(crate) content: usize,
    /// The number of the part in its tail block, from 0 on.
    pub(crate) part: u32,
}

impl TailParts {
    /// Makes the value for the tail groups of `config`; `None` if there are none.
    pub(crate) fn new(config: &KvConfig) -> Option<Arc<Self>> {
        let parts = || Arc::new(Self { groups: config.tails.clone(), block_size: config.block_size });
        (!config.tails.is_empty()).then(parts)
    }

    /// Returns the most parts that a sequence needs to go on behind a content, in all tail groups `tails` together,
    /// where a block holds `block_size` tokens.
    pub fn most(tails: &[TailConfig], block_size: usize) -> usize {
        tails.iter().map(|tail| tail.keeps.tail_blocks(usize::MAX, block_size) * tail.parts as usize).sum()
    }

    /// Returns the parts that a sequence needs to go on behind its first `num_blocks` blocks: tail group by tail group,
    /// then content by content, then in the order of the parts.
    pub(crate) fn behind(&self, num_blocks: usize) -> impl Iterator<Item = TailPart> {
        (0..).zip(&self.groups).flat_map(move |(group, tail)| {
            // A state belongs to the last content before it.
            let first = num_blocks - tail.keeps.tail_blocks(num_blocks, self.block_size);
            (first..num_blocks)
                .flat_map(move |content| (0..tail.parts).map(move |part| TailPart { group, content, part }))
        })
    }

    /// Returns, for each tail group, the number of the first content whose parts a sequence needs to go on behind its
    /// first `num_blocks` blocks.
    pub(crate) fn firsts(&self, num_blocks: usize) -> Vec<usize> {
        let first = |tail: &TailConfig| num_blocks - tail.keeps.tail_blocks(num_blocks, self.block_size);
        self.groups.iter().map(first).collect()
    }

    /// Returns how many contents before the place where a sequence goes on may have parts that the sequence needs: the
    /// most of any tail group.
    pub(crate) fn reach(&self) -> usize {
        self.groups.iter().map(|tail| tail.keeps.tail_blocks(usize::MAX, self.block_size)).max().unwrap_or(0)
    }
}

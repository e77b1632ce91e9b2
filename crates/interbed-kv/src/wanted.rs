//! What a fetch is to bring from a tier below memory.

use std::sync::Arc;

use crate::{
    block_bytes::BlockPart,
    ids::{BlockId, TokenId},
    key::{BlockKey, KeyChain},
    missing_keys::MissingKeys,
    tail_parts::{TailPart, TailParts},
};

/// A part of a block that a fetch must fill, with what a reader needs to check what was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The key of the part.
    pub key: BlockKey,
    /// The key of the block before this one in its chain, or of the chain's root. For a part of what layers keep
    /// besides the KV of all tokens, this is the key of the content that the part belongs to.
    pub parent: BlockKey,
    /// The tokens of the block.
    pub tokens: Box<[TokenId]>,
    /// The part of memory that the fetch fills.
    pub part: BlockPart,
}

/// The blocks that a fetch fills with what a sequence needs to go on, besides the KV of all tokens.
#[derive(Debug, Clone)]
pub struct WantedTails {
    parts: Arc<TailParts>,
    /// The number of contents before the first wanted one.
    first: usize,
    /// The last of these contents, by keys and tokens.
    before: Vec<(BlockKey, Box<[TokenId]>)>,
    /// The blocks to fill, for each group. [group][block]
    into: Vec<Vec<BlockId>>,
}

impl WantedTails {
    /// Describes how to fill `into`, the `tails` of a [`Fetch`](crate::Fetch). `keys` are those of the contents that
    /// the fetch brings, and `tokens` gives the tokens of a content of the sequence by its number. Returns `None` if
    /// the sequence needs no tails.
    pub fn new(
        keys: &MissingKeys,
        into: Vec<Vec<BlockId>>,
        mut tokens: impl FnMut(usize) -> Box<[TokenId]>,
    ) -> Option<Self> {
        let before = keys.before().map(|(number, key)| (key, tokens(number))).collect();
        Some(Self { parts: Arc::clone(keys.tails()?), first: keys.first(), before, into })
    }

    /// Returns the parts that are to be filled so that a sequence can go on behind the first `count` of the `wanted`
    /// contents. `chain` computes their keys.
    pub fn behind(&self, count: usize, wanted: &[Wanted], chain: &KeyChain) -> Vec<Wanted> {
        let num_blocks = self.first + count;
        let firsts = self.parts.firsts(num_blocks);
        let part = |TailPart { group, content, part }: TailPart| {
            let (of, tokens) = self.content(content, wanted);
            let block = self.into[group as usize][content - firsts[group as usize]];
            Wanted { key: chain.part(of, group, part), parent: of, tokens, part: BlockPart { block, part } }
        };
        self.parts.behind(num_blocks).map(part).collect()
    }

    /// Returns a few keys to ask a tier for, as a cheap test of whether it has all that goes with the first `count` of
    /// the wanted contents: those of the last and the first part of each group, and of the last content.
    pub fn marks(&self, count: usize, wanted: &[Wanted], chain: &KeyChain) -> Vec<BlockKey> {
        let parts: Vec<_> = self.parts.behind(self.first + count).collect();
        let of_groups = parts.chunk_by(|one, next| one.group == next.group);
        let ends = of_groups.flat_map(|parts| [parts.last(), parts.first()]).flatten();
        let key = |part: &TailPart| chain.part(self.content(part.content, wanted).0, part.group, part.part);
        ends.map(key).chain(count.checked_sub(1).map(|last| wanted[last].key)).collect()
    }

    /// Returns the key and the tokens of a content of the sequence, by its number.
    fn content(&self, number: usize, wanted: &[Wanted]) -> (BlockKey, Box<[TokenId]>) {
        match number.checked_sub(self.first) {
            Some(index) => (wanted[index].key, wanted[index].tokens.clone()),
            None => self.before[self.before.len() + number - self.first].clone(),
        }
    }
}

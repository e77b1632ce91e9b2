//! What a fetch should bring from a tier below memory.

use std::sync::Arc;

use crate::{
    block_bytes::BlockPart,
    ids::{BlockId, TokenId},
    key::{BlockKey, KeyChain},
    missing_keys::MissingKeys,
    tail_parts::{TailPart, TailParts},
};

/// A part that a fetch must bring, with what a reader needs to check what was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The key of the part.
    pub key: BlockKey,
    /// For a trunk block, the key of the content before it in its chain, or of the chain root. For a part of a tail
    /// block, the key of the content that the tail block belongs to.
    pub parent: BlockKey,
    /// The tokens of the content that the part belongs to, `block_size` of them.
    pub tokens: Box<[TokenId]>,
    /// The part of memory that the fetch fills.
    pub part: BlockPart,
}

/// The tail blocks that a fetch fills, besides the trunk blocks.
#[derive(Debug, Clone)]
pub struct WantedTails {
    parts: Arc<TailParts>,
    /// The number of the sequence's contents before the first wanted one.
    first: usize,
    /// Key and tokens of each content before the first wanted one to which tails may belong, in order.
    before: Vec<(BlockKey, Box<[TokenId]>)>,
    /// The tail blocks to fill, one list for each tail group.
    into: Vec<Vec<BlockId>>,
}

impl WantedTails {
    /// Describes how to fill `into`, the [`tails`](crate::Fetch::tails) of a fetch. `keys` are those of the contents
    /// that the fetch brings, and `tokens` returns the tokens of a content of the sequence by its number. Returns
    /// `None` if the model has no tail groups.
    pub fn new(
        keys: &MissingKeys,
        into: Vec<Vec<BlockId>>,
        mut tokens: impl FnMut(usize) -> Box<[TokenId]>,
    ) -> Option<Self> {
        let before = keys.before().map(|(number, key)| (key, tokens(number))).collect();
        Some(Self { parts: Arc::clone(keys.tails()?), first: keys.first(), before, into })
    }

    /// Returns the parts of tail blocks that the fetch must bring so that a sequence can go on behind the first `count`
    /// of the `wanted` contents. `wanted` is the list that was passed to [`LowerTier::fetch`](crate::LowerTier::fetch),
    /// and `chain` computes the keys.
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

    /// Returns a few keys to ask a tier for, as a cheap test of whether it has all that a sequence needs to go on
    /// behind the first `count` of the `wanted` contents: the keys of the last and the first part of each tail group,
    /// then the key of the last of these contents. `chain` computes the keys.
    pub fn marks(&self, count: usize, wanted: &[Wanted], chain: &KeyChain) -> Vec<BlockKey> {
        let parts: Vec<_> = self.parts.behind(self.first + count).collect();
        let of_groups = parts.chunk_by(|one, next| one.group == next.group);
        let ends = of_groups.flat_map(|parts| [parts.last(), parts.first()]).flatten();
        let key = |part: &TailPart| chain.part(self.content(part.content, wanted).0, part.group, part.part);
        ends.map(key).chain(count.checked_sub(1).map(|last| wanted[last].key)).collect()
    }

    /// Returns the key and the tokens of content number `number` of the sequence.
    fn content(&self, number: usize, wanted: &[Wanted]) -> (BlockKey, Box<[TokenId]>) {
        match number.checked_sub(self.first) {
            Some(index) => (wanted[index].key, wanted[index].tokens.clone()),
            None => self.before[self.before.len() + number - self.first].clone(),
        }
    }
}

//! The keys of the contents that a sequence needs and memory lacks.

use std::sync::Arc;

use crate::{
    key::{BlockKey, KeyChain},
    tail_parts::{TailPart, TailParts},
};

/// The keys of the contents of a prompt that memory lacks, and what is needed to find the tails that belong to them.
#[derive(Debug, Clone, Default)]
pub struct MissingKeys {
    /// The keys of all contents from number `first - before` on.
    keys: Arc<[BlockKey]>,
    /// The number of contents in `keys` that memory has.
    before: usize,
    /// The number of contents of the prompt that memory has.
    first: usize,
    tails: Option<Arc<TailParts>>,
}

impl MissingKeys {
    /// Makes the keys of the contents from number `first` on. `keys` begins with `before` contents in front of them:
    /// all that `tails` may need, if there are so many.
    pub(crate) fn new(keys: Vec<BlockKey>, before: usize, first: usize, tails: Option<Arc<TailParts>>) -> Self {
        Self { keys: keys.into(), before, first, tails }
    }

    /// Wraps `keys` for a model of which no layer keeps tails. Memory has the `first` contents in front of them.
    pub fn of_trunk(keys: Vec<BlockKey>, first: usize) -> Self {
        Self { keys: keys.into(), first, ..Self::default() }
    }

    /// Returns the keys of the missing contents, in the order of the tokens.
    pub fn keys(&self) -> &[BlockKey] {
        &self.keys[self.before..]
    }

    /// Returns what follows the first `count` missing contents.
    #[must_use]
    pub fn behind(&self, count: usize) -> Self {
        Self { before: self.before + count, first: self.first + count, ..self.clone() }
    }

    /// Returns the contents in front of the missing ones of which a sequence may need tails, by their numbers among
    /// those of the sequence.
    pub(crate) fn before(&self) -> impl Iterator<Item = (usize, BlockKey)> {
        (self.first - self.before..).zip(self.keys[..self.before].iter().copied())
    }

    /// Returns the number of contents in front of the missing ones.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Returns what a sequence needs to go on besides the KV of all tokens, if it needs anything.
    pub fn tails(&self) -> Option<&Arc<TailParts>> {
        self.tails.as_ref()
    }

    /// Returns how many of the first `found` missing contents, which a tier has, a sequence can use: those up to the
    /// last one for which the tier has all that the sequence needs to go on. `has` tells whether the tier has a key,
    /// and `chain` computes the keys.
    pub fn usable(&self, found: usize, chain: &KeyChain, mut has: impl FnMut(BlockKey) -> bool) -> usize {
        if self.tails.is_none() {
            return found;
        }
        (1..=found).rev().find(|&count| self.tail_keys(count, chain).all(&mut has)).unwrap_or(0)
    }

    /// Returns how many parts a sequence needs to go on behind the first `count` missing contents, besides the KV of
    /// all tokens.
    pub fn num_tail_parts(&self, count: usize) -> usize {
        self.tails.iter().filter(|_| count > 0).map(|tails| tails.behind(self.first + count).count()).sum()
    }

    /// Returns the keys of the parts that a sequence needs to go on behind the first `count` missing contents, besides
    /// the KV of all tokens. `chain` computes them.
    pub fn tail_keys(&self, count: usize, chain: &KeyChain) -> impl Iterator<Item = BlockKey> {
        let (keys, before, first) = (&self.keys, self.before, self.first);
        let tails = self.tails.iter().filter(move |_| count > 0);
        let parts = tails.flat_map(move |tails| tails.behind(first + count));
        parts.map(move |TailPart { group, content, part }| chain.part(keys[content + before - first], group, part))
    }
}

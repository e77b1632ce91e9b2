//! The keys of the contents that a sequence needs and has not got from memory.

use std::sync::Arc;

use crate::{
    key::{BlockKey, KeyChain},
    tail_parts::{TailPart, TailParts},
};

/// The keys of all contents that a sequence needs for its tokens and has not got from memory, and what is needed to
/// compute the keys of the tails that belong to them. Where layers keep tails, memory may have some of these contents,
/// behind the last resume point. [`BlockManager::missing_keys`](crate::BlockManager::missing_keys) makes the value.
#[derive(Debug, Clone, Default)]
pub struct MissingKeys {
    /// The keys of all contents of the prompt from number `first - before` on.
    keys: Arc<[BlockKey]>,
    /// The number of leading contents in `keys` that are not missing. Tails of missing contents may reach back to
    /// these.
    before: usize,
    /// The number of leading contents of the prompt that are not missing.
    first: usize,
    tails: Option<Arc<TailParts>>,
}

impl MissingKeys {
    /// Makes the value for missing contents from number `first` on. `keys` begins with `before` contents that are not
    /// missing: as many as `tails` may reach back to, or all if there are fewer.
    pub(crate) fn new(keys: Vec<BlockKey>, before: usize, first: usize, tails: Option<Arc<TailParts>>) -> Self {
        Self { keys: keys.into(), before, first, tails }
    }

    /// Makes the value for a model without tail groups. `keys` are those of the missing contents, and `first` contents
    /// of the prompt come before them.
    pub fn of_trunk(keys: Vec<BlockKey>, first: usize) -> Self {
        Self { keys: keys.into(), first, ..Self::default() }
    }

    /// Returns the keys of the missing contents, in the order of the tokens.
    pub fn keys(&self) -> &[BlockKey] {
        &self.keys[self.before..]
    }

    /// Returns the same keys without the first `count` missing contents, which count as found from then on.
    #[must_use]
    pub fn behind(&self, count: usize) -> Self {
        Self { before: self.before + count, first: self.first + count, ..self.clone() }
    }

    /// Returns the contents in front of the missing ones to which tails may reach back, each by its number in the
    /// prompt and its key.
    pub(crate) fn before(&self) -> impl Iterator<Item = (usize, BlockKey)> {
        (self.first - self.before..).zip(self.keys[..self.before].iter().copied())
    }

    /// Returns the number of contents of the prompt in front of the missing ones.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Returns which parts of tail blocks a sequence needs to go on; `None` if the model has no tail groups.
    pub fn tails(&self) -> Option<&Arc<TailParts>> {
        self.tails.as_ref()
    }

    /// Returns how many of the first `found` missing contents, all of which a tier has, a sequence can use. Without
    /// tail groups, it can use all of them; otherwise, those up to the last one for which the tier also has the parts
    /// of tail blocks that the sequence needs to go on behind it. `has` tells whether the tier has a key, and `chain`
    /// computes the keys.
    pub fn usable(&self, found: usize, chain: &KeyChain, mut has: impl FnMut(BlockKey) -> bool) -> usize {
        if self.tails.is_none() {
            return found;
        }
        (1..=found).rev().find(|&count| self.tail_keys(count, chain).all(&mut has)).unwrap_or(0)
    }

    /// Returns how many parts of tail blocks a sequence needs to go on behind the first `count` missing contents; 0 if
    /// `count` is 0.
    pub fn num_tail_parts(&self, count: usize) -> usize {
        self.tails.iter().filter(|_| count > 0).map(|tails| tails.behind(self.first + count).count()).sum()
    }

    /// Returns the keys of the parts of tail blocks that a sequence needs to go on behind the first `count` missing
    /// contents; none if `count` is 0. `chain` computes the keys.
    pub fn tail_keys(&self, count: usize, chain: &KeyChain) -> impl Iterator<Item = BlockKey> {
        let (keys, before, first) = (&self.keys, self.before, self.first);
        let tails = self.tails.iter().filter(move |_| count > 0);
        let parts = tails.flat_map(move |tails| tails.behind(first + count));
        parts.map(move |TailPart { group, content, part }| chain.part(keys[content + before - first], group, part))
    }
}

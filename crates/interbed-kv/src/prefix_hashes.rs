//! Keeps the hashes of a waiting sequence's prefixes, which are computed once for each block however often the sequence
//! is looked up.

use std::fmt;

use crate::{
    hash::{BlockHash, ChainHasher, ChainRoot},
    ids::TokenId,
};

/// The root of a sequence's chain and the hashes of its full blocks. The caller keeps them beside the sequence's
/// tokens. Once the sequence has its blocks, it is not looked up any more, and the caller can [drop](Self::truncate)
/// the hashes: the block manager has copied those that it needs.
///
/// [`BlockManager::hash_prefix`](crate::BlockManager::hash_prefix) makes a value of this type, and every look-up takes
/// one. A hash only tells where to look: a hit counts only once tokens and parent compare equal.
#[derive(Clone)]
pub struct PrefixHashes {
    root: ChainRoot,
    hasher: ChainHasher,
    /// The hash of the root; `None` if nothing under this root is findable. In that case nothing is hashed.
    root_hash: Option<BlockHash>,
    block_size: usize,
    blocks: Vec<BlockHash>, // [logical block]
}

impl PrefixHashes {
    /// Makes an empty list of hashes. Nothing will be hashed unless `findable` is set.
    pub(crate) fn new(root: ChainRoot, hasher: ChainHasher, block_size: usize, findable: bool) -> Self {
        let root_hash = findable.then(|| hasher.root(&root));
        Self { root, hasher, root_hash, block_size, blocks: Vec::new() }
    }

    /// Returns the root at which the sequence's chain starts.
    pub fn root(&self) -> &ChainRoot {
        &self.root
    }

    /// Hashes the full blocks of `token_ids` that have not been hashed yet. `token_ids` must be all tokens of the
    /// sequence, and begin with the tokens of earlier calls.
    ///
    /// A look-up of tokens that were not hashed here computes the missing hashes itself, again each time.
    pub fn extend(&mut self, token_ids: &[TokenId]) {
        let Some(root) = self.root_hash else { return };
        let last = self.blocks.last().copied().unwrap_or(root);
        if let Some(missing) =
            token_ids.get(self.blocks.len() * self.block_size..).filter(|it| it.len() >= self.block_size)
        {
            self.hasher.chain(last, missing, self.block_size, &mut self.blocks);
        }
    }

    /// Forgets the hashes of blocks that do not lie wholly in the first `num_tokens` tokens, and frees their memory.
    /// Later calls of [`extend`](Self::extend) may bring other tokens behind these.
    pub fn truncate(&mut self, num_tokens: usize) {
        self.blocks.truncate(num_tokens / self.block_size);
        self.blocks.shrink_to_fit();
    }

    /// Returns the number of blocks whose hash is kept here. A hash takes 8 bytes.
    pub fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the hash of the chain root, from which the first block's hash is computed. Returns `None` if nothing
    /// under this root is findable.
    pub(crate) fn root_hash(&self) -> Option<BlockHash> {
        self.root_hash
    }

    /// Returns the hash of block number `index` of the sequence, if [`extend`](Self::extend) has seen the whole block.
    pub(crate) fn get(&self, index: usize) -> Option<BlockHash> {
        self.blocks.get(index).copied()
    }

    /// Returns the hash of block number `index`. A missing hash is computed from `previous`, the hash before the block,
    /// and the block's `tokens`.
    pub(crate) fn get_or_hash(&self, index: usize, previous: BlockHash, tokens: &[TokenId]) -> BlockHash {
        self.get(index).unwrap_or_else(|| self.hasher.block(previous, tokens))
    }
}

impl fmt::Debug for PrefixHashes {
    // Hashes of what a tenant has asked must not reach logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrefixHashes({:?}, {} blocks)", self.root, self.num_blocks())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_tokens_give_the_hashes_that_they_give_at_once() {
        let (root, hasher) = (ChainRoot::new(Some("a"), 1), ChainHasher::new(5));
        let tokens: Vec<TokenId> = (0..35).collect();
        let mut at_once = PrefixHashes::new(root.clone(), hasher.clone(), 4, true);
        at_once.extend(&tokens);
        let mut grown = PrefixHashes::new(root.clone(), hasher.clone(), 4, true);
        (0..=35).step_by(3).for_each(|end| grown.extend(&tokens[..end]));
        grown.extend(&tokens);
        let mut previous = hasher.root(&root);
        for (index, block) in tokens.chunks_exact(4).enumerate() {
            let hash = hasher.block(previous, block);
            assert_eq!((at_once.get(index), grown.get(index)), (Some(hash), Some(hash)));
            assert_eq!(at_once.get_or_hash(index, BlockHash(0), &[]), hash);
            previous = hash;
        }
        assert_eq!((at_once.get(8), grown.blocks.len()), (None, 8));
        assert_eq!(at_once.get_or_hash(8, previous, &tokens[32..]), hasher.block(previous, &tokens[32..]));
    }

    #[test]
    fn other_tokens_have_other_hashes_once_those_before_were_cut() {
        let of = |tokens: &[TokenId]| {
            let mut hashes = PrefixHashes::new(ChainRoot::default(), ChainHasher::new(5), 4, true);
            hashes.extend(tokens);
            hashes
        };
        let [before, after] = [[1; 30], [2; 30]].map(|end| [[7; 10].as_slice(), &end].concat());
        for cut in 0..=10 {
            let mut hashes = of(&before);
            hashes.truncate(cut);
            assert_eq!((hashes.num_blocks(), hashes.blocks.capacity()), (cut / 4, cut / 4));
            hashes.extend(&after);
            assert_eq!(hashes.blocks, of(&after).blocks, "cut at {cut}");
        }
    }

    #[test]
    fn what_nobody_can_find_is_not_hashed() {
        let mut hashes = PrefixHashes::new(ChainRoot::unshared(), ChainHasher::new(5), 1, false);
        hashes.extend(&[1, 2, 3]);
        assert_eq!((hashes.root_hash(), hashes.get(0)), (None, None));
    }
}

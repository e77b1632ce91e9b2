//! Tells tiers below memory about contents, and brings prefixes back from these tiers.

use std::sync::Arc;

use super::BlockManager;
use crate::{
    block_bytes::BlockPart,
    cache::{Need, Taker},
    config::Keeps,
    error::BlockError,
    ids::{BlockId, FetchId, SequenceId, TokenId},
    key::{BlockKey, BlockLabel, KeyChain},
    missing_keys::MissingKeys,
    names::{Evicted, WantedPoint},
    sequence_state::SequenceState,
    tables::Table,
    tail_pool::TailPool,
    tail_table::TailTable,
    transfer::Fetch,
};

impl BlockManager {
    /// Gives every findable content a key under `chain`, from now on. Lower tiers know contents by these keys. Contents
    /// that are findable already count as published now, so [`take_published`](Self::take_published) returns them too.
    pub fn name_contents(&mut self, chain: KeyChain) {
        self.cache.name_contents(chain);
    }

    /// Returns the trunk blocks whose contents have become findable since the last call, in order. Returns none unless
    /// contents have [keys](Self::name_contents). Some of these contents may have been evicted meanwhile.
    pub fn take_published(&mut self) -> Vec<BlockId> {
        self.cache.names_mut().map(|names| names.take_published()).unwrap_or_default()
    }

    /// Returns the contents that were evicted since the last call, in order; none unless contents have
    /// [keys](Self::name_contents). Where layers keep tails, these are only contents that led to a
    /// [wanted](crate#terms) resume point. The caller must have carried out all copies that were pending before an
    /// eviction. The bytes of these contents are still in their blocks, until the caller carries out copies that it has
    /// not yet [taken](Self::take_copies), begins a pass, or gives back the memory of blocks that have left.
    pub fn take_evicted(&mut self) -> Vec<Evicted> {
        self.cache.names_mut().map(|names| names.take_evicted()).unwrap_or_default()
    }

    /// Returns the label of the content of the trunk block `block`. Returns `None` if the content is not findable, or
    /// contents have no [keys](Self::name_contents).
    pub fn label(&self, block: BlockId) -> Option<BlockLabel> {
        self.cache.label(block)
    }

    /// Returns the label of the content of a part's block, in the way of [`label`](Self::label). Returns `None` for
    /// parts of tail blocks.
    pub fn label_of(&self, part: BlockPart) -> Option<BlockLabel> {
        (part.block.index() < self.config.num_blocks).then(|| self.label(part.block)).flatten()
    }

    /// Returns whether a sequence or a transfer holds the trunk block `block`.
    ///
    /// # Panics
    /// Panics if the block has no content, which means that it is free or withdrawn.
    pub fn is_held(&self, block: BlockId) -> bool {
        self.cache.holders(block) > 0
    }

    /// Returns the key of the content of the trunk block `block`. Returns `None` if the content is not findable, or
    /// contents have no [keys](Self::name_contents).
    pub fn key(&self, block: BlockId) -> Option<BlockKey> {
        self.cache.key(block)
    }

    /// Returns the keys of the full blocks of `id` that it has not got from memory, in the order of the tokens: all
    /// behind the last published one. `token_ids` must be all tokens of `id`. The last token is in none of these
    /// blocks, since it must be computed. Returns no key if contents have no [keys](Self::name_contents), if `id` is
    /// unknown or not resident, or if the sequence shares nothing.
    pub fn missing_keys(&self, id: SequenceId, token_ids: &[TokenId]) -> MissingKeys {
        let (Some(names), Some(table)) = (self.cache.names(), self.tables.get(id)) else {
            return MissingKeys::default();
        };
        if !table.is_publishing() || table.state() != SequenceState::Resident {
            return MissingKeys::default();
        }
        let (block_size, found) = (self.config.block_size, table.num_published());
        let Some(mut last) = self.parent_key(id) else { return MissingKeys::default() };
        let end = token_ids.len().saturating_sub(1) / block_size * block_size;
        let missing = token_ids.get(found * block_size..end).unwrap_or_default().chunks_exact(block_size);
        let tails = self.cache.tails().map(|tails| Arc::clone(&tails.parts));
        let before = tails.as_ref().map_or(0, |tails| tails.reach().min(found));
        let mut keys: Vec<_> = table.blocks()[found - before..found].iter().map(|&block| names.key(block)).collect();
        keys.extend(missing.map(|tokens| {
            last = names.chain().block(last, tokens);
            last
        }));
        MissingKeys::new(keys, before, found, tails)
    }

    /// Returns the key of the content that the first of the [missing blocks](Self::missing_keys) of `id` continues. If
    /// there is no such content, this is the key of the chain root. Returns `None` if contents have no
    /// [keys](Self::name_contents) or `id` is unknown.
    pub fn parent_key(&self, id: SequenceId) -> Option<BlockKey> {
        let (names, table) = (self.cache.names()?, self.tables.get(id)?);
        Some(match table.num_published().checked_sub(1) {
            None => names.chain().root(table.root()),
            Some(last) => names.key(table.blocks()[last]),
        })
    }

    /// Begins to fill the next `count` blocks of `id`, counted from the first block whose tokens are not all computed.
    /// If layers keep tails, the fetch also gets tail blocks for a sequence that goes on behind these blocks. The
    /// sequence is `Fetching` until [`finish_fetch`](Self::finish_fetch).
    ///
    /// # Errors
    /// The manager is unchanged on failure:
    /// - [`BlockError::NotHeld`] if `id` is unknown, and [`BlockError::WrongState`] if it is not resident;
    /// - [`BlockError::OutOfBlocks`] if `id` has fewer than `count` full blocks from there on, or if too few units are
    ///   available for the tail blocks.
    pub fn begin_fetch(&mut self, id: SequenceId, count: usize) -> Result<Fetch, BlockError> {
        let block_size = self.config.block_size;
        let table = self.tables.resident(id)?;
        let first = table.num_computed() / block_size;
        let full = table.num_tokens() / block_size;
        let below = table.below();
        if first + count > full {
            return Err(BlockError::OutOfBlocks { need: count, available: full - first });
        }
        let (blocks, taker) =
            (table.blocks()[first - below..first - below + count].to_vec(), Taker::new(id, table.root()));
        let tails = self.take_fetched_tails(first + count, taker)?;
        blocks.iter().for_each(|&block| self.cache.hold(block));
        let fetch = self.transfers.begin_fetch(id, blocks, tails);
        self.tables.get_mut(id).into_iter().for_each(|table| table.begin_fetching(fetch.id));
        Ok(fetch)
    }

    /// Takes the tail blocks in which a fetch leaves what a sequence needs to go on behind its first `num_blocks`
    /// blocks: a list for each tail group.
    ///
    /// # Errors
    /// Fails with [`BlockError::OutOfBlocks`] if too few units are available, and takes nothing then.
    fn take_fetched_tails(&mut self, num_blocks: usize, taker: Taker) -> Result<Vec<Vec<BlockId>>, BlockError> {
        let Some(tails) = self.cache.tails() else { return Ok(Vec::new()) };
        let count = |pool: &TailPool| pool.keeps().tail_blocks(num_blocks, self.config.block_size);
        let counts: Vec<_> = tails.pools.iter().map(count).collect();
        let tail_bytes = self.fetched_tail_bytes(num_blocks);
        self.expect_room(Need { tail_bytes, ..Need::default() })?;
        let take = |(pool, count): (usize, usize)| (0..count).map(|_| self.cache.take_tail(pool, taker)).collect();
        Ok(counts.into_iter().enumerate().map(take).collect())
    }

    /// Returns the bytes of the blocks in which a fetch leaves what a sequence needs to go on behind `num_blocks`
    /// blocks, besides the KV of all tokens.
    pub(super) fn fetched_tail_bytes(&self, num_blocks: usize) -> usize {
        let bytes = |pool: &TailPool| pool.block_bytes() * pool.keeps().tail_blocks(num_blocks, self.config.block_size);
        self.cache.tails().map_or(0, |tails| tails.pools.iter().map(bytes).sum())
    }

    /// Begins to fill `count` blocks of `id` from block number `first` on, which the sequence has neither found nor
    /// computed. The sequence stays resident, and computes the blocks before them meanwhile. The filled blocks count as
    /// computed once the caller says so to [`commit`](Self::commit). The fetch brings no tails, so it is of no use
    /// where layers keep tails.
    ///
    /// # Errors
    /// The manager is unchanged on failure:
    /// - [`BlockError::NotHeld`] if `id` is unknown, and [`BlockError::WrongState`] if it is not resident;
    /// - [`BlockError::OutOfBlocks`] if `id` does not have all these blocks with all their tokens, or has computed a
    ///   token of the first one.
    pub fn begin_fetch_ahead(&mut self, id: SequenceId, first: usize, count: usize) -> Result<Fetch, BlockError> {
        let block_size = self.config.block_size;
        let table = self.tables.resident(id)?;
        let (full, below) = (table.num_tokens() / block_size, table.below());
        if first * block_size < table.num_computed() || first + count > full {
            return Err(BlockError::OutOfBlocks { need: count, available: full.saturating_sub(first) });
        }
        let blocks = table.blocks()[first - below..first - below + count].to_vec();
        blocks.iter().for_each(|&block| self.cache.hold(block));
        Ok(self.transfers.begin_fetch(id, blocks, Vec::new()))
    }

    /// Takes the caller's report that a fetch [ahead](Self::begin_fetch_ahead) has ended, well or not. The caller
    /// reports each of these fetches once.
    pub fn finish_fetch_ahead(&mut self, id: FetchId) {
        if let Some(Fetch { blocks, .. }) = self.transfers.end_fetch(id) {
            blocks.iter().rev().for_each(|&block| self.cache.release(block));
        }
    }

    /// Takes the caller's report that a fetch has ended and that the first `num_filled` of its blocks hold the KV that
    /// was asked for. These blocks count as computed, and become findable unless the sequence shares nothing. The
    /// tokens that were computed before the fetch must fill whole blocks. If the fetch has [tails](Fetch::tails), they
    /// hold what the sequence needs to go on behind the filled blocks. The caller reports each fetch once. Returns the
    /// fetch's sequence and how many of its tokens are computed now. Returns `None` if the fetch is unknown, or if the
    /// sequence no longer waits for it.
    pub fn finish_fetch(&mut self, id: FetchId, num_filled: usize) -> Option<(SequenceId, usize)> {
        let Fetch { sequence, blocks, tails, .. } = self.transfers.end_fetch(id)?;
        blocks.iter().rev().for_each(|&block| self.cache.release(block));
        let waits = |table: &&mut Table| table.state() == SequenceState::Fetching(id);
        let Some(table) = self.tables.get_mut(sequence).filter(waits) else {
            tails.into_iter().flatten().for_each(|block| self.cache.release_any(block));
            self.cache.settle();
            return None;
        };
        table.finish_fetching();
        let num_filled = num_filled.min(blocks.len());
        let computed = table.num_computed() + num_filled * self.config.block_size;
        self.counters.fetched_blocks += num_filled as u64;
        self.go_on_behind(sequence, computed, tails);
        self.commit(sequence, computed);
        self.cache.settle();
        Some((sequence, computed))
    }

    /// Replaces the tails of `id` by `fetched`, a list of tail blocks for each tail group, for a sequence of which
    /// `computed` tokens are computed. If that is no more than before, the tails of `id` stay as they are, and the
    /// fetched blocks are released.
    fn go_on_behind(&mut self, id: SequenceId, computed: usize, fetched: Vec<Vec<BlockId>>) {
        let Self { tables, cache, config, .. } = self;
        let Some(table) = tables.get_mut(id) else { return };
        let (goes_on, num_blocks) = (computed > table.num_computed(), computed / config.block_size);
        for (index, (mut blocks, group)) in fetched.into_iter().zip(&mut table.tails_mut().groups).enumerate() {
            let keeps = cache.tails().map_or(Keeps::State, |tails| tails.pools[index].keeps());
            let used = if goes_on { keeps.tail_blocks(num_blocks, config.block_size) } else { 0 };
            let unused = blocks.split_off(used);
            let replaced = if goes_on { group.take_blocks() } else { Vec::new() };
            unused.into_iter().chain(replaced).for_each(|block| cache.release_tail(index, block));
            match group {
                _ if !goes_on => {}
                TailTable::Window(window) => (window.first, window.blocks) = (num_blocks - used, blocks.into()),
                TailTable::State(state) => state.from = blocks.pop(),
            }
        }
        if goes_on {
            // Others are likely to go on there, too.
            table.tails_mut().branch = num_blocks;
        }
    }

    /// Returns the [wanted](crate#terms) resume points that were not returned before, without those that have ended. A
    /// point that was returned as that [of an answer](WantedPoint::is_of_answer) is returned again once there is
    /// another reason to want it. Returns none unless contents have [keys](Self::name_contents).
    pub fn take_wanted_points(&mut self) -> Vec<WantedPoint> {
        self.cache.take_wanted_points()
    }

    /// Returns the parts of tail blocks that a sequence needs to go on behind the content of the trunk block `block`,
    /// each with its label, tail group by tail group. Returns `None` if the content is no resume point, or contents
    /// have no [keys](Self::name_contents). The bytes are there only if no copies [are pending](Self::has_copies).
    pub fn point_parts(&self, block: BlockId) -> Option<Vec<(BlockLabel, BlockPart)>> {
        self.cache.point_parts(block)
    }

    /// Returns whether copies are pending, which the caller has not yet [taken](Self::take_copies).
    pub fn has_copies(&self) -> bool {
        self.transfers.has_copies()
    }

    /// Returns the parts of tail blocks of each wanted resume point that has ended since the last call, one list for
    /// each point. Points that [`reset_cache`](Self::reset_cache) ends are not returned, nor those that had ended
    /// before it and were not returned yet. The bytes are there as long as those that
    /// [`take_evicted`](Self::take_evicted) returns.
    pub fn take_evicted_points(&mut self) -> Vec<Vec<Evicted>> {
        self.cache.names_mut().map(|names| names.take_evicted_points()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::{ChainRoot, KvConfig, testing::Rng};

    const BLOCK: usize = 4;

    /// Returns the keys of the full blocks of `tokens`.
    fn keys(chain: &KeyChain, root: &ChainRoot, tokens: &[TokenId]) -> Vec<BlockKey> {
        let mut last = chain.root(root);
        let next = |tokens| {
            last = chain.block(last, tokens);
            last
        };
        tokens.chunks_exact(BLOCK).map(next).collect()
    }

    #[test]
    fn prefixes_come_back_under_their_names_whatever_happens() {
        let chain = KeyChain::new([1; 32], [2; 32]);
        let (mut fetched, mut evicted, mut partial, mut late) = (0, 0, 0, 0);
        for seed in 0..30 {
            let mut random = Rng(seed);
            let config = KvConfig { num_blocks: 24, block_size: BLOCK, ..KvConfig::default() };
            let mut manager = BlockManager::new(config).expect("it is valid");
            // Contents may get keys at any time.
            let named_at = if seed % 2 == 0 { 0 } else { random.below(300) as u64 };
            let roots = [ChainRoot::new(None, 0), ChainRoot::new(None, 0).of_tenant(Some(7))];
            let mut alive: HashMap<SequenceId, (usize, Vec<TokenId>)> = HashMap::new();
            let mut fetches: Vec<(FetchId, usize)> = Vec::new();
            for number in 0..600 {
                if number == named_at {
                    manager.name_contents(chain.clone());
                    let mut published = manager.take_published();
                    late += published.len();
                    for &block in &published {
                        let label = manager.label(block).expect("it can be found");
                        assert_eq!(chain.block(label.parent, &label.tokens), label.key);
                    }
                    published.sort_unstable();
                    let findable = (0..24).map(BlockId).filter(|&block| manager.key(block).is_some());
                    assert_eq!(published, findable.collect::<Vec<_>>(), "each once");
                }
                let some = |random: &mut Rng, of: &HashMap<SequenceId, (usize, Vec<TokenId>)>| {
                    let mut ids: Vec<_> = of.keys().copied().collect();
                    ids.sort_unstable();
                    (!ids.is_empty()).then(|| ids[random.below(ids.len())])
                };
                match random.below(6) {
                    0 | 1 => {
                        let id = SequenceId(number);
                        let tokens: Vec<_> = (0..1 + random.below(30)).map(|_| random.below(2) as TokenId).collect();
                        let root = random.below(2);
                        let hashes = manager.hash_prefix(&roots[root], &tokens);
                        if manager.allocate(id, &tokens, &hashes).is_ok() {
                            let missing = manager.missing_keys(id, &tokens).keys().to_vec();
                            assert!(number >= named_at || missing.is_empty());
                            let all = keys(&chain, &roots[root], &tokens);
                            let end = (tokens.len() - 1) / BLOCK;
                            assert_eq!(missing, all[end - missing.len()..end]);
                            if !missing.is_empty() && random.below(2) > 0 {
                                let count = 1 + random.below(missing.len());
                                let fetch = manager.begin_fetch(id, count).expect("it has them");
                                assert_eq!((fetch.blocks.len(), manager.block_table(id)), (count, None));
                                assert!(manager.begin_fetch(id, 1).is_err() && manager.append(id, &[1]).is_err());
                                fetches.push((fetch.id, count));
                            }
                            alive.insert(id, (root, tokens));
                        }
                    }
                    2 if !fetches.is_empty() => {
                        let (id, count) = fetches.swap_remove(random.below(fetches.len()));
                        let filled = random.below(count + 1);
                        if let Some((id, computed)) = manager.finish_fetch(id, filled) {
                            let (_, tokens) = &alive[&id];
                            assert_eq!(
                                manager.missing_keys(id, tokens).keys().len(),
                                (tokens.len() - 1) / BLOCK - computed / BLOCK
                            );
                            fetched += filled;
                            partial += usize::from(filled < count);
                        }
                    }
                    3 => {
                        let Some(id) = some(&mut random, &alive) else { continue };
                        manager.commit(id, alive[&id].1.len());
                    }
                    4 => {
                        let Some(id) = some(&mut random, &alive) else { continue };
                        alive.remove(&id);
                        assert!(manager.free(id));
                    }
                    _ => {
                        manager.set_usable(16 + random.below(9));
                        manager.compact(4);
                        manager.take_copies(&mut Vec::new());
                    }
                }
                manager.check().expect("invariants hold");
                evicted += manager.take_evicted().len();
                for block in manager.take_published() {
                    let Some(label) = manager.label(block) else { continue };
                    assert_eq!(manager.key(block), Some(label.key));
                    assert_eq!(chain.block(label.parent, &label.tokens), label.key);
                    assert!([None, Some(7)].iter().any(|&tenant| chain.owner(tenant) == label.owner));
                }
                for (&id, (root, tokens)) in &alive {
                    let Some(table) = manager.block_table(id) else { continue };
                    for (&block, key) in table.iter().zip(keys(&chain, &roots[*root], tokens)) {
                        assert!(manager.key(block).is_none_or(|found| found == key));
                    }
                }
            }
        }
        assert!(fetched > 50 && evicted > 50 && partial > 20 && late > 50, "{fetched} {evicted} {partial} {late}");
    }
}

//! Integration tests of the block manager, in one binary.

mod admission;
mod compact;
mod fork;
mod lessons;
mod miss;
mod model;
mod resize;
mod swap;
mod tails;

use interbed_kv::testing::OLDEST_LEAF;
use interbed_kv::{
    AllocStatus, Allocation, BlockError, BlockId, BlockManager, ChainRoot, KvConfig, Miss, SequenceId, TokenId,
};

/// Returns a pool without watermark.
fn pool(num_blocks: usize, block_size: usize) -> BlockManager {
    BlockManager::new(config(num_blocks, block_size)).expect("a good configuration")
}

fn config(num_blocks: usize, block_size: usize) -> KvConfig {
    KvConfig { num_blocks, block_size, watermark: 0.0, seed: 3, eviction: OLDEST_LEAF, ..KvConfig::default() }
}

fn id(number: u64) -> SequenceId {
    SequenceId(number)
}

fn root() -> ChainRoot {
    ChainRoot::default()
}

/// Returns `count` tokens, which differ from the tokens of any other start that is at least a thousand away.
fn tokens(start: u32, count: u32) -> Vec<TokenId> {
    (start..start + count).collect()
}

fn table(manager: &BlockManager, number: u64) -> Vec<u32> {
    manager.block_table(id(number)).expect("a held sequence").iter().map(|&BlockId(block)| block).collect()
}

/// Allocates and computes all of a prompt, and returns the number of its cached tokens.
fn run_prompt(manager: &mut BlockManager, number: u64, prompt: &[TokenId]) -> usize {
    let allocation = manager.allocate_under(id(number), prompt, &root()).expect("room for the prompt");
    manager.commit(id(number), prompt.len());
    manager.check().expect("invariants");
    allocation.num_cached_tokens
}

/// Frees a sequence that is held.
fn release(manager: &mut BlockManager, number: u64) {
    assert!(manager.free(id(number)));
    manager.check().expect("invariants");
}

/// Methods that take hashes, for tests that need the hashes only for one call.
trait UnderRoot {
    fn allocate_under(
        &mut self,
        id: SequenceId,
        token_ids: &[TokenId],
        root: &ChainRoot,
    ) -> Result<Allocation, BlockError>;
    fn can_allocate_under(&self, token_ids: &[TokenId], root: &ChainRoot) -> AllocStatus;
    fn cached_prefix_under(&self, token_ids: &[TokenId], root: &ChainRoot) -> usize;
    fn explain_under(&self, token_ids: &[TokenId], root: &ChainRoot) -> Miss;
}

impl UnderRoot for BlockManager {
    fn allocate_under(
        &mut self,
        id: SequenceId,
        token_ids: &[TokenId],
        root: &ChainRoot,
    ) -> Result<Allocation, BlockError> {
        self.allocate(id, token_ids, &self.hash_prefix(root, token_ids))
    }

    fn can_allocate_under(&self, token_ids: &[TokenId], root: &ChainRoot) -> AllocStatus {
        self.can_allocate(token_ids, &self.hash_prefix(root, token_ids))
    }

    fn cached_prefix_under(&self, token_ids: &[TokenId], root: &ChainRoot) -> usize {
        self.look_up(token_ids, &self.hash_prefix(root, token_ids)).num_cached_tokens
    }

    fn explain_under(&self, token_ids: &[TokenId], root: &ChainRoot) -> Miss {
        self.explain(token_ids, &self.hash_prefix(root, token_ids))
    }
}

/// Returns the copies to be made before the next pass, as pairs of source and destination.
fn copies(manager: &mut BlockManager) -> Vec<(BlockId, BlockId)> {
    let mut copies = Vec::new();
    manager.take_copies(&mut copies);
    copies.into_iter().map(|copy| (copy.source, copy.destination)).collect()
}

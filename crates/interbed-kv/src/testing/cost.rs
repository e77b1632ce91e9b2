//! What an eviction policy costs, in steps.

use super::{Rng, counted};
use crate::{BlockManager, ChainRoot, EvictionKind, KvConfig, SequenceId, TokenId};

/// Steps per block for prompts that share prefixes at random and would fill the pool many times.
pub fn steps_per_block(eviction: EvictionKind, num_blocks: usize) -> f64 {
    let config = KvConfig { num_blocks, block_size: 1, eviction, ..KvConfig::default() };
    let mut manager = BlockManager::new(config).expect("a good configuration");
    let mut rng = Rng(7);
    let mut random = |end: usize| rng.below(end) as TokenId;
    let mut blocks = 0;
    let steps = counted(|| {
        while blocks < 12 * num_blocks {
            // Short and long chains of several families, where families of small numbers are more frequent.
            let families = num_blocks / 8;
            let (family, length) = (random(families) * random(families) / families as TokenId, 1 + random(60));
            let prompt: Vec<_> = (0..length).map(|at| if at < 20 { family } else { random(9) }).collect();
            let hashes = manager.hash_prefix(&ChainRoot::default(), &prompt);
            manager.allocate(SequenceId(0), &prompt, &hashes).expect("room");
            manager.commit(SequenceId(0), prompt.len());
            manager.free(SequenceId(0));
            blocks += prompt.len();
        }
    });
    steps as f64 / blocks as f64
}

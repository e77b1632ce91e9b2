//! Measures what an eviction policy costs, in steps.

use super::counted;
use crate::{BlockManager, ChainRoot, EvictionKind, KvConfig, SequenceId, TokenId};

/// Returns the number of steps per block for prompts that share prefixes at random and would fill the pool many times.
pub fn steps_per_block(eviction: EvictionKind, num_blocks: usize) -> f64 {
    let config = KvConfig { num_blocks, block_size: 1, eviction, ..KvConfig::default() };
    let mut manager = BlockManager::new(config).expect("a good configuration");
    let mut state = 7u64;
    let mut random = |end: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % end) as TokenId
    };
    let mut blocks = 0;
    let steps = counted(|| {
        while blocks < 12 * num_blocks {
            // Short and long chains of several families, where families of small numbers are more frequent.
            let families = num_blocks as u64 / 8;
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

//! Whoever is told of the prefix cache's changes knows exactly what it holds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use interbed_engine::{Attachments, Engine, PreemptionMode};
use interbed_kv::testing::Rng;
use interbed_kv::{BlockHash, CacheChange, CacheChanges, CacheWatcher};

use crate::sim::{Shape, SimRunner, assert_idle_and_whole, collect, engine_config, greedy, prompt, with_swap};

const BLOCK: usize = 4;

const SHAPE: Shape = Shape {
    blocks: 60,
    block_size: BLOCK,
    prefix_caching: true,
    max_num_seqs: 6,
    max_num_batched_tokens: 32,
    max_model_len: 160,
    longer_than_memory: false,
    swap_blocks: 20,
    preemption: PreemptionMode::Auto,
    max_token_gap: None,
    tails: &[],
};

/// What a router knows: under each block, the blocks that continue it, by their tokens.
#[derive(Default)]
struct Index {
    blocks: HashMap<BlockHash, Option<BlockHash>>,
    next: HashMap<(Option<BlockHash>, Vec<u32>), BlockHash>,
    calls: usize,
}

impl Index {
    fn apply(&mut self, change: CacheChange<'_>) {
        match change {
            CacheChange::Stored { hash, parent, tokens } => {
                assert!(parent.is_none_or(|parent| self.blocks.contains_key(&parent)), "{hash:?} continues nothing");
                assert!(self.blocks.insert(hash, parent).is_none(), "{hash:?} was stored twice");
                assert!(self.next.insert((parent, tokens.to_vec()), hash).is_none());
            }
            CacheChange::Removed { hash } => {
                self.blocks.remove(&hash).expect("what was removed had been stored");
                self.next.retain(|_, known| *known != hash);
            }
            CacheChange::Cleared => (self.blocks, self.next) = Default::default(),
        }
    }

    /// Leading tokens of a prompt that must be found. Its last token is always computed.
    fn cached_tokens(&self, prompt: &[u32]) -> usize {
        let mut last = None;
        let blocks = prompt[..prompt.len() - 1].chunks_exact(BLOCK);
        let known = blocks.map_while(|tokens| {
            last = Some(*self.next.get(&(last, tokens.to_vec()))?);
            last
        });
        known.count() * BLOCK
    }
}

struct Watcher(Arc<Mutex<Index>>);

impl CacheWatcher for Watcher {
    fn changed(&mut self, changes: &CacheChanges) {
        assert!(!changes.is_empty());
        let mut index = self.0.lock().unwrap();
        changes.iter().for_each(|change| index.apply(change));
        index.calls += 1;
    }
}

#[test]
fn whoever_follows_the_changes_knows_what_is_cached() {
    let (runner, controls) = SimRunner::new(BLOCK);
    let index = Arc::new(Mutex::new(Index::default()));
    let cache_watcher = Some(Box::new(Watcher(index.clone())) as _);
    let attachments = Attachments { cache_watcher, ..with_swap(SHAPE, &controls, Vec::new()) };
    let engine = Engine::start_with(engine_config(SHAPE), Box::new(runner), attachments).unwrap();
    let mut rng = Rng(23);
    let mut hits = 0;
    for _ in 0..30 {
        // Several at once: they share beginnings, preempt each other and evict what nobody uses.
        let requests: Vec<_> = (0..1 + rng.below(8))
            .map(|_| greedy(prompt(rng.below(5) as u32, 1 + rng.below(100)), 1 + rng.below(40)))
            .collect();
        let streams: Vec<_> = requests.iter().map(|request| engine.handle().submit(request.clone()).unwrap()).collect();
        // Some clients go away.
        for stream in streams {
            if rng.below(4) > 0 {
                drop(collect(stream));
            }
        }
        // Once this one has an answer, those whose clients went away at once have been taken in as well. It takes
        // several steps, so that a status from before it is not taken for one at rest.
        drop(collect(engine.handle().submit(greedy(prompt(0, 3), 4)).unwrap()));
        assert_idle_and_whole(&engine);
        // An idle engine's blocks that can be found are those that are cached.
        let cached = engine.handle().status().kv.blocks_cached;
        assert_eq!(index.lock().unwrap().blocks.len(), cached);
        let asked = prompt(rng.below(5) as u32, 1 + rng.below(100));
        let expected = index.lock().unwrap().cached_tokens(&asked);
        assert_eq!(collect(engine.handle().submit(greedy(asked, 1)).unwrap()).cached_tokens, expected);
        assert_idle_and_whole(&engine);
        hits += usize::from(expected > 0);
    }
    let status = engine.handle().status();
    assert!(hits > 5 && status.kv.evictions > 100, "{hits} hits, {} evictions", status.kv.evictions);
    let calls = index.lock().unwrap().calls;
    assert!(calls as u64 <= status.steps + 30, "{calls} calls for {} steps", status.steps);
}

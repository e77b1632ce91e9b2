//! Random operations against the naive reference, with every invariant checked after each. The test plays the device:
//! it writes a fingerprint into each slot that a step computes, and what a sequence reads through its block table must
//! be its own, above all where a block is shared.
//!
//! A failure prints its seed; `STRATA_TEST_SEED=<seed> cargo test -p strata-kv <test>` replays that run alone.

use std::collections::{BTreeMap, BTreeSet};

use strata_kv::{
    AllocError, AllocStatus, BlockId, BlockManager, ChainHasher, ChainRoot, Content, EvictionKind, EvictionPolicy,
    KvConfig, SequenceId, TokenId,
};

use crate::{
    naive::{Naive, Print},
    rng::{Rng, mix},
};

/// One shape of run.
struct Case {
    block_size: usize,
    blocks_max: usize,
    prefix_caching: bool,
    hash_bits: u32,
    eviction: Eviction,
    /// Every outcome must be the reference's. Not so where the index may refuse a block or the order of eviction
    /// differs; what is read, and all invariants, must hold there too.
    exact: bool,
    steps: usize,
}

enum Eviction {
    Kind(EvictionKind),
    /// Panics where the block that was let go longest ago is no leaf.
    Oldest,
    RandomLeaf,
}

const CASE: Case = Case {
    block_size: 1,
    blocks_max: 24,
    prefix_caching: true,
    hash_bits: 64,
    eviction: Eviction::Kind(EvictionKind::Lru),
    exact: true,
    steps: 60_000,
};

#[test]
fn block_size_1() {
    run(&CASE);
}

#[test]
fn block_size_4() {
    run(&Case { block_size: 4, blocks_max: 32, ..CASE });
}

#[test]
fn block_size_16() {
    run(&Case { block_size: 16, blocks_max: 16, steps: 16_000, ..CASE });
}

#[test]
fn block_size_256() {
    run(&Case { block_size: 256, blocks_max: 8, steps: 3_000, ..CASE });
}

#[test]
fn plain_block_size_1() {
    run(&Case { prefix_caching: false, ..CASE });
}

#[test]
fn plain_block_size_4() {
    run(&Case { block_size: 4, prefix_caching: false, ..CASE });
}

#[test]
fn plain_block_size_16() {
    run(&Case { block_size: 16, blocks_max: 16, prefix_caching: false, steps: 16_000, ..CASE });
}

#[test]
fn plain_block_size_256() {
    run(&Case { block_size: 256, blocks_max: 8, prefix_caching: false, steps: 3_000, ..CASE });
}

#[test]
fn four_bit_hashes_block_size_1() {
    run(&Case { hash_bits: 4, ..CASE });
}

#[test]
fn four_bit_hashes_block_size_4() {
    run(&Case { block_size: 4, hash_bits: 4, blocks_max: 32, ..CASE });
}

#[test]
fn four_bit_hashes_block_size_16() {
    run(&Case { block_size: 16, hash_bits: 4, blocks_max: 16, steps: 12_000, ..CASE });
}

#[test]
fn all_hashes_equal() {
    // No more blocks than a bucket of the index takes, so the reference stays exact.
    run(&Case { block_size: 2, hash_bits: 0, blocks_max: 32, ..CASE });
}

#[test]
fn all_hashes_equal_and_the_index_overfull() {
    run(&Case { hash_bits: 0, blocks_max: 90, exact: false, ..CASE });
}

#[test]
fn any_eviction_policy_that_takes_leaves() {
    run(&Case { block_size: 2, blocks_max: 32, eviction: Eviction::RandomLeaf, exact: false, ..CASE });
}

#[test]
fn every_eviction_policy() {
    for kind in EvictionKind::ALL {
        run(&Case { block_size: 2, blocks_max: 32, eviction: Eviction::Kind(kind), exact: false, ..CASE });
    }
}

// K4: blocks are let go of from the last to the first, so the oldest is always a leaf and no policy has to search.
#[test]
fn the_oldest_cached_block_is_always_a_leaf() {
    run(&Case { block_size: 2, blocks_max: 32, eviction: Eviction::Oldest, ..CASE });
}

const STEPS_PER_EPISODE: usize = 1000;

fn run(case: &Case) {
    let replay = std::env::var("STRATA_TEST_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seeds = match replay {
        Some(seed) => vec![seed],
        None => (0..case.steps.div_ceil(STEPS_PER_EPISODE) as u64).collect::<Vec<u64>>(),
    };
    for seed in seeds {
        let _printed_on_panic = PrintSeed(seed);
        let mut episode = Episode::new(case, seed);
        for _ in 0..STEPS_PER_EPISODE {
            episode.step();
            episode.verify();
        }
        episode.finish();
    }
}

struct PrintSeed(u64);

impl Drop for PrintSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with STRATA_TEST_SEED={}", self.0);
        }
    }
}

/// A sequence as the test knows it.
struct Running {
    root: usize,
    tokens: Vec<TokenId>,
    prints: Vec<Print>,
    /// Leading tokens whose KV is in the sequence's blocks.
    computed: usize,
}

struct Episode {
    rng: Rng,
    config: KvConfig,
    manager: BlockManager,
    naive: Option<Naive>,
    roots: Vec<ChainRoot>,
    device: Vec<Print>, // [block, slot]
    running: BTreeMap<u64, Running>,
    /// Whether the device has memory for a block, as far as it was told.
    memory: Vec<bool>, // [block]
    /// Contents ever committed: nothing else may be found.
    committed: BTreeSet<Print>,
    next_id: u64,
}

impl Episode {
    fn new(case: &Case, seed: u64) -> Self {
        let mut rng = Rng(mix(seed));
        let config = KvConfig {
            num_blocks: 1 + rng.below(case.blocks_max),
            block_size: case.block_size,
            prefix_caching: case.prefix_caching,
            watermark: [0.0, 0.1][rng.below(2)],
            num_swap_blocks: 0,
            seed,
            ..KvConfig::default()
        };
        let policy: Box<dyn EvictionPolicy> = match case.eviction {
            Eviction::Kind(kind) => kind.build(config.num_blocks),
            Eviction::Oldest => Box::new(Cached { blocks: Vec::new(), random: None }),
            Eviction::RandomLeaf => Box::new(Cached { blocks: Vec::new(), random: Some(Rng(seed)) }),
        };
        let hasher = ChainHasher::truncated(config.seed, case.hash_bits);
        Self {
            rng,
            device: vec![0; config.num_blocks * config.block_size],
            manager: BlockManager::with_parts(config.clone(), hasher, policy).expect("a good configuration"),
            naive: case.exact.then(|| Naive::new(&config)),
            roots: vec![
                ChainRoot::default(),
                ChainRoot::new(Some("a"), 0),
                ChainRoot::new(Some("b"), 0),
                ChainRoot::new(None, 1),
            ],
            memory: vec![true; config.num_blocks],
            running: BTreeMap::new(),
            committed: BTreeSet::new(),
            next_id: 0,
            config,
        }
    }

    fn step(&mut self) {
        match self.rng.below(200) {
            0..60 => self.allocate(),
            60..110 => self.append(),
            110..155 => self.compute_one(),
            155..165 => self.compute_batch(),
            165..193 => self.free(),
            193..195 => self.take_resize(),
            195..197 => self.call_with_unknown_or_held_ids(),
            197..199 => self.resize(),
            _ => self.reset(),
        }
    }

    fn allocate(&mut self) {
        let root = self.rng.below(self.roots.len() * 2).saturating_sub(self.roots.len());
        let tokens = self.prompt();
        let prints = extend_prints(root as u64, &[], &tokens);
        let (id, chain_root) = (self.next_id, &self.roots[root]);
        let need_blocks = tokens.len().div_ceil(self.config.block_size);
        let status = self.manager.can_allocate(&tokens, chain_root);
        let cached = self.manager.cached_prefix(&tokens, chain_root);
        let before = self.manager.stats();
        let result = self.manager.allocate(SequenceId(id), &tokens, chain_root);

        assert_eq!(cached % self.config.block_size, 0);
        assert!(cached == 0 || (self.config.prefix_caching && cached < tokens.len()));
        assert!(
            prints[..cached]
                .chunks_exact(self.config.block_size)
                .all(|block| { self.committed.contains(block.last().unwrap()) }),
            "found what nobody has committed"
        );
        let never = need_blocks > self.config.num_blocks;
        assert_eq!(matches!(status, AllocStatus::Never { need, .. } if need == need_blocks), never);
        if let Some(naive) = &mut self.naive {
            assert_eq!(cached, naive.hits(&prints) * self.config.block_size, "cached tokens");
            let (need, available) = naive.need_and_available(&prints);
            let reserve = match self.running.is_empty() {
                true => 0,
                false => (self.config.watermark * self.manager.usable() as f64) as usize,
            };
            if !never {
                assert_eq!(status == AllocStatus::Ok, need + reserve <= available, "{need} {reserve} {available}");
            }
            assert_eq!(result.is_ok(), !never && need <= available, "{need} {available} {result:?}");
        }
        match result {
            Ok(allocation) => {
                assert_eq!(allocation.num_cached_tokens, cached);
                assert_eq!(allocation.num_fresh_blocks, need_blocks - cached / self.config.block_size);
                if let Some(naive) = &mut self.naive {
                    naive.allocate(id, &prints);
                }
                self.running.insert(id, Running { root, tokens, prints, computed: cached });
                self.next_id += 1;
            }
            Err(error) => {
                assert_ne!(status, AllocStatus::Ok);
                assert_eq!(matches!(error, AllocError::Never { .. }), never);
                self.assert_unchanged_since(&before);
            }
        }
    }

    fn append(&mut self) {
        let Some(id) = self.pick() else { return };
        let count = match self.rng.below(10) {
            0 => self.rng.below(3 * self.config.block_size + 1),
            1 => self.config.block_size * self.config.num_blocks,
            _ => 1 + self.rng.below(3),
        };
        let tokens: Vec<_> = (0..count).map(|_| self.rng.below(3) as TokenId).collect();
        let can = self.manager.can_append(SequenceId(id), count);
        let before = self.manager.stats();
        let result = self.manager.append(SequenceId(id), &tokens);
        assert_eq!(can, result.is_ok(), "{result:?}");
        if let Some(naive) = &self.naive {
            assert_eq!(can, naive.append_need(id, count) <= naive.free() + naive.cached());
        }
        if result.is_err() {
            return self.assert_unchanged_since(&before);
        }
        let sequence = self.running.get_mut(&id).unwrap();
        let prints = extend_prints(sequence.root as u64, &sequence.prints, &tokens);
        if let Some(naive) = &mut self.naive {
            naive.append(id, &prints);
        }
        sequence.prints.extend(prints);
        sequence.tokens.extend(tokens);
    }

    /// A step with a chunk of one sequence.
    fn compute_one(&mut self) {
        let Some(id) = self.pick() else { return };
        let chunk = self.rng.below(2 * self.config.block_size + 2);
        self.write(id, chunk);
        // What is computed need not be committed at once, and may be committed again.
        for _ in 0..self.rng.below(3) {
            self.commit(id);
        }
    }

    /// A step with all sequences: all compute before any commits.
    fn compute_batch(&mut self) {
        let ids: Vec<_> = self.running.keys().copied().collect();
        ids.iter().for_each(|&id| self.write(id, usize::MAX));
        ids.iter().for_each(|&id| self.commit(id));
    }

    fn free(&mut self) {
        let Some(id) = self.pick() else { return };
        self.running.remove(&id);
        if let Some(naive) = &mut self.naive {
            naive.release(id);
        }
        assert!(self.manager.free(SequenceId(id)));
    }

    fn call_with_unknown_or_held_ids(&mut self) {
        let before = self.manager.stats();
        let unknown = SequenceId(self.next_id + 1);
        assert!(!self.manager.free(unknown));
        self.manager.commit(unknown, 100);
        assert!(!self.manager.can_append(unknown, 0));
        assert_eq!(self.manager.append(unknown, &[1]), Err(AllocError::NotHeld(unknown)));
        assert_eq!(self.manager.block_table(unknown), None);
        if let Some(held) = self.pick().map(SequenceId) {
            assert_eq!(self.manager.allocate(held, &[1], &self.roots[0]), Err(AllocError::AlreadyHeld(held)));
            assert!(!self.manager.can_append(held, usize::MAX));
        }
        self.assert_unchanged_since(&before);
    }

    fn reset(&mut self) {
        self.manager.reset_cache();
        self.committed.clear();
        if let Some(naive) = &mut self.naive {
            naive.reset();
        }
    }

    fn resize(&mut self) {
        let usable = 1 + self.rng.below(self.config.num_blocks);
        self.manager.set_usable(usable);
        assert_eq!(self.manager.usable(), usable);
        if let Some(naive) = &mut self.naive {
            naive.set_usable(usable);
        }
        if self.rng.once_in(2) {
            self.take_resize();
        }
    }

    /// The device gives the memory of blocks back, or takes some for them.
    fn take_resize(&mut self) {
        let resize = self.manager.take_resize();
        for block in resize.left {
            self.memory[block.index()] = false;
            self.device[block.index() * self.config.block_size..][..self.config.block_size].fill(u64::MAX);
        }
        for block in resize.came {
            self.memory[block.index()] = true;
        }
        assert_eq!(self.memory.iter().filter(|&&has| has).count(), self.manager.present());
        let held = self.running.keys().filter_map(|&id| self.manager.block_table(SequenceId(id))).flatten();
        held.for_each(|block| assert!(self.memory[block.index()], "{block} is used, but has no memory"));
    }

    /// The device computes the next `chunk` tokens of a sequence into the slots that its table names.
    fn write(&mut self, id: u64, chunk: usize) {
        let sequence = self.running.get_mut(&id).unwrap();
        let table = self.manager.block_table(SequenceId(id)).unwrap();
        let end = sequence.computed.saturating_add(chunk).min(sequence.tokens.len());
        for at in sequence.computed..end {
            self.device[slot(table, at, self.config.block_size)] = sequence.prints[at];
        }
        sequence.computed = end;
    }

    fn commit(&mut self, id: u64) {
        let sequence = &self.running[&id];
        self.manager.commit(SequenceId(id), sequence.computed);
        let blocks = sequence.prints[..sequence.computed].chunks_exact(self.config.block_size);
        self.committed.extend(blocks.map(|block| *block.last().unwrap()));
        if let Some(naive) = &mut self.naive {
            naive.commit(id, sequence.computed);
        }
    }

    fn verify(&self) {
        self.manager.check().unwrap_or_else(|violation| panic!("{violation}"));
        assert!(self.manager.sequences().map(|id| id.0).eq(self.running.keys().copied()));
        for (&id, sequence) in &self.running {
            let table = self.manager.block_table(SequenceId(id)).unwrap();
            assert_eq!(self.manager.num_tokens(SequenceId(id)), Some(sequence.tokens.len()));
            assert_eq!(table.len(), sequence.tokens.len().div_ceil(self.config.block_size));
            for (at, print) in sequence.prints[..sequence.computed].iter().enumerate() {
                let read = self.device[slot(table, at, self.config.block_size)];
                assert_eq!(read, *print, "sequence {id} reads another's KV at token {at}");
            }
        }
        let stats = self.manager.stats();
        let present = stats.blocks_used + stats.blocks_cached + stats.blocks_free;
        assert_eq!(present + stats.blocks_withdrawn, self.config.num_blocks);
        assert!(present == self.manager.usable().max(stats.blocks_used));
        assert_eq!(stats.sequences, self.running.len());
        if let Some(naive) = &self.naive {
            assert_eq!((stats.blocks_free, stats.blocks_cached), (naive.free(), naive.cached()), "free and cached");
            assert_eq!(self.manager.present(), naive.present());
            assert_eq!(stats.slots_empty, naive.slots_empty());
            assert_eq!((stats.evictions, stats.blocks_merged), (naive.evictions as u64, naive.merged as u64));
        }
    }

    /// Everything comes back when all is freed.
    fn finish(mut self) {
        for id in std::mem::take(&mut self.running).into_keys() {
            assert!(self.manager.free(SequenceId(id)));
        }
        self.manager.check().unwrap_or_else(|violation| panic!("{violation}"));
        let stats = self.manager.stats();
        assert_eq!(stats.blocks_free + stats.blocks_cached, self.manager.usable());
        self.take_resize();
        self.manager.set_usable(self.config.num_blocks);
        self.take_resize();
        assert!(self.memory.iter().all(|&has| has));
        self.manager.reset_cache();
        self.manager.check().unwrap_or_else(|violation| panic!("{violation}"));
        assert_eq!(self.manager.stats().blocks_free, self.config.num_blocks);
    }

    fn assert_unchanged_since(&self, before: &strata_kv::KvStats) {
        let after = self.manager.stats();
        let failures = after.allocation_failures;
        assert_eq!(
            after,
            strata_kv::KvStats { allocation_failures: failures, ..*before },
            "a refusal changed something"
        );
    }

    fn pick(&mut self) -> Option<u64> {
        let ids: Vec<_> = self.running.keys().copied().collect();
        (!ids.is_empty()).then(|| ids[self.rng.below(ids.len())])
    }

    /// A prefix of one of few families, then a tail of its own; now and then longer than the pool, or empty.
    fn prompt(&mut self) -> Vec<TokenId> {
        let capacity = self.config.num_blocks * self.config.block_size;
        let length = match self.rng.below(30) {
            0 => self.rng.below(2 * capacity + 2),
            1 => 0,
            _ => 1 + self.rng.below(capacity / 2 + 1),
        };
        let family = self.rng.below(3);
        let shared = self.rng.below(length + 1);
        let token = |at: usize| (mix((family * 4096 + at) as u64) % 4) as TokenId;
        let mut tokens: Vec<_> = (0..shared).map(token).collect();
        tokens.extend((shared..length).map(|_| self.rng.below(4) as TokenId));
        if self.rng.once_in(3) {
            // Often the same prompt as another in flight.
            tokens = (0..length).map(token).collect();
        }
        tokens
    }
}

/// Fingerprints of `tokens`, which follow those of `before`.
fn extend_prints(root: u64, before: &[Print], tokens: &[TokenId]) -> Vec<Print> {
    let mut print = before.last().copied().unwrap_or(mix(root + 1));
    let next = |token: &TokenId| {
        print = mix(print ^ mix(u64::from(*token) + 77));
        print
    };
    tokens.iter().map(next).collect()
}

fn slot(table: &[BlockId], at: usize, block_size: usize) -> usize {
    table[at / block_size].index() * block_size + at % block_size
}

/// Evicts any leaf, or the oldest block, which must be one.
#[derive(Debug)]
struct Cached {
    blocks: Vec<(BlockId, bool)>, // with whether it is a leaf
    random: Option<Rng>,
}

impl EvictionPolicy for Cached {
    fn publish(&mut self, block: BlockId, _: Content) {
        assert!(!self.contains(block));
    }

    fn hit(&mut self, block: BlockId) {
        self.forget(block);
    }

    fn insert(&mut self, block: BlockId, leaf: bool) {
        assert!(!self.contains(block));
        self.blocks.push((block, leaf));
    }

    fn became_leaf(&mut self, block: BlockId) {
        let (_, leaf) =
            self.blocks.iter_mut().find(|(other, _)| *other == block).expect("only cached ones are told of");
        assert!(!std::mem::replace(leaf, true));
    }

    fn victim(&mut self) -> Option<BlockId> {
        let leaves: Vec<_> = self.blocks.iter().filter_map(|&(block, leaf)| leaf.then_some(block)).collect();
        let victim = match &mut self.random {
            Some(rng) => leaves[rng.below(leaves.len())],
            None => self.blocks[0].0,
        };
        assert!(leaves.contains(&victim), "{victim} has children");
        self.forget(victim);
        Some(victim)
    }

    fn forget(&mut self, block: BlockId) {
        self.blocks.retain(|&(other, _)| other != block);
    }

    fn moved(&mut self, from: BlockId, to: BlockId) {
        assert!(!self.contains(to));
        self.blocks.iter_mut().filter(|(block, _)| *block == from).for_each(|(block, _)| *block = to);
    }

    fn contains(&self, block: BlockId) -> bool {
        self.blocks.iter().any(|&(other, _)| other == block)
    }

    fn len(&self) -> usize {
        self.blocks.len()
    }
}

//! A block manager that each of the policies serves: random operations, with every invariant checked after each. What a
//! sequence reads through its block table must be its own fingerprint, whatever was evicted, shared, copied or moved.

use std::collections::BTreeMap;

use strata_kv::{BlockCopy, BlockId, BlockManager, ChainRoot, EvictionKind, KvConfig, SequenceId, TokenId};
use strata_sim::eviction::POLICIES;

use crate::rng::{Rng, mix};

struct Life {
    manager: BlockManager,
    block_size: usize,
    /// The fingerprint of a token and all before it. [block, slot]
    memory: Vec<u64>,
    /// Tokens, and how many of them are computed.
    sequences: BTreeMap<u64, (Vec<TokenId>, usize)>,
    num_blocks: usize,
    next_id: u64,
    found: usize,
    rng: Rng,
}

impl Life {
    fn new(kind: EvictionKind, num_blocks: usize, block_size: usize, seed: u64) -> Self {
        let config = KvConfig { num_blocks, block_size, watermark: 0.0, seed, eviction: kind, ..KvConfig::default() };
        Self {
            manager: BlockManager::new(config).expect("a good configuration"),
            block_size,
            memory: vec![u64::MAX; num_blocks * block_size],
            sequences: BTreeMap::new(),
            num_blocks,
            next_id: 0,
            found: 0,
            rng: Rng(mix(seed)),
        }
    }

    fn pick(&mut self) -> Option<u64> {
        let ids: Vec<u64> = self.sequences.keys().copied().collect();
        (!ids.is_empty()).then(|| ids[self.rng.below(ids.len())])
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..35 => self.allocate(),
            35..55 => self.append(),
            55..65 => self.compute(),
            65..73 => self.fork(),
            73..95 => {
                if let Some(id) = self.pick() {
                    self.sequences.remove(&id);
                    assert!(self.manager.free(SequenceId(id)));
                }
            }
            95..97 => {
                let usable = 1 + self.rng.below(self.num_blocks);
                self.manager.set_usable(usable);
            }
            97..99 => drop(self.manager.compact(1 + self.rng.below(4))),
            _ => self.manager.reset_cache(),
        }
        self.copy();
        self.manager.check().expect("invariants");
        for (&id, (tokens, computed)) in &self.sequences {
            let table = self.manager.block_table(SequenceId(id)).expect("it is held");
            for (at, print) in prints(tokens).take(*computed).enumerate() {
                assert_eq!(self.memory[self.place(table, at)], print, "sequence {id} at {at}");
            }
        }
    }

    fn allocate(&mut self) {
        // Few tokens and lengths, so that prompts begin alike.
        let length = 1 + self.rng.below(4 * self.block_size);
        let tokens: Vec<TokenId> = (0..length).map(|_| self.rng.below(2) as TokenId).collect();
        let id = self.next_id;
        let hashes = self.manager.hash_prefix(&ChainRoot::default(), &tokens);
        if let Ok(allocation) = self.manager.allocate(SequenceId(id), &tokens, &hashes) {
            self.next_id += 1;
            self.found += allocation.num_cached_tokens;
            self.sequences.insert(id, (tokens, allocation.num_cached_tokens));
        }
    }

    fn append(&mut self) {
        let Some(id) = self.pick() else { return };
        let token = self.rng.below(2) as TokenId;
        // Only what is computed grows, as sequences that decode do.
        self.compute_one(id);
        if self.manager.append(SequenceId(id), &[token]).is_ok() {
            self.sequences.get_mut(&id).expect("it was picked").0.push(token);
        }
    }

    fn compute(&mut self) {
        if let Some(id) = self.pick() {
            self.compute_one(id);
        }
    }

    /// Writes what is not computed yet, and publishes it.
    fn compute_one(&mut self, id: u64) {
        self.copy();
        let (tokens, computed) = self.sequences.get_mut(&id).expect("it was picked");
        let table = self.manager.block_table(SequenceId(id)).expect("it is held");
        for (at, print) in prints(tokens).enumerate().skip(*computed) {
            self.memory[table[at / self.block_size].index() * self.block_size + at % self.block_size] = print;
        }
        *computed = tokens.len();
        let computed = *computed;
        self.manager.commit(SequenceId(id), computed);
    }

    fn fork(&mut self) {
        let Some(parent) = self.pick() else { return };
        self.compute_one(parent);
        let child = self.next_id;
        if self.manager.fork(SequenceId(parent), SequenceId(child)).is_ok() {
            self.next_id += 1;
            self.sequences.insert(child, self.sequences[&parent].clone());
        }
    }

    /// Carries out the copies that are due.
    fn copy(&mut self) {
        let mut copies = Vec::new();
        self.manager.take_copies(&mut copies);
        for BlockCopy { source, destination } in copies {
            let [source, destination] = [source, destination].map(|block| block.index() * self.block_size);
            self.memory.copy_within(source..source + self.block_size, destination);
        }
    }

    fn place(&self, table: &[BlockId], at: usize) -> usize {
        table[at / self.block_size].index() * self.block_size + at % self.block_size
    }
}

/// A fingerprint of each token and all before it.
fn prints(tokens: &[TokenId]) -> impl Iterator<Item = u64> {
    tokens.iter().scan(1, |print, &token| {
        *print = mix(*print ^ u64::from(token) << 32);
        Some(*print)
    })
}

#[test]
fn sequences_read_what_they_computed_whichever_policy_evicts() {
    for kind in POLICIES {
        let (mut found, mut evictions) = (0, 0);
        for seed in 0..60 {
            println!("{kind}, seed {seed}");
            let (num_blocks, block_size) = ([4, 8, 24][seed as usize % 3], [1, 2, 4][seed as usize / 3 % 3]);
            let mut life = Life::new(kind, num_blocks, block_size, seed);
            (0..1000).for_each(|_| life.step());
            found += life.found;
            evictions += life.manager.stats().evictions;
        }
        assert!(found > 1000 && evictions > 1000, "{kind}: {found} tokens found, {evictions} evictions");
    }
}

//! One run of random operations on a manager, its device and the reference.

mod swaps;

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    AllocStatus, BlockError, BlockManager, ChainHasher, ChainRoot, EvictionPolicy, KvConfig, LookUp, MissReason,
    SequenceId, SequenceState, TokenId,
};

use super::{
    Case, Eviction, Follower, Rng,
    device::Device,
    mix,
    naive::{Naive, Print},
    policies::{Cached, Choice},
};

/// The most sequences at a time. Forks cost nothing at first, but too many would need too many blocks once they write.
const SEQUENCES: usize = 6;

/// A sequence as the test knows it.
#[derive(Clone)]
struct Running {
    root: usize,
    tokens: Vec<TokenId>,
    prints: Vec<Print>,
    /// Number of leading tokens whose KV is in the sequence's blocks, or moves with it.
    computed: usize,
    /// Number of these tokens that were committed to the manager.
    committed: usize,
}

pub(super) struct Episode {
    rng: Rng,
    config: KvConfig,
    manager: BlockManager,
    naive: Option<Naive>,
    device: Device,
    running: BTreeMap<u64, Running>,
    roots: Vec<ChainRoot>,
    follower: Follower,
    /// All contents committed since the last reset. A look-up must find nothing else.
    committed: BTreeSet<Print>,
}

impl Episode {
    pub fn new(case: &Case, seed: u64) -> Self {
        let mut rng = Rng(mix(seed));
        // Larger pools come more often than small ones, because more can happen in them.
        let num_blocks = 1 + rng.below(case.blocks_max).max(rng.below(case.blocks_max));
        let config = KvConfig {
            num_blocks,
            block_size: case.block_size,
            prefix_caching: case.prefix_caching,
            watermark: [0.0, 0.1][rng.below(2)],
            num_swap_blocks: rng.below(2 * num_blocks),
            seed,
            ..KvConfig::default()
        };
        let policy: Box<dyn EvictionPolicy> = match case.eviction {
            Eviction::Kind(kind) => kind.build(config.num_blocks),
            Eviction::Oldest => Box::new(Cached::new(Choice::Oldest)),
            Eviction::RandomLeaf => Box::new(Cached::new(Choice::RandomLeaf(Rng(seed)))),
        };
        let hasher = ChainHasher::truncated(config.seed, case.hash_bits);
        let manager = BlockManager::with_parts(config.clone(), hasher, policy);
        let mut manager = manager.expect("a good configuration");
        manager.record_changes();
        Self {
            rng,
            device: Device::new(config.num_blocks, config.num_swap_blocks, config.block_size),
            manager,
            follower: Follower::new(case.hash_bits == 64),
            naive: case.exact.then(|| Naive::new(&config)),
            roots: match case.exact {
                true => vec![
                    ChainRoot::default(),
                    ChainRoot::new(Some("a"), 0),
                    ChainRoot::new(Some("b"), 0),
                    ChainRoot::new(None, 1),
                ],
                // The reference knows no tenants.
                false => vec![
                    ChainRoot::default().of_tenant(Some(1)),
                    ChainRoot::default().of_tenant(Some(2)),
                    ChainRoot::new(Some("b"), 0).of_tenant(Some(2)),
                    ChainRoot::default(),
                ],
            },
            running: BTreeMap::new(),
            committed: BTreeSet::new(),
            config,
        }
    }

    pub fn step(&mut self) {
        match self.rng.below(400) {
            0..60 => self.allocate(),
            60..120 => self.append(),
            120..170 => self.compute_one(),
            170..190 => self.compute_batch(),
            190..210 => self.free(),
            210..250 => self.fork(),
            250..260 => self.ensure_num_empty_slots(),
            260..290 => self.swap_out(),
            290..325 => self.swap_in(),
            325..380 => self.go_on_with_swaps(),
            380..384 => self.compact(),
            384..388 => self.resize(),
            388..394 => self.device.flush(&mut self.manager),
            394..399 => self.call_with_unknown_or_held_ids(),
            _ => self.reset(),
        }
    }

    fn allocate(&mut self) {
        let root = self.rng.below(self.roots.len() * 2).saturating_sub(self.roots.len());
        let tokens = random_prompt(&mut self.rng, self.config.num_blocks * self.config.block_size);
        let prints = extend_prints(root as u64, &[], &tokens);
        let (id, chain_root) = (self.unused_id(), &self.roots[root]);
        let need_blocks = tokens.len().div_ceil(self.config.block_size);
        let hashed = [0, tokens.len(), self.rng.below(tokens.len() + 1)][self.rng.below(3)];
        // Hashes that are in the list are used, and the others are computed.
        let mut hashes = self.manager.hash_prefix(chain_root, &tokens[..hashed / 2]);
        hashes.extend(&tokens[..hashed]);
        let LookUp { status, num_blocks, num_cached_tokens: cached } = self.manager.look_up(&tokens, &hashes);
        let miss = self.manager.explain(&tokens, &hashes);
        let before = self.manager.stats();
        let result = self.manager.allocate(SequenceId(id), &tokens, &hashes);

        assert_eq!(cached % self.config.block_size, 0);
        assert!(cached == 0 || (self.config.prefix_caching && cached < tokens.len()));
        assert!(
            prints[..cached]
                .chunks_exact(self.config.block_size)
                .all(|block| { self.committed.contains(block.last().unwrap()) }),
            "found what nobody has committed"
        );
        assert_eq!(miss.matched_tokens, cached);
        let all_found = tokens.len().saturating_sub(1) / self.config.block_size * self.config.block_size == cached;
        assert_eq!(miss.reason == MissReason::NotCacheable, !self.config.prefix_caching);
        assert_eq!(miss.reason == MissReason::PartialBlock, self.config.prefix_caching && all_found);
        let never = need_blocks > self.config.num_blocks;
        assert_eq!(matches!(status, AllocStatus::Never { need, .. } if need == need_blocks), never);
        if let Some(naive) = &mut self.naive {
            assert_eq!(cached, naive.hits(&prints) * self.config.block_size, "cached tokens");
            let (need, available) = naive.need_and_available(&prints);
            assert_eq!(num_blocks, need + naive.available() - available);
            if !never {
                let reserve = self.reserve();
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
                self.running.insert(id, Running { root, tokens, prints, computed: cached, committed: cached });
            }
            Err(error) => {
                assert_ne!(status, AllocStatus::Ok);
                assert_eq!(matches!(error, BlockError::Never { .. }), never);
                self.assert_unchanged_since(&before);
                // Without this, most of the next operations would be refused as well.
                self.free();
            }
        }
    }

    /// Returns the number of blocks that must stay available when a sequence is admitted.
    fn reserve(&self) -> usize {
        let swapped = |id: &&u64| self.manager.state(SequenceId(**id)) == Some(SequenceState::Swapped);
        match self.running.keys().all(|id| swapped(&id)) {
            true => 0,
            false => (self.config.watermark * self.manager.usable() as f64) as usize,
        }
    }

    fn append(&mut self) {
        let Some(id) = self.pick() else { return };
        let count = match self.rng.below(10) {
            0 => self.rng.below(3 * self.config.block_size + 1),
            1 => self.config.block_size * self.config.num_blocks,
            2..4 => 1 + self.rng.below(3),
            _ => 1,
        };
        let tokens: Vec<_> = (0..count).map(|_| self.rng.below(3) as TokenId).collect();
        let can = self.manager.can_append(SequenceId(id), count);
        let before = self.manager.stats();
        let result = self.manager.append(SequenceId(id), &tokens);
        assert_eq!(can, result.is_ok(), "{result:?}");
        self.assert_growth(id, count, can);
        if result.is_err() {
            self.assert_unchanged_since(&before);
            return if self.rng.once_in(3) {
                self.free()
            };
        }
        let sequence = self.running.get_mut(&id).unwrap();
        let prints = extend_prints(sequence.root as u64, &sequence.prints, &tokens);
        if let Some(naive) = &mut self.naive {
            naive.append(id, &prints);
        }
        sequence.prints.extend(prints);
        sequence.tokens.extend(tokens);
    }

    fn ensure_num_empty_slots(&mut self) {
        let Some(id) = self.pick() else { return };
        let count = self.rng.below(2 * self.config.block_size + 2);
        let can = self.manager.can_append(SequenceId(id), count);
        let before = self.manager.stats();
        let result = self.manager.ensure_num_empty_slots(SequenceId(id), count);
        assert_eq!(can, result.is_ok(), "{result:?}");
        self.assert_growth(id, count, can);
        match (result, &mut self.naive) {
            (Err(_), _) => self.assert_unchanged_since(&before),
            (Ok(()), Some(naive)) => naive.ensure(id, count),
            (Ok(()), None) => {}
        }
    }

    fn assert_growth(&self, id: u64, count: usize, can: bool) {
        let resident = self.manager.state(SequenceId(id)) == Some(SequenceState::Resident);
        let fits = self.manager.num_required_blocks(self.running[&id].tokens.len(), count) <= self.config.num_blocks;
        if !resident || !fits {
            assert!(!can);
        } else if let Some(naive) = &self.naive {
            let need = naive.append_need(id, count);
            assert_eq!(can, need <= naive.available(), "{need}");
        }
    }

    fn fork(&mut self) {
        let Some(id) = self.pick() else { return };
        if self.rng.once_in(2) {
            // A server also forks only once everything is computed.
            self.write(id, usize::MAX);
            self.commit(id);
        }
        let before = self.manager.stats();
        let (parent, child) = (&self.running[&id], self.unused_id());
        let resident = self.manager.state(SequenceId(id)) == Some(SequenceState::Resident);
        let result = self.manager.fork(SequenceId(id), SequenceId(child));
        assert_eq!(result.is_ok(), resident && parent.committed == parent.tokens.len(), "{result:?}");
        if result.is_err() {
            return self.assert_unchanged_since(&before);
        }
        self.running.insert(child, parent.clone());
        if let Some(naive) = &mut self.naive {
            naive.fork(id, child);
        }
        if self.running.len() > SEQUENCES {
            self.free();
        }
    }

    /// Runs a step with a chunk of one sequence.
    fn compute_one(&mut self) {
        let Some(id) = self.pick() else { return };
        let chunk = self.rng.below(2 * self.config.block_size + 2);
        self.write(id, chunk);
        // Computed tokens need not be committed at once, and may be committed again.
        for _ in 0..self.rng.below(3) {
            self.commit(id);
        }
    }

    /// Runs a step with all sequences: all compute before any commits.
    fn compute_batch(&mut self) {
        let ids: Vec<_> = self.running.keys().copied().collect();
        ids.iter().for_each(|&id| self.write(id, usize::MAX));
        ids.iter().for_each(|&id| self.commit(id));
    }

    fn free(&mut self) {
        let Some(id) = self.pick() else { return };
        self.running.remove(&id);
        if let Some(naive) = &mut self.naive {
            naive.free_sequence(id);
        }
        assert!(self.manager.free(SequenceId(id)));
    }

    fn call_with_unknown_or_held_ids(&mut self) {
        let before = self.manager.stats();
        let unknown = SequenceId(self.unused_id());
        assert!(!self.manager.free(unknown));
        self.manager.commit(unknown, 100);
        assert!(!self.manager.can_append(unknown, 0));
        assert_eq!(self.manager.append(unknown, &[1]), Err(BlockError::NotHeld(unknown)));
        assert_eq!(self.manager.block_table(unknown), None);
        if let Some(held) = self.pick().map(SequenceId) {
            let hashes = self.manager.hash_prefix(&self.roots[0], &[1]);
            assert_eq!(self.manager.allocate(held, &[1], &hashes), Err(BlockError::AlreadyHeld(held)));
            assert_eq!(self.manager.fork(held, held), Err(BlockError::AlreadyHeld(held)));
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

    /// Changes how many blocks may be used. Blocks that come must have memory before they are used, so the device is
    /// told at once.
    fn resize(&mut self) {
        let most = if self.rng.once_in(2) { self.config.num_blocks } else { 1 };
        let usable = most.max(1 + self.rng.below(self.config.num_blocks));
        self.manager.set_usable(usable);
        assert_eq!(self.manager.usable(), usable);
        if let Some(naive) = &mut self.naive {
            naive.set_usable(usable);
        }
        self.device.flush(&mut self.manager);
    }

    fn compact(&mut self) {
        let max_steps = self.rng.below(2 * self.config.num_blocks);
        let (before, evictions) = (self.manager.fragmentation(), self.manager.stats().evictions);
        let steps = self.manager.compact(max_steps);
        assert!(steps <= max_steps);
        let after = self.manager.fragmentation();
        let evicted = (self.manager.stats().evictions - evictions) as usize;
        if let Some(naive) = &mut self.naive {
            naive.evict(evicted);
        }
        assert!(evicted == 0 || (before.blocks_free == 0 && 2 * evicted <= max_steps + 1));
        // Where fewer blocks hold content, the compact region is smaller.
        assert!(after.blocks_misplaced <= before.blocks_misplaced + evicted);
        assert!(after.blocks_above <= before.blocks_above);
        let stuck = self.manager.stats().blocks_free + self.manager.stats().blocks_cached == 0;
        if steps == 0 && max_steps > 0 && self.device.num_swaps() == 0 && !stuck {
            assert_eq!((after.blocks_misplaced, after.blocks_above), (0, 0));
            assert_eq!(after.free_run_max, after.blocks_free);
        }
        self.device.flush(&mut self.manager);
        // This often repeats until nothing is left to do.
        if steps > 0 && self.rng.once_in(2) {
            self.compact();
        }
    }

    /// Lets the device compute the next `chunk` tokens of a sequence into the places that its table names.
    fn write(&mut self, id: u64, chunk: usize) {
        self.device.flush(&mut self.manager);
        let sequence = self.running.get_mut(&id).unwrap();
        let Some(table) = self.manager.block_table(SequenceId(id)) else { return };
        let end = sequence.computed.saturating_add(chunk).min(sequence.tokens.len());
        for at in sequence.computed..end {
            self.device.write(table, at, sequence.prints[at]);
        }
        // Speculation writes ahead, and its results are discarded.
        let filled = self.manager.num_required_blocks(sequence.tokens.len(), 0) * self.config.block_size;
        (filled..table.len() * self.config.block_size).for_each(|at| self.device.write(table, at, 0));
        sequence.computed = end;
    }

    fn commit(&mut self, id: u64) {
        let sequence = self.running.get_mut(&id).unwrap();
        self.manager.commit(SequenceId(id), sequence.computed);
        if self.manager.state(SequenceId(id)) == Some(SequenceState::Resident) {
            sequence.committed = sequence.computed;
            let blocks = sequence.prints[..sequence.computed].chunks_exact(self.config.block_size);
            self.committed.extend(blocks.map(|block| *block.last().unwrap()));
        }
        if let Some(naive) = &mut self.naive {
            naive.commit(id, sequence.computed);
        }
    }

    /// Returns the lowest id that is unused, so that ids freed a moment ago are soon used again.
    fn unused_id(&self) -> u64 {
        (0..).find(|id| !self.running.contains_key(id)).expect("ids are many")
    }
}

/// Returns a prefix of one of a few families, then random tokens, for a pool of `capacity` tokens. Now and then the
/// prompt is longer than the pool, or empty.
pub(super) fn random_prompt(rng: &mut Rng, capacity: usize) -> Vec<TokenId> {
    let length = match rng.below(30) {
        0 => rng.below(2 * capacity + 2),
        1 => 0,
        2..16 => 1 + rng.below(capacity / 4 + 1),
        _ => 1 + rng.below(capacity / 2 + 1),
    };
    let family = rng.below(3);
    let shared = rng.below(length + 1);
    let token = |at: usize| (mix((family * 4096 + at) as u64) % 4) as TokenId;
    let mut tokens: Vec<_> = (0..shared).map(token).collect();
    tokens.extend((shared..length).map(|_| rng.below(4) as TokenId));
    if rng.once_in(3) {
        // The prompt is often the same as that of another running sequence.
        tokens = (0..length).map(token).collect();
    }
    tokens
}

/// Returns the fingerprints of `tokens`, which follow the tokens with the fingerprints `before`.
pub(super) fn extend_prints(root: u64, before: &[Print], tokens: &[TokenId]) -> Vec<Print> {
    let mut print = before.last().copied().unwrap_or(mix(root + 1));
    let next = |token: &TokenId| {
        print = mix(print ^ mix(u64::from(*token) + 77));
        print
    };
    tokens.iter().map(next).collect()
}

//! Random operations on a manager whose layers keep tails, over toy layers: windows, and states that exact integers
//! stand for. What a pass reads through the tables must be what the sequence's own tokens make.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    AllocStatus, BlockCopy, BlockId, BlockManager, BlockSwap, ChainHasher, ChainRoot, EvictionKind, Keeps, KvConfig,
    Resize, SequenceId, SequenceState, Swap, SwapDirection, SwapOutcome, SwapSlot, TailConfig, TailPlace, TokenId,
};

use super::{
    Rng,
    episode::{extend_prints, random_prompt},
    mix,
    naive::Print,
};

/// Parameters of a run over toy layers.
#[derive(Debug, Clone, Copy)]
pub struct TailCase {
    /// Number of tokens per block.
    pub block_size: usize,
    /// Sets the size of pools: a pool has from 4 to `units_max + 3` units of memory.
    pub units_max: usize,
    /// The bytes of a block that holds the KV of all tokens; 0 if no layer keeps that.
    pub block_bytes: usize,
    /// The groups of layers that keep tails.
    pub tails: &'static [TailConfig],
    /// Number of bits of a hash; with few bits, hashes collide.
    pub hash_bits: u32,
    /// The number of operations in all episodes together.
    pub steps: usize,
}

/// What happened in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TailCounts {
    /// Number of tokens that were found cached.
    pub hit_tokens: u64,
    /// Number of hits whose length was compared with the longest that may be.
    pub full_hits: u64,
    /// Number of resume points that were given up.
    pub given_up: u64,
    /// Number of copies of blocks.
    pub copies: u64,
    /// Number of calls that were refused for lack of memory.
    pub refused: u64,
    /// Number of forks.
    pub forks: u64,
    /// Number of swaps out.
    pub swaps: u64,
    /// Number of fetches that brought something from below.
    pub fetches: u64,
    /// Number of lasting points that were offered to the tier below when they ended.
    pub evicted: u64,
    /// Number of tokens that passes computed as drafts.
    pub drafts: u64,
}

mod below;

use below::Below;

const STEPS_PER_EPISODE: usize = 1000;
const SEQUENCES: usize = 6;
/// The content of memory in which nothing was written.
const POISON: Print = u64::MAX;

/// Runs episodes of random operations over toy layers, and checks everything after each operation.
///
/// # Panics
/// Panics if a check fails; the seed of that episode is printed before.
pub fn run_tails(case: &TailCase) -> TailCounts {
    let mut counts = TailCounts::default();
    super::episodes(case.steps, STEPS_PER_EPISODE, |seed| {
        let mut episode = TailEpisode::new(case, seed);
        for _ in 0..STEPS_PER_EPISODE {
            episode.step();
            episode.verify();
        }
        counts = counts.with(episode.finish());
    });
    counts
}

impl TailCounts {
    fn with(self, other: Self) -> Self {
        Self {
            hit_tokens: self.hit_tokens + other.hit_tokens,
            full_hits: self.full_hits + other.full_hits,
            given_up: self.given_up + other.given_up,
            copies: self.copies + other.copies,
            refused: self.refused + other.refused,
            forks: self.forks + other.forks,
            swaps: self.swaps + other.swaps,
            fetches: self.fetches + other.fetches,
            evicted: self.evicted + other.evicted,
            drafts: self.drafts + other.drafts,
        }
    }
}

#[derive(Debug, Clone)]
struct Running {
    root: usize,
    tokens: Vec<TokenId>,
    /// The fingerprint of each token with all tokens before it.
    prints: Vec<Print>,
    computed: usize,
    /// Whether the sequence began before the cache was reset, so that it publishes nothing.
    is_silent: bool,
}

struct TailEpisode {
    rng: Rng,
    config: KvConfig,
    manager: BlockManager,
    /// What each block of any group holds.
    memory: BTreeMap<BlockId, Vec<Print>>,
    /// What each slot below memory holds: the number of a part, and its content.
    slots: BTreeMap<SwapSlot, (u32, Vec<Print>)>,
    /// The swaps in flight, each with its remaining transfers, and with all of its blocks.
    swaps: Vec<(Swap, Vec<BlockId>)>,
    running: BTreeMap<u64, Running>,
    roots: Vec<ChainRoot>,
    /// The fingerprints of the last tokens of blocks behind which a hit may end.
    ends: BTreeSet<Print>,
    /// Whether any content or point may be missing that was once there.
    is_lossy: bool,
    below: Below,
    counts: TailCounts,
}

impl TailEpisode {
    fn new(case: &TailCase, seed: u64) -> Self {
        let mut rng = Rng(mix(seed));
        let config = KvConfig {
            num_blocks: 4 + rng.below(case.units_max).max(rng.below(case.units_max)),
            block_size: case.block_size,
            watermark: [0.0, 0.1][rng.below(2)],
            num_swap_blocks: rng.below(2 * case.units_max),
            seed,
            tails: case.tails.to_vec(),
            block_bytes: case.block_bytes,
            pass_tokens: 1 + rng.below(3 * case.block_size),
            ..KvConfig::default()
        };
        let policy = EvictionKind::ADAPTIVE.build(config.num_blocks);
        let hasher = ChainHasher::truncated(config.seed, case.hash_bits);
        let mut manager = BlockManager::with_parts(config.clone(), hasher, policy).expect("a good configuration");
        let below = Below::new();
        manager.name_contents(below.chain.clone());
        let blocks = (0..config.num_blocks as u32).map(|block| (BlockId(block), vec![POISON; config.block_size]));
        Self {
            memory: blocks.collect(),
            slots: BTreeMap::new(),
            swaps: Vec::new(),
            roots: vec![
                ChainRoot::default(),
                ChainRoot::new(Some("a"), 0).of_tenant(Some(1)),
                ChainRoot::new(None, 1).of_tenant(Some(2)),
            ],
            rng,
            config,
            manager,
            running: BTreeMap::new(),
            ends: BTreeSet::new(),
            is_lossy: case.hash_bits < 64,
            below,
            counts: TailCounts::default(),
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..18 => self.allocate(),
            18..34 => self.append(),
            34..64 => self.compute_one(),
            64..67 => self.swap_out(),
            67..70 => self.swap_in(),
            70..75 => self.go_on_with_swaps(),
            75..77 => self.end_fetch(),
            77..82 => self.free(),
            82..90 => self.fork(),
            90..93 => self.ensure(),
            93..96 => self.flush(),
            96..98 => self.compact(),
            98 => self.resize(),
            _ => self.reset(),
        }
    }

    fn allocate(&mut self) {
        if self.running.len() >= SEQUENCES {
            return self.free();
        }
        let (root, capacity) = (self.rng.below(self.roots.len()), self.config.num_blocks * self.config.block_size);
        let tokens = random_prompt(&mut self.rng, capacity);
        let prints = extend_prints(root as u64, &[], &tokens);
        let id = (0..).find(|id| !self.running.contains_key(id)).expect("ids are many");
        let hashes = self.manager.hash_prefix(&self.roots[root], &tokens);
        let found = self.manager.look_up(&tokens, &hashes);
        let (held, available) = (self.held_bytes(), self.manager.available());
        match self.manager.allocate(SequenceId(id), &tokens, &hashes) {
            Ok(allocation) => {
                let cached = allocation.num_cached_tokens;
                assert_eq!(cached, found.num_cached_tokens);
                let is_end = |end: usize| self.ends.contains(&prints[end - 1]);
                assert!(cached == 0 || is_end(cached), "a hit ends where nobody has left what it needs");
                let taken = (self.held_bytes() - held).div_ceil(self.unit());
                assert_eq!(found.num_blocks, taken, "what was taken is not what was announced");
                let last = (tokens.len().max(1) - 1) / self.config.block_size * self.config.block_size;
                let best = (1..=last).rev().find(|&end| end.is_multiple_of(self.config.block_size) && is_end(end));
                if !self.is_lossy && self.manager.tail_stats().points_given_up == 0 {
                    let is_dropped = cached == 0 && self.may_exceed_memory(tokens.len(), best.unwrap_or(0));
                    assert!(cached == best.unwrap_or(0) || is_dropped, "a hit of {best:?} tokens ends at {cached}");
                    self.counts.full_hits += u64::from(cached > 0);
                }
                self.counts.hit_tokens += cached as u64;
                self.running.insert(id, Running { root, tokens, prints, computed: cached, is_silent: false });
                if self.rng.once_in(2) {
                    self.begin_fetch(id);
                }
            }
            Err(_) => {
                assert!(!matches!(found.status, AllocStatus::Ok));
                // Contents are limited in number even if they take no memory.
                let is_short = found.num_blocks > available || self.config.block_bytes == 0;
                assert!(is_short || matches!(found.status, AllocStatus::Never { .. }));
                self.counts.refused += 1;
                self.free();
            }
        }
    }

    /// Returns whether a sequence of `count` tokens may need more memory than there is, if it keeps what it has found
    /// behind its first `found` tokens.
    fn may_exceed_memory(&self, count: usize, found: usize) -> bool {
        let (all, found) = (count.div_ceil(self.config.block_size), found / self.config.block_size);
        let of_tail = |tail: &TailConfig| {
            let fresh = if tail.keeps == Keeps::State { 1 } else { all - found };
            (tail.keeps.tail_blocks(found, self.config.block_size) + fresh) * tail.block_bytes
        };
        let tails: usize = self.config.tails.iter().map(of_tail).sum();
        all * self.config.block_bytes + tails > self.manager.usable() * self.unit()
    }

    fn append(&mut self) {
        let Some(id) = self.pick() else { return };
        let count = if self.rng.once_in(10) { self.rng.below(3 * self.config.block_size + 1) } else { 1 };
        let tokens: Vec<_> = (0..count).map(|_| self.rng.below(3) as TokenId).collect();
        let can = self.manager.can_append(SequenceId(id), count);
        let (before, held) = (self.manager.stats(), self.held_bytes());
        let result = self.manager.append(SequenceId(id), &tokens);
        assert_eq!(can, result.is_ok(), "{result:?}");
        if result.is_err() {
            assert_eq!((self.manager.stats().blocks_used, self.held_bytes()), (before.blocks_used, held));
            self.counts.refused += 1;
            return if self.rng.once_in(3) {
                self.free()
            };
        }
        let sequence = self.running.get_mut(&id).expect("it was picked");
        let prints = extend_prints(sequence.root as u64, &sequence.prints, &tokens);
        sequence.prints.extend(prints);
        sequence.tokens.extend(tokens);
    }

    fn ensure(&mut self) {
        let Some(id) = self.pick() else { return };
        let count = self.rng.below(2 * self.config.block_size);
        let can = self.manager.can_append(SequenceId(id), count);
        assert_eq!(self.manager.ensure_num_empty_slots(SequenceId(id), count).is_ok(), can);
    }

    fn fork(&mut self) {
        let Some(id) = self.pick() else { return };
        let is_resident = |episode: &Self| episode.manager.state(SequenceId(id)) == Some(SequenceState::Resident);
        while is_resident(self) && self.running[&id].computed < self.running[&id].tokens.len() {
            self.compute(id);
        }
        if !is_resident(self) {
            return;
        }
        if self.running.len() >= SEQUENCES {
            return self.free();
        }
        let child = (0..).find(|id| !self.running.contains_key(id)).expect("ids are many");
        self.manager.fork(SequenceId(id), SequenceId(child)).expect("everything is computed");
        self.running.insert(child, self.running[&id].clone());
        self.counts.forks += 1;
    }

    fn free(&mut self) {
        let Some(id) = self.pick() else { return };
        self.running.remove(&id);
        assert!(self.manager.free(SequenceId(id)));
    }

    fn resize(&mut self) {
        let most = if self.rng.once_in(2) { self.config.num_blocks } else { 1 };
        let usable = most.max(1 + self.rng.below(self.config.num_blocks));
        self.is_lossy |= usable < self.manager.usable();
        self.manager.set_usable(usable);
        assert_eq!(self.manager.usable(), usable);
    }

    /// Begins to swap one sequence out, or some together, as beams are.
    fn swap_out(&mut self) {
        let group = self.some_in(SequenceState::Resident);
        let can = self.manager.can_swap_out(&group);
        self.flush();
        let (held, exclusive) = (self.held_bytes(), self.manager.blocks_exclusive(&group));
        let result = self.manager.swap_out(&group);
        assert_eq!(result.is_ok(), matches!(can, AllocStatus::Ok), "{can:?} {result:?}");
        if let Ok(swap) = result {
            assert_eq!((self.held_bytes(), swap.num_freed), (held, exclusive));
            self.begin(swap);
            self.counts.swaps += 1;
        }
    }

    fn swap_in(&mut self) {
        let group = self.some_in(SequenceState::Swapped);
        let can = self.manager.can_swap_in(&group);
        let result = self.manager.swap_in(&group);
        // `can_swap_in` applies the watermark, `swap_in` does not.
        assert!(result.is_ok() || !matches!(can, AllocStatus::Ok), "{can:?} {result:?}");
        match result {
            Ok(swap) => {
                self.flush();
                self.begin(swap);
            }
            Err(_) => self.counts.refused += 1,
        }
    }

    fn begin(&mut self, swap: Swap) {
        let blocks = swap.transfers.iter().map(|transfer| transfer.part.block).collect();
        self.swaps.push((swap, blocks));
    }

    /// Returns one sequence in this state, or all of them.
    fn some_in(&mut self, state: SequenceState) -> Vec<SequenceId> {
        let ids = self.running.keys().map(|&id| SequenceId(id));
        let mut ids: Vec<_> = ids.filter(|&id| self.manager.state(id) == Some(state)).collect();
        if !ids.is_empty() && !self.rng.once_in(3) {
            ids = vec![ids[self.rng.below(ids.len())]];
        }
        ids
    }

    /// Makes some transfers of a swap, and reports it if it has ended. A swap that fails leaves poison.
    fn go_on_with_swaps(&mut self) {
        if self.swaps.is_empty() {
            return;
        }
        let (mut swap, blocks) = self.swaps.swap_remove(self.rng.below(self.swaps.len()));
        let fails = self.rng.once_in(16);
        let count = if fails { swap.transfers.len() } else { self.rng.below(swap.transfers.len() + 2) };
        for BlockSwap { part, slot } in swap.transfers.drain(..count.min(swap.transfers.len())) {
            let content = match (swap.direction, fails) {
                (_, true) => vec![POISON; self.config.block_size],
                (SwapDirection::Out, false) => self.part(part),
                (SwapDirection::In, false) => {
                    let (of, content) = &self.slots[&slot];
                    assert_eq!(*of, part.part, "{slot} holds another part");
                    content.clone()
                }
            };
            match swap.direction {
                SwapDirection::Out => drop(self.slots.insert(slot, (part.part, content))),
                SwapDirection::In => self.fill(part, &content),
            }
        }
        if !swap.transfers.is_empty() {
            return self.swaps.push((swap, blocks));
        }
        let outcome = if fails { SwapOutcome::Failed } else { SwapOutcome::Done };
        for id in self.manager.finish_swap(swap.id, outcome) {
            if fails {
                self.running.remove(&id.0).expect("it waited for its swap");
            }
        }
    }

    /// Compacts when nothing is pending, as the engine does.
    fn compact(&mut self) {
        self.flush();
        self.manager.compact(self.rng.below(8));
        self.flush();
    }

    fn reset(&mut self) {
        self.manager.reset_cache();
        self.ends.clear();
        self.running.values_mut().for_each(|sequence| sequence.is_silent = true);
    }

    fn compute_one(&mut self) {
        if let Some(id) = self.pick() {
            self.compute(id);
        }
    }

    /// Lets the toy layers compute the next tokens of a sequence, which read what the tables name.
    fn compute(&mut self, id: u64) {
        if self.manager.state(SequenceId(id)) != Some(SequenceState::Resident) {
            self.go_on_with_swaps();
            return self.end_fetch();
        }
        self.flush();
        let sequence = &self.running[&id];
        let (start, silent) = (sequence.computed, sequence.is_silent);
        let left = sequence.tokens.len() - start;
        assert!(left > 0 || !self.manager.lacks_place(SequenceId(id)));
        if self.manager.lacks_place(SequenceId(id)) {
            let can = self.manager.can_append(SequenceId(id), 0);
            assert_eq!(self.manager.append(SequenceId(id), &[]).is_ok(), can);
            if !can {
                self.counts.refused += 1;
                return self.free();
            }
            self.flush();
        }
        let most = self.manager.num_placed_tokens(SequenceId(id)) - start;
        assert_eq!(most == 0, left == 0, "sequence {id} has {left} tokens to compute, and room for {most}");
        let wanted = most.min(self.config.pass_tokens).min(1 + self.rng.below(2 * self.config.block_size));
        let count = self.manager.count_to_stop(SequenceId(id), wanted);
        assert!(count > 0 || wanted == 0);
        let mut end = start + count.min(left);
        if start == end {
            return;
        }
        if self.rng.once_in(4) {
            end = start + self.manager.count_to_state(SequenceId(id), end - start);
        }
        let prints = self.with_drafts(id, end);
        let table = self.manager.block_table(SequenceId(id)).expect("it is resident").to_vec();
        let (block_size, last) = (self.config.block_size, prints.len());
        (start..last).for_each(|at| self.write(table[at / block_size], at % block_size, prints[at]));
        let places: Vec<_> = self.manager.tail_places(SequenceId(id)).map(Owned::of).collect();
        assert_eq!(places.len(), self.config.tails.len());
        for (place, tail) in places.into_iter().zip(self.config.tails.clone()) {
            match (place, tail.keeps) {
                (Owned::Window { first, blocks }, Keeps::Window { tokens }) => {
                    for at in start..last {
                        for seen in (at + 1).saturating_sub(tokens)..at {
                            let read = self.read(blocks[seen / block_size - first], seen % block_size);
                            assert_eq!(read, prints[seen], "token {at} of sequence {id} sees a wrong token {seen}");
                        }
                        self.write(blocks[at / block_size - first], at % block_size, prints[at]);
                    }
                }
                (Owned::State { position, from, to }, Keeps::State) => {
                    assert_eq!(position, start, "the state of sequence {id} is one of another position");
                    let state = from.map(|from| self.read(from, 0));
                    let expected = start.checked_sub(1).map(|last| prints[last]);
                    assert_eq!(state, expected, "sequence {id} goes on from a wrong state");
                    self.write(to, 0, prints[end - 1]);
                }
                _ => panic!("a place is not of the kind of its group"),
            }
        }
        self.running.get_mut(&id).expect("it is computed").computed = end;
        self.manager.commit(SequenceId(id), end);
        let keeps_state = self.config.tails.iter().any(|tail| tail.keeps == Keeps::State);
        for full in start / block_size + 1..=end / block_size {
            let at = full * block_size;
            if !silent && (!keeps_state || at == end) {
                self.ends.insert(prints[at - 1]);
            }
        }
    }

    /// Returns what a pass computes that ends at `end`: the prints of the tokens so far, and those of some drafts
    /// behind them, as far as there are places. Some drafts are tokens of the sequence; others are wrong.
    fn with_drafts(&mut self, id: u64, end: usize) -> Vec<Print> {
        let (sequence, block_size) = (&self.running[&id], self.config.block_size);
        let table = self.manager.block_table(SequenceId(id)).expect("it is resident");
        let ends = self.manager.tail_places(SequenceId(id)).filter_map(|place| match place {
            TailPlace::Window { first, blocks } => Some(first + blocks.len()),
            TailPlace::State { .. } => None,
        });
        let places = ends.fold(table.len(), usize::min) * block_size;
        let most = places.min(sequence.computed + self.config.pass_tokens).saturating_sub(end);
        let count = if self.rng.once_in(2) { self.rng.below(most + 1) } else { 0 };
        let right = if self.rng.once_in(2) { count } else { self.rng.below(count + 1) };
        let tokens = end..(end + right).min(sequence.prints.len());
        let mut prints = [&sequence.prints[..end], &sequence.prints[tokens]].concat();
        prints.extend((prints.len()..end + count).map(|at| mix(at as u64 ^ POISON)));
        self.counts.drafts += count as u64;
        prints
    }

    /// Carries out pending copies and changes of memory, as the engine does before each pass.
    fn flush(&mut self) {
        self.offer_below();
        let Resize { came, left } = self.manager.take_resize();
        let mut copies = Vec::new();
        self.manager.take_copies(&mut copies);
        // A block that comes has memory before copies are made, and one that leaves until then.
        let came = came.into_iter().map(|block| (block, vec![POISON; self.config.block_size]));
        let fresh: Vec<_> = came.filter(|(block, _)| !self.memory.contains_key(block)).collect();
        self.memory.extend(fresh);
        self.counts.copies += copies.len() as u64;
        for BlockCopy { source, destination } in copies {
            // The sequence that the copy is for may have ended meanwhile.
            if self.memory.contains_key(&destination) {
                self.memory.insert(destination, self.memory[&source].clone());
            }
        }
        left.iter().for_each(|block| drop(self.memory.remove(block)));
    }

    fn read(&self, block: BlockId, at: usize) -> Print {
        self.memory.get(&block).unwrap_or_else(|| panic!("{block} is read, but has no memory"))[at]
    }

    fn write(&mut self, block: BlockId, at: usize, print: Print) {
        let memory = self.memory.get_mut(&block).unwrap_or_else(|| panic!("{block} is written, but has no memory"));
        memory[at] = print;
    }

    /// Checks all invariants, and that what sequences hold is still what they computed.
    fn verify(&mut self) {
        self.manager.check().unwrap_or_else(|violation| panic!("{violation}"));
        let stats = self.manager.stats();
        self.is_lossy |= stats.evictions > 0;
        if !self.rng.once_in(4) {
            return;
        }
        self.flush();
        let taken: usize = self.memory.keys().map(|&block| self.bytes_of(block)).sum();
        let budget = self.manager.usable() * self.unit();
        assert!(taken <= budget.max(self.held_bytes()), "{taken} bytes of {budget} are taken");
        for (&id, sequence) in &self.running {
            let (block_size, prints) = (self.config.block_size, &sequence.prints[..sequence.computed]);
            let Some(table) = self.manager.block_table(SequenceId(id)) else { continue };
            for (at, print) in prints.iter().enumerate().filter(|_| self.config.block_bytes > 0) {
                assert_eq!(self.read(table[at / block_size], at % block_size), *print);
            }
            for place in self.manager.tail_places(SequenceId(id)) {
                match place {
                    TailPlace::Window { first, blocks } => {
                        for at in first * block_size..sequence.computed.min((first + blocks.len()) * block_size) {
                            assert_eq!(self.read(blocks[at / block_size - first], at % block_size), prints[at]);
                        }
                    }
                    TailPlace::State { from, .. } => {
                        assert_eq!(from.map(|from| self.read(from, 0)), prints.last().copied());
                    }
                }
            }
        }
    }

    fn finish(mut self) -> TailCounts {
        for id in std::mem::take(&mut self.running).into_keys() {
            assert!(self.manager.free(SequenceId(id)));
        }
        while !self.swaps.is_empty() || !self.has_fetched() {
            self.go_on_with_swaps();
            self.end_fetch();
        }
        self.manager.check().unwrap_or_else(|violation| panic!("{violation}"));
        assert_eq!(self.manager.available(), self.manager.usable());
        let stats = self.manager.stats();
        assert_eq!((stats.blocks_used, stats.swap_slots_used, self.manager.tail_stats().blocks_held()), (0, 0, 0));
        self.manager.reset_cache();
        self.manager.check().unwrap_or_else(|violation| panic!("{violation}"));
        assert_eq!((self.manager.stats().blocks_cached, self.manager.tail_stats().blocks_cached()), (0, 0));
        let (given_up, fetches) = (self.manager.tail_stats().points_given_up, self.below.num_filled);
        TailCounts { given_up, fetches, evicted: self.below.num_evicted, ..self.counts }
    }

    /// Returns the bytes of all blocks that sequences, swaps or fetches hold, each block counted once.
    fn held_bytes(&self) -> usize {
        let mut held = BTreeSet::new();
        for id in self.manager.sequences() {
            held.extend(self.manager.trunk_blocks(id));
            held.extend(self.manager.tail_blocks(id));
        }
        held.extend(self.swaps.iter().flat_map(|(_, blocks)| blocks));
        held.extend(self.below.blocks());
        held.into_iter().map(|block| self.bytes_of(block)).sum()
    }

    fn bytes_of(&self, block: BlockId) -> usize {
        let groups = self.manager.tail_groups();
        let group = groups.iter().position(|blocks| blocks.contains(&block.0));
        group.map_or(self.config.block_bytes, |group| self.config.tails[group].block_bytes)
    }

    fn unit(&self) -> usize {
        self.config.unit_bytes()
    }

    fn pick(&mut self) -> Option<u64> {
        let chosen = self.rng.below(self.running.len().max(1));
        self.running.keys().nth(chosen).copied()
    }
}

/// The places of a group, copied out of the manager.
enum Owned {
    Window { first: usize, blocks: Vec<BlockId> },
    State { position: usize, from: Option<BlockId>, to: BlockId },
}

impl Owned {
    fn of(place: TailPlace<'_>) -> Self {
        match place {
            TailPlace::Window { first, blocks } => Self::Window { first, blocks: blocks.iter().copied().collect() },
            TailPlace::State { position, from, to } => Self::State { position, from, to },
        }
    }
}

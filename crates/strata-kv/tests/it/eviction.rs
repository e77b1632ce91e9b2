//! Eviction policies by themselves: their contract under random operations, and the known ones against textbook versions.

use std::collections::VecDeque;

use strata_kv::{
    BlockHash, BlockId, BlockManager, ChainRoot, Content, EvictionKind, EvictionPolicy, KvConfig, SequenceId, TokenId,
};

use crate::rng::{Rng, mix};

/// What the block manager would know of a block.
#[derive(Debug, Clone, Default)]
enum State {
    #[default]
    Unknown,
    Held {
        content: u64,
        parent: Option<BlockId>,
    },
    Cached {
        content: u64,
        parent: Option<BlockId>,
    },
}

/// A forest of published contents, told to a policy as the block manager would.
struct Forest {
    policy: Box<dyn EvictionPolicy>,
    states: Vec<State>, // [block]
    rng: Rng,
    /// Contents cannot be told apart by their hashes.
    collide: bool,
}

impl Forest {
    fn new(kind: EvictionKind, blocks: usize, seed: u64, collide: bool) -> Self {
        Self { policy: kind.build(blocks), states: vec![State::default(); blocks], rng: Rng(mix(seed)), collide }
    }

    fn is_cached(&self, block: BlockId) -> bool {
        matches!(self.states[block.index()], State::Cached { .. })
    }

    fn parent(&self, block: BlockId) -> Option<BlockId> {
        match self.states[block.index()] {
            State::Unknown => None,
            State::Held { parent, .. } | State::Cached { parent, .. } => parent,
        }
    }

    fn children(&self, block: BlockId) -> Vec<BlockId> {
        self.blocks().filter(|&child| self.parent(child) == Some(block)).collect()
    }

    fn blocks(&self) -> impl Iterator<Item = BlockId> + use<> {
        (0..self.states.len() as u32).map(BlockId)
    }

    fn pick(&mut self, wanted: impl Fn(&State) -> bool) -> Option<BlockId> {
        let blocks: Vec<_> = self.blocks().filter(|block| wanted(&self.states[block.index()])).collect();
        (!blocks.is_empty()).then(|| blocks[self.rng.below(blocks.len())])
    }

    /// A look-up that finds the chain down to `block`: its holders hold all of it.
    fn hit(&mut self, block: BlockId) {
        let mut chain: Vec<_> = std::iter::successors(Some(block), |&block| self.parent(block)).collect();
        chain.reverse();
        for block in chain {
            self.policy.hit(block);
            let state = &mut self.states[block.index()];
            if let State::Cached { content, parent } = *state {
                *state = State::Held { content, parent };
            }
        }
    }

    fn publish(&mut self) {
        let Some(block) = self.pick(|state| matches!(state, State::Unknown)) else { return };
        let parent = if self.rng.once_in(4) { None } else { self.pick(|state| matches!(state, State::Held { .. })) };
        let content = self.rng.below(300) as u64;
        let hash = BlockHash(if self.collide { 7 } else { mix(content) });
        self.policy.publish(block, Content { hash, parent });
        self.states[block.index()] = State::Held { content, parent };
    }

    /// A holder lets go of a block none of whose children are held.
    fn insert(&mut self) {
        let Some(block) = self.pick(|state| matches!(state, State::Held { .. })) else { return };
        let children = self.children(block);
        if !children.iter().all(|&child| self.is_cached(child)) {
            return;
        }
        self.policy.insert(block, children.is_empty());
        let State::Held { content, parent } = self.states[block.index()] else { unreachable!("it is held") };
        self.states[block.index()] = State::Cached { content, parent };
    }

    fn victim(&mut self) {
        let victim = self.policy.victim();
        assert_eq!(victim.is_some(), self.blocks().any(|block| self.is_cached(block)), "some cached block is a leaf");
        let Some(victim) = victim else { return };
        assert!(self.is_cached(victim), "{victim} was evicted, but is not cached");
        assert!(self.children(victim).is_empty(), "{victim} was evicted before its children");
        let parent = self.parent(victim);
        self.states[victim.index()] = State::Unknown;
        let orphaned = parent.filter(|&parent| self.is_cached(parent) && self.children(parent).is_empty());
        if let Some(parent) = orphaned {
            self.policy.became_leaf(parent);
        }
    }

    fn reset(&mut self) {
        for block in self.blocks() {
            if !matches!(std::mem::take(&mut self.states[block.index()]), State::Unknown) {
                self.policy.forget(block);
            }
        }
    }

    fn move_one(&mut self) {
        let (Some(from), Some(to)) =
            (self.pick(|state| !matches!(state, State::Unknown)), self.pick(|state| matches!(state, State::Unknown)))
        else {
            return;
        };
        self.policy.moved(from, to);
        for child in self.children(from) {
            if let State::Held { parent, .. } | State::Cached { parent, .. } = &mut self.states[child.index()] {
                *parent = Some(to);
            }
        }
        self.states[to.index()] = std::mem::take(&mut self.states[from.index()]);
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..30 => self.publish(),
            30..65 => self.insert(),
            65..75 => {
                if let Some(block) = self.pick(|state| !matches!(state, State::Unknown)) {
                    self.hit(block);
                }
            }
            75..93 => self.victim(),
            93..99 => self.move_one(),
            _ if self.rng.once_in(4) => self.reset(),
            _ => {}
        }
        let cached = self.blocks().filter(|&block| self.is_cached(block)).count();
        assert_eq!(self.policy.len(), cached);
        assert_eq!(self.policy.is_empty(), cached == 0);
        assert!(self.blocks().all(|block| self.policy.contains(block) == self.is_cached(block)));
    }

    /// Everything can be evicted once nobody holds anything.
    fn drain(&mut self) {
        while self.states.iter().any(|state| matches!(state, State::Held { .. })) {
            self.insert();
        }
        while !self.policy.is_empty() {
            self.victim();
        }
        assert_eq!(self.policy.victim(), None);
    }
}

#[test]
fn only_cached_leaves_are_evicted_and_all_of_them() {
    for kind in EvictionKind::ALL {
        for seed in 0..15 {
            println!("{kind}, seed {seed}");
            let blocks = [1, 2, 5, 12, 40][seed as usize % 5];
            let mut forest = Forest::new(kind, blocks, seed, seed % 4 == 0);
            (0..2500).for_each(|_| forest.step());
            forest.drain();
        }
    }
}

/// A cache of chains of one block, as the block manager drives its policy.
struct Flat {
    policy: Box<dyn EvictionPolicy>,
    keys: Vec<Option<u64>>, // [block]
}

impl Flat {
    fn new(kind: EvictionKind, blocks: usize) -> Self {
        Self { policy: kind.build(blocks), keys: vec![None; blocks] }
    }

    /// Whether `key` was there; it is now.
    fn access(&mut self, key: u64) -> bool {
        let found = self.keys.iter().position(|&other| other == Some(key));
        let index = found.unwrap_or_else(|| {
            let vacant = self.keys.iter().position(Option::is_none);
            vacant.unwrap_or_else(|| self.policy.victim().expect("all are cached").index())
        });
        let block = BlockId(index as u32);
        match found {
            Some(_) => self.policy.hit(block),
            None => self.policy.publish(block, Content { hash: BlockHash(mix(key)), parent: None }),
        }
        self.keys[index] = Some(key);
        self.policy.insert(block, true);
        found.is_some()
    }
}

/// As policies are written down in books: lists of keys, the next to go first, searched from end to end.
#[derive(Default)]
struct Textbook {
    capacity: usize,
    lists: [VecDeque<(u64, usize)>; 2], // keys with their uses
    ghosts: VecDeque<Option<u64>>,
}

impl Textbook {
    fn find(&self, key: u64) -> Option<(usize, usize)> {
        let place = |list: usize| Some((list, self.lists[list].iter().position(|&(other, _)| other == key)?));
        place(0).or_else(|| place(1))
    }

    fn is_full(&self) -> bool {
        self.lists[0].len() + self.lists[1].len() == self.capacity
    }

    fn push_ghost(&mut self, key: u64, capacity: usize) {
        self.ghosts.push_back(Some(key));
        if self.ghosts.len() > capacity.max(1) {
            self.ghosts.pop_front();
        }
    }

    fn take_ghost(&mut self, key: u64) -> bool {
        let ghost = self.ghosts.iter_mut().find(|ghost| **ghost == Some(key));
        ghost.map(|ghost| *ghost = None).is_some()
    }

    fn lru(&mut self, key: u64) -> bool {
        let found = self.find(key);
        match found {
            Some((_, at)) => drop(self.lists[0].remove(at)),
            None if self.is_full() => drop(self.lists[0].pop_front()),
            None => {}
        }
        self.lists[0].push_back((key, 0));
        found.is_some()
    }

    fn slru(&mut self, key: u64) -> bool {
        let Some((list, at)) = self.find(key) else {
            if self.is_full() && self.lists[0].pop_front().is_none() {
                self.lists[1].pop_front();
            }
            self.lists[0].push_back((key, 0));
            return false;
        };
        self.lists[list].remove(at);
        self.lists[1].push_back((key, 0));
        if self.lists[1].len() > self.capacity / 2 {
            let oldest = self.lists[1].pop_front().unwrap();
            self.lists[0].push_back(oldest);
        }
        true
    }

    fn lfu(&mut self, key: u64) -> bool {
        let found = self.find(key);
        let uses = found.map_or(0, |(_, at)| self.lists[0].remove(at).unwrap().1 + 1);
        if found.is_none() && self.is_full() {
            let least = (0..self.capacity).min_by_key(|&at| self.lists[0][at].1).unwrap();
            self.lists[0].remove(least);
        }
        self.lists[0].push_back((key, uses));
        found.is_some()
    }

    fn two_queue(&mut self, key: u64) -> bool {
        if let Some((list, at)) = self.find(key) {
            if list == 1 {
                let entry = self.lists[1].remove(at).unwrap();
                self.lists[1].push_back(entry);
            }
            return true;
        }
        if self.is_full() {
            if self.lists[0].len() > self.capacity / 4 || self.lists[1].is_empty() {
                let (evicted, _) = self.lists[0].pop_front().unwrap();
                self.push_ghost(evicted, self.capacity / 2);
            } else {
                self.lists[1].pop_front();
            }
        }
        let list = usize::from(self.take_ghost(key));
        self.lists[list].push_back((key, 0));
        false
    }

    fn s3_fifo(&mut self, key: u64) -> bool {
        if let Some((list, at)) = self.find(key) {
            let uses = &mut self.lists[list][at].1;
            *uses = (*uses + 1).min(3);
            return true;
        }
        while self.is_full() {
            if self.lists[0].len() > self.capacity / 10 || self.lists[1].is_empty() {
                let (oldest, uses) = self.lists[0].pop_front().unwrap();
                match uses {
                    0 | 1 => self.push_ghost(oldest, self.capacity),
                    _ => self.lists[1].push_back((oldest, 0)),
                }
            } else {
                let (oldest, uses) = self.lists[1].pop_front().unwrap();
                if uses > 0 {
                    self.lists[1].push_back((oldest, uses - 1));
                }
            }
        }
        let list = usize::from(self.take_ghost(key));
        self.lists[list].push_back((key, 0));
        false
    }
}

#[test]
fn known_policies_do_what_textbooks_say() {
    type Access = fn(&mut Textbook, u64) -> bool;
    let textbooks: [(EvictionKind, Access); 5] = [
        (EvictionKind::Lru, Textbook::lru),
        (EvictionKind::Slru, Textbook::slru),
        (EvictionKind::Lfu, Textbook::lfu),
        (EvictionKind::S3Fifo, Textbook::s3_fifo),
        (EvictionKind::TwoQueue, Textbook::two_queue),
    ];
    for (kind, access) in textbooks {
        for (seed, capacity) in [1, 2, 9, 40, 100].into_iter().enumerate() {
            let (mut flat, mut textbook) = (Flat::new(kind, capacity), Textbook { capacity, ..Textbook::default() });
            let mut rng = Rng(seed as u64);
            let mut hits = 0;
            for step in 0..6000 {
                // Few keys often and many seldom, others as time goes on.
                let key = (rng.below(200) * rng.below(200) / 100 + step / 1000 * 20) as u64;
                let hit = flat.access(key);
                assert_eq!(hit, access(&mut textbook, key), "{kind} of {capacity}, seed {seed}, step {step}");
                hits += usize::from(hit);
            }
            assert!(hits > 0, "{kind} of {capacity} never found anything");
        }
    }
}

/// Runs prompts of single-token blocks through a block manager; the share of blocks found in the last half of them, in
/// prompts that `counts`.
fn hit_share(
    kind: EvictionKind,
    num_blocks: usize,
    prompts: &[Vec<TokenId>],
    counts: impl Fn(&[TokenId]) -> bool,
) -> f64 {
    let config = KvConfig { num_blocks: num_blocks + 1, block_size: 1, eviction: kind, ..KvConfig::default() };
    let mut manager = BlockManager::new(config).expect("a good configuration");
    let (mut hits, mut all) = (0, 0);
    for (number, prompt) in prompts.iter().enumerate() {
        // The last token of a prompt is never found.
        let tokens = [prompt, &[TokenId::MAX][..]].concat();
        let allocation = manager.allocate(SequenceId(0), &tokens, &ChainRoot::default()).expect("room");
        manager.commit(SequenceId(0), prompt.len());
        manager.free(SequenceId(0));
        if number >= prompts.len() / 2 && counts(prompt) {
            hits += allocation.num_cached_tokens;
            all += prompt.len();
        }
    }
    hits as f64 / all as f64
}

/// The `number`th chain of `length` blocks, unlike all others.
fn chain(number: usize, length: usize) -> Vec<TokenId> {
    (0..length).map(|at| (number * 1000 + at) as TokenId).collect()
}

/// Of each three prompts one is of `hot`, chosen at random, and two are new.
fn hot_and_scans(hot: std::ops::Range<usize>, count: usize, rng: &mut Rng) -> Vec<Vec<TokenId>> {
    let new = 1_000_000;
    let prompt = |at: usize| match at % 3 {
        0 => chain(hot.start + rng.below(hot.len()), 10),
        _ => chain(new + rng.below(3_000_000), 15),
    };
    (0..count).map(prompt).collect()
}

#[test]
fn the_default_keeps_a_hot_set_while_scans_pass() {
    let prompts = hot_and_scans(0..15, 6000, &mut Rng(1));
    let hot = |prompt: &[TokenId]| prompt[0] < 1_000_000;
    let [adaptive, lru] = [EvictionKind::Adaptive, EvictionKind::Lru].map(|kind| hit_share(kind, 200, &prompts, hot));
    assert!(adaptive > 0.9 && lru < 0.5, "{adaptive} {lru}");
}

#[test]
fn the_default_keeps_part_of_a_loop_that_exceeds_the_pool() {
    let prompts: Vec<_> = (0..4000).map(|at| chain(at % 25, 10)).collect();
    let [adaptive, lru] =
        [EvictionKind::Adaptive, EvictionKind::Lru].map(|kind| hit_share(kind, 200, &prompts, |_| true));
    assert!(adaptive > 0.6 && lru == 0.0, "{adaptive} {lru}");
}

#[test]
fn the_default_follows_when_other_prompts_become_hot() {
    let mut rng = Rng(2);
    let mut prompts = hot_and_scans(0..15, 6000, &mut rng);
    prompts.extend(hot_and_scans(20..35, 6000, &mut rng));
    let share = hit_share(EvictionKind::Adaptive, 200, &prompts, |prompt| prompt[0] < 1_000_000);
    assert!(share > 0.85, "{share}");
}

#[test]
fn the_default_keeps_what_comes_back_late_but_surely() {
    // Each prompt is asked for again once, when ten times the pool has passed.
    let prompts: Vec<_> =
        (0..30_000).map(|at| chain(if at % 2 == 1 && at > 400 { at - 401 } else { at }, 10)).collect();
    let [adaptive, lru] =
        [EvictionKind::Adaptive, EvictionKind::Lru].map(|kind| hit_share(kind, 400, &prompts, |_| true));
    assert!(adaptive > 0.04 && lru == 0.0, "{adaptive} {lru}");
}

//! Tests the mapper beside a block manager and a simulated memory that makes changes beside passes as late as it may.

use std::collections::VecDeque;

use super::*;
use crate::testing::Rng;
use crate::{BlockManager, ChainRoot, KvConfig, TokenId};

const BLOCK: usize = 4;

/// State of the mapped memory: what is mapped, and what still has to be mapped.
struct Memory {
    /// The block that is mapped at each place, and whether it may be written. `[strip][index]`
    strips: Vec<Vec<Option<(u32, bool)>>>,
    beside: VecDeque<Mapping>,
    done: u64,
    /// One change in this many is refused; 0 for none.
    refusal: usize,
    /// Changes beside passes that were refused, and of which the mapper has not been told.
    refused: Vec<Mapping>,
    random: Rng,
}

impl Memory {
    fn new(config: &StripConfig) -> Self {
        Self {
            strips: vec![vec![None; config.blocks]; config.strips],
            beside: VecDeque::new(),
            done: 0,
            refusal: 0,
            refused: Vec::new(),
            random: Rng(1),
        }
    }

    /// Returns `false` if the change was refused. Nothing is mapped in its place then.
    fn make(&mut self, mapping: &Mapping) -> bool {
        let is_refused = self.refusal > 0 && self.random.below(self.refusal) == 0;
        for index in 0..mapping.count {
            let entry = &mut self.strips[mapping.strip as usize][(mapping.first + index) as usize];
            *entry = match mapping.to {
                _ if is_refused => None,
                Mapped::Read(block) => Some((block.0 + index, false)),
                Mapped::Write(block) => Some((block.0 + index, true)),
                Mapped::ReadOnly => Some((entry.expect("only what is there is protected").0, false)),
                Mapped::Nothing => None,
            };
        }
        !is_refused
    }

    fn make_beside(&mut self, up_to: u64) {
        while self.done < up_to {
            let mapping = self.beside.pop_front().expect("no change is waited for that was not asked for");
            if !self.make(&mapping) {
                self.refused.push(mapping);
            }
            self.done += 1;
        }
    }

    /// Returns the number of mappings as the system counts them.
    fn mappings(&self) -> usize {
        let joins = |one: Option<(u32, bool)>, next: Option<(u32, bool)>| match (one, next) {
            (None, None) => true,
            (Some((block, write)), Some((next, next_write))) => next == block + 1 && write == next_write,
            _ => false,
        };
        let of = |strip: &Vec<_>| 1 + strip.windows(2).filter(|pair| !joins(pair[0], pair[1])).count();
        self.strips.iter().map(of).sum()
    }
}

fn config(hiding: Hiding) -> StripConfig {
    StripConfig { strips: 8, blocks: 16, mappings_max: 10_000, mapped_max: 10_000, hiding }
}

fn manager(blocks: usize) -> BlockManager {
    BlockManager::new(KvConfig { num_blocks: blocks, block_size: BLOCK, ..KvConfig::default() }).unwrap()
}

/// A sequence whose computation the test can see.
struct Load {
    id: SequenceId,
    tokens: Vec<TokenId>,
    computed: usize,
}

struct World {
    manager: BlockManager,
    mapper: StripMapper,
    memory: Memory,
    plan: StripPlan,
    running: Vec<Load>,
    next: u64,
    random: Rng,
    /// The number of blocks that were mapped before a pass rather than beside one.
    mapped_now: usize,
    listed: usize,
}

impl World {
    fn new(config: StripConfig, blocks: usize, seed: u64) -> Self {
        Self {
            manager: manager(blocks),
            mapper: StripMapper::new(config),
            memory: Memory::new(&config),
            plan: StripPlan::default(),
            running: Vec::new(),
            next: 0,
            random: Rng(seed),
            mapped_now: 0,
            listed: 0,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound)
    }

    /// Admits a sequence, if there is room.
    fn admit(&mut self, tokens: Vec<TokenId>) -> bool {
        let hashes = self.manager.hash_prefix(&ChainRoot::default(), &tokens);
        let id = SequenceId(self.next);
        let Ok(allocation) = self.manager.allocate(id, &tokens, &hashes) else { return false };
        self.next += 1;
        self.running.push(Load { id, tokens, computed: allocation.num_cached_tokens });
        true
    }

    /// Plans a step in which each sequence computes up to `chunk` tokens of its prompt, or one more token.
    fn step(&mut self, chunk: usize, waiting: Option<&[TokenId]>) {
        let mut spans = Vec::new();
        for load in &mut self.running {
            if load.computed == load.tokens.len() {
                let token = self.random.0 as u32 % 5;
                if self.manager.append(load.id, &[token]).is_err() {
                    continue;
                }
                load.tokens.push(token);
            }
            let end = (load.computed + chunk).min(load.tokens.len());
            // The next token's block, if there is one.
            if end == load.tokens.len() {
                let _ = self.manager.ensure_num_empty_slots(load.id, 1);
            }
            spans.push((load.id, load.computed, end));
            load.computed = end;
        }
        let mut copies = Vec::new();
        self.manager.take_copies(&mut copies);
        let foreseen = waiting.map(|tokens| {
            let hashes = self.manager.hash_prefix(&ChainRoot::default(), tokens);
            self.manager.foresee(tokens, &hashes)
        });
        let uses: Vec<_> = spans
            .iter()
            .map(|&(id, start, end)| StripUse {
                id,
                below: 0,
                table: self.manager.block_table(id).unwrap(),
                written: start / BLOCK..end.div_ceil(BLOCK),
            })
            .collect();
        let manager = &self.manager;
        // What is refused is tried again, as often as the engine's steps do it, or until all of it is made.
        let tries = [2, usize::MAX][self.random.below(2)];
        for attempt in 1.. {
            std::mem::take(&mut self.memory.refused).iter().for_each(|mapping| self.mapper.refused(mapping));
            self.mapper.step(&uses, |id| manager.block_table(id).is_some(), &mut self.plan);
            if let Some(foreseen) = &foreseen {
                self.mapper.foresee(&foreseen.blocks, foreseen.found, &mut self.plan);
            }
            self.memory.make_beside(self.plan.after);
            let mut refused = std::mem::take(&mut self.memory.refused);
            let is_sound = refused.is_empty();
            let now = self.plan.now.iter().copied();
            refused.extend(now.filter(|mapping| !is_sound || !self.memory.make(mapping)));
            self.memory.beside.extend(self.plan.beside.iter().copied());
            refused.iter().for_each(|mapping| self.mapper.refused(mapping));
            if refused.is_empty() {
                break;
            }
            if attempt == tries {
                return;
            }
        }
        self.mapped_now += self.plan.now.iter().filter(|mapping| mapping.to != Mapped::ReadOnly).count();
        // What the pass uses is what the block manager says, and what is shared cannot be written.
        for (of, place) in uses.iter().zip(&self.plan.places) {
            let StripPlace::Strip { strip, first, end, written } = *place else {
                self.listed += 1;
                continue;
            };
            assert_eq!((first, written, end), (0, of.written.start as u32, of.written.end as u32));
            let strip = &self.memory.strips[strip as usize];
            for (index, &block) in of.table[..of.written.end].iter().enumerate() {
                let (mapped, writable) = strip[index].expect("what a pass uses is mapped");
                assert_eq!(mapped, block.0, "block {index} of {:?}", of.id);
                assert!(writable || index < of.written.start);
            }
        }
        self.mapper.check().unwrap();
        // Beside the pass.
        if self.below(3) > 0 {
            let done = self.below(4) as u64;
            let asked = self.memory.done + self.memory.beside.len() as u64;
            self.memory.make_beside((self.memory.done + done).min(asked));
        }
        for &(id, _, end) in &spans {
            self.manager.commit(id, end);
        }
    }

    fn end(&mut self, index: usize) {
        let load = self.running.swap_remove(index);
        assert!(self.manager.free(load.id));
    }

    fn all_beside(&mut self) {
        let asked = self.memory.done + self.memory.beside.len() as u64;
        self.memory.make_beside(asked);
        std::mem::take(&mut self.memory.refused).iter().for_each(|mapping| self.mapper.refused(mapping));
        // A change that was refused, or not tried behind one, may leave what was there before.
        assert!(self.memory.refusal > 0 || self.memory.mappings() == self.mapper.mappings());
    }
}

#[test]
fn whatever_happens_a_pass_finds_its_blocks_where_its_strip_begins() {
    let mut hidings = vec![Hiding::ALL, Hiding::NONE];
    for off in 0..4 {
        let Hiding { ahead, deferred, eager, reclaim_beside } = Hiding::ALL;
        hidings.push(Hiding {
            ahead: ahead && off != 0,
            deferred: deferred && off != 1,
            eager: eager && off != 2,
            reclaim_beside: reclaim_beside && off != 3,
        });
    }
    for (seed, hiding) in (0..60).zip(hidings.iter().cycle()) {
        // Sometimes room is short: for blocks, or for mappings.
        let blocks = [24, 60, 200][seed % 3];
        let (mappings_max, mapped_max) = [(10_000, 10_000), (60, 10_000), (10_000, 60)][seed / 3 % 3];
        let config = StripConfig { mappings_max, mapped_max, ..config(*hiding) };
        let mut world = World::new(config, blocks, seed as u64 + 1);
        // Sometimes the system refuses changes.
        world.memory.refusal = [0, 5][seed / 9 % 2];
        for _ in 0..400 {
            let (branch, length) = (world.below(4) as u32, world.below(40) + 1);
            let prompt: Vec<_> = (0..length as u32).map(|at| if at < 12 { branch } else { at % 3 }).collect();
            match world.below(10) {
                0..3 if world.running.len() < 6 => {
                    world.admit(prompt.clone());
                }
                3 | 4 if !world.running.is_empty() => {
                    let index = world.below(world.running.len());
                    world.end(index);
                }
                5 if !world.running.is_empty() && world.running.len() < 6 => {
                    let index = world.below(world.running.len());
                    let (parent, child) = (world.running[index].id, SequenceId(world.next));
                    if world.manager.fork(parent, child).is_ok() {
                        world.next += 1;
                        let (tokens, computed) = (world.running[index].tokens.clone(), world.running[index].computed);
                        world.running.push(Load { id: child, tokens, computed });
                    }
                }
                _ => {}
            }
            let long = world.running.iter().position(|load| load.tokens.len() > 56);
            long.into_iter().for_each(|index| world.end(index));
            let chunk = world.below(20) + 1;
            world.step(chunk, Some(&prompt));
        }
        world.all_beside();
        assert!(mappings_max < 100 || world.mapper.mappings() <= mappings_max);
        assert!(mappings_max.min(mapped_max) < 100 || world.listed == 0, "there was room for all");
    }
}

#[test]
fn in_steady_decode_nothing_is_mapped_before_a_pass() {
    let mut world = World::new(StripConfig { blocks: 300, ..config(Hiding::ALL) }, 2_400, 1);
    for number in 0..6 {
        assert!(world.admit((0..7 + number).map(|at| at + 100 * number).collect()));
    }
    for _ in 0..3 {
        world.step(32, None);
    }
    let before = world.mapped_now;
    for _ in 0..1_000 {
        world.step(1, None);
        world.all_beside();
    }
    assert_eq!(world.mapped_now, before);

    let without = Hiding { ahead: false, ..Hiding::ALL };
    let mut world = World::new(StripConfig { blocks: 300, ..config(without) }, 2_400, 1);
    assert!(world.admit(vec![1; 7]));
    for _ in 0..1_000 {
        world.step(7, None);
    }
    assert!(world.mapped_now >= 250, "{}", world.mapped_now);
}

#[test]
fn whoever_comes_back_finds_its_blocks_mapped_and_cannot_write_them() {
    let mut world = World::new(config(Hiding::ALL), 100, 1);
    let prompt: Vec<_> = (0..30).collect();
    assert!(world.admit(prompt.clone()));
    world.step(30, None);
    world.end(0);
    world.all_beside();
    let before = world.mapped_now;
    assert!(world.admit(prompt));
    world.step(30, None);
    // Its last block, which was not full, is the free one that is given out first.
    assert_eq!(world.mapped_now, before);
    let StripPlace::Strip { strip, written, .. } = world.plan.places[0] else { panic!("there is room") };
    assert_eq!(written, 7);
    let strip = &world.memory.strips[strip as usize];
    assert!(strip[..7].iter().all(|entry| !entry.unwrap().1) && strip[7].unwrap().1);
}

#[test]
fn a_waiting_sequence_finds_its_blocks_mapped() {
    for (hiding, expected) in [(Hiding::ALL, 0), (Hiding { eager: false, ..Hiding::ALL }, 1)] {
        let mut world = World::new(config(hiding), 100, 1);
        assert!(world.admit(vec![7; 9]));
        let waiting: Vec<_> = (0..30).collect();
        world.step(9, Some(&waiting));
        world.all_beside();
        let before = world.mapped_now;
        assert!(world.admit(waiting));
        world.step(30, None);
        assert_eq!(world.mapped_now, before + expected);
    }
}

#[test]
fn what_was_refused_is_asked_for_again() {
    let mut world = World::new(config(Hiding::ALL), 100, 1);
    assert!(world.admit(vec![7; 9]));
    world.step(9, None);
    let refused = world.plan.now[0];
    world.mapper.refused(&refused);
    world.mapper.check().unwrap();
    world.step(9, None);
    assert!(world.plan.now.iter().any(|mapping| mapping.first == refused.first));
}

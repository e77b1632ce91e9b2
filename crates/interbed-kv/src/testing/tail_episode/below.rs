//! A tier below memory, which keeps some of what it is offered, and forgets some of what it keeps.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    BlockId, BlockKey, BlockLabel, BlockPart, Fetch, Keeps, KeyChain, SequenceId, SequenceState, TokenId, Wanted,
    WantedTails, testing::naive::Print,
};

use super::{POISON, TailEpisode};

/// What the tier keeps under a key.
#[derive(Debug, Clone)]
struct Kept {
    parent: BlockKey,
    tokens: Box<[TokenId]>,
    part: u32,
    content: Vec<Print>,
}

/// A fetch that has begun, with what it brings.
struct Begun {
    fetch: Fetch,
    wanted: Vec<Wanted>,
}

/// The tier, and the fetches from it.
pub(super) struct Below {
    pub(super) chain: KeyChain,
    kept: BTreeMap<BlockKey, Kept>,
    /// The wanted resume points that may still be offered to the tier.
    points: VecDeque<(BlockId, BlockKey)>,
    fetches: Vec<Begun>,
    /// The number of fetches that have brought something.
    pub(super) num_filled: u64,
    /// The number of wanted points whose parts were offered when the points ended.
    pub(super) num_evicted: u64,
}

impl Below {
    pub(super) fn new() -> Self {
        Self {
            chain: KeyChain::new([1; 32], [2; 32]),
            kept: BTreeMap::new(),
            points: VecDeque::new(),
            fetches: Vec::new(),
            num_filled: 0,
            num_evicted: 0,
        }
    }

    /// Returns the blocks that fetches in flight fill.
    pub(super) fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.fetches
            .iter()
            .flat_map(|begun| begun.fetch.blocks.iter().chain(begun.fetch.tails.iter().flatten()))
            .copied()
    }
}

impl TailEpisode {
    /// Offers the tier what was computed and what memory has given up, before anything overwrites that.
    pub(super) fn offer_below(&mut self) {
        for evicted in self.manager.take_evicted() {
            self.keep_below(evicted.label, evicted.part);
        }
        for parts in self.manager.take_evicted_points() {
            self.below.num_evicted += 1;
            parts.into_iter().for_each(|evicted| self.keep_below(evicted.label, evicted.part));
        }
        for block in self.manager.take_published() {
            if let Some(label) = self.manager.label(block).filter(|_| self.rng.once_in(2)) {
                self.keep_below(label, BlockPart::whole(block));
            }
        }
        let points = self.manager.take_wanted_points().into_iter();
        self.below.points.extend(points.map(|point| (point.block, point.key)));
        while !self.manager.has_copies()
            && self.rng.once_in(2)
            && let Some((block, key)) = self.below.points.pop_front()
        {
            let is_there = self.manager.key(block) == Some(key);
            let parts = self.manager.point_parts(block).filter(|_| is_there);
            parts.into_iter().flatten().for_each(|(label, part)| self.keep_below(label, part));
        }
    }

    fn keep_below(&mut self, BlockLabel { key, parent, tokens, .. }: BlockLabel, part: BlockPart) {
        if self.rng.once_in(64) {
            // Something is lost now and then.
            let lost = self.below.kept.keys().nth(self.rng.below(self.below.kept.len().max(1))).copied();
            lost.into_iter().for_each(|key| drop(self.below.kept.remove(&key)));
        }
        let content = self.part(part);
        self.below.kept.insert(key, Kept { parent, tokens, part: part.part, content });
    }

    /// Returns what a part of a block holds, with `POISON` in place of other parts.
    pub(super) fn part(&self, BlockPart { block, part }: BlockPart) -> Vec<Print> {
        let (memory, parts) = (&self.memory[&block], self.parts_of(block));
        (0..).zip(memory).map(|(at, &print)| if at % parts == part { print } else { POISON }).collect()
    }

    /// Fills a part of a block.
    pub(super) fn fill(&mut self, BlockPart { block, part }: BlockPart, content: &[Print]) {
        let parts = self.parts_of(block);
        let memory = self.memory.get_mut(&block).unwrap_or_else(|| panic!("{block} is filled, but has no memory"));
        let own = (0..).zip(memory).zip(content).filter(|((at, _), _)| at % parts == part);
        own.for_each(|((_, to), &print)| *to = print);
    }

    fn parts_of(&self, block: BlockId) -> u32 {
        let groups = self.manager.tail_groups();
        let group = groups.iter().position(|blocks| blocks.contains(&block.0));
        group.map_or(1, |group| self.config.tails[group].parts)
    }

    /// Begins to fetch what a new sequence lacks, if the tier has anything behind which it can go on.
    pub(super) fn begin_fetch(&mut self, id: u64) {
        let tokens = self.running[&id].tokens.clone();
        let keys = self.manager.missing_keys(SequenceId(id), &tokens);
        let Below { kept, chain, .. } = &self.below;
        // Blocks that hold nothing need not be kept.
        let is_empty = self.config.block_bytes == 0;
        let found = keys.keys().iter().take_while(|key| is_empty || kept.contains_key(*key)).count();
        let count = keys.usable(found, chain, |key| kept.contains_key(&key));
        if count == 0 {
            return;
        }
        let held = self.held_bytes();
        let Ok(fetch) = self.manager.begin_fetch(SequenceId(id), count) else {
            assert_eq!(self.held_bytes(), held);
            self.counts.refused += 1;
            return;
        };
        let block_size = self.config.block_size;
        let of = |index: usize| -> Box<[TokenId]> { tokens[index * block_size..][..block_size].into() };
        let first = keys.first();
        let mut parent = self.manager.parent_key(SequenceId(id)).expect("it has keys");
        let trunk = (first..).zip(keys.keys()).zip(&fetch.blocks).map(|((index, &key), &block)| {
            let parent = std::mem::replace(&mut parent, key);
            Wanted { key, parent, tokens: of(index), part: BlockPart::whole(block) }
        });
        let mut wanted: Vec<_> = trunk.collect();
        let tails = WantedTails::new(&keys, fetch.tails.clone(), of).expect("there are groups");
        let behind = tails.behind(count, &wanted, &self.below.chain);
        let marks = tails.marks(count, &wanted, &self.below.chain);
        assert!(marks.iter().all(|mark| wanted.iter().chain(&behind).any(|wanted| wanted.key == *mark)));
        if is_empty {
            wanted.clear();
        }
        wanted.extend(behind);
        self.below.fetches.push(Begun { fetch, wanted });
    }

    /// Ends a fetch, which brings everything, or fails and leaves poison.
    pub(super) fn end_fetch(&mut self) {
        if self.below.fetches.is_empty() {
            return;
        }
        self.flush();
        let (chosen, before) = (self.rng.below(self.below.fetches.len()), self.held_bytes());
        let Begun { fetch, wanted } = self.below.fetches.swap_remove(chosen);
        let mut is_whole = !self.rng.once_in(8);
        for Wanted { key, parent, tokens, part } in wanted {
            // The tier may have lost it meanwhile.
            match self.below.kept.get(&key).cloned().filter(|_| is_whole) {
                Some(kept) => {
                    assert_eq!(
                        (kept.parent, kept.tokens, kept.part),
                        (parent, tokens, part.part),
                        "{key:?} is another"
                    );
                    self.fill(part, &kept.content);
                }
                None => {
                    is_whole = false;
                    self.fill(part, &vec![POISON; self.config.block_size]);
                }
            }
        }
        let (count, size) = (fetch.blocks.len(), self.config.block_size);
        let Some((SequenceId(id), computed)) = self.manager.finish_fetch(fetch.id, if is_whole { count } else { 0 })
        else {
            return;
        };
        assert!(self.held_bytes() <= before, "a fetch that ends takes nothing");
        assert_eq!(self.manager.state(SequenceId(id)), Some(SequenceState::Resident));
        let sequence = self.running.get_mut(&id).expect("it waited");
        assert_eq!(computed, sequence.computed + if is_whole { count * self.config.block_size } else { 0 });
        sequence.computed = computed;
        self.below.num_filled += u64::from(is_whole);
        if is_whole && !sequence.is_silent {
            // If layers keep no states and every window reaches back to the sequence's beginning, the fetch also brings
            // all that shorter prefixes need.
            let keeps = self.config.tails.iter().map(|tail| tail.keeps);
            let reach = keeps.map(|keeps| if keeps == Keeps::State { 0 } else { keeps.tail_blocks(usize::MAX, size) });
            let num_blocks = computed / size;
            let shorter = reach.min().is_some_and(|reach| num_blocks <= reach);
            let ends = if shorter { num_blocks + 1 - count..=num_blocks } else { num_blocks..=num_blocks };
            self.ends.extend(ends.map(|end| sequence.prints[end * size - 1]));
        }
    }

    /// Returns whether no fetch is in flight.
    pub(super) fn has_fetched(&self) -> bool {
        self.below.fetches.is_empty()
    }
}

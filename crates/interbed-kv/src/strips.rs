//! Strips: ranges of addresses, one for each sequence that runs, in which the sequence's trunk blocks lie side by side.
//! The block manager says which blocks a sequence has. This module says which of them the engine must map where, before
//! which pass, and what it can do beside the passes before that one.
//!
//! Blocks that were mapped stay mapped when a sequence ends, and the next sequence takes the strip that has most of its
//! blocks already (vAttention, section 6). The block manager gives out blocks in an order that can be foreseen, so the
//! engine maps the blocks of a sequence that still waits before the sequence is admitted.
//!
//! A change *beside* a pass is made while the pass runs, on another thread. A *mapping* is a run of neighbouring blocks
//! in a strip that are neighbours in memory too, as the system counts them.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::Range;

use crate::ids::{BlockId, SequenceId};
use crate::tables::IdHasher;

/// The number, size and limits of strips. A strip is a range of addresses in which the blocks of one sequence lie side
/// by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StripConfig {
    /// The number of strips.
    pub strips: usize,
    /// The number of blocks that fit into a strip.
    pub blocks: usize,
    /// The most mappings that all strips together may have, because the system has a limit. An empty part of a strip
    /// counts as a mapping.
    pub mappings_max: usize,
    /// The most blocks that may be mapped in all strips together, because page tables take memory too. A block counts
    /// once for each strip that maps it.
    pub mapped_max: usize,
    /// The ways to hide the time of mapping that are used.
    pub hiding: Hiding,
}

/// The ways to hide the time that mapping takes. All are on, except when the gain of each is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hiding {
    /// Whether the blocks that later passes of running sequences need are mapped beside a pass.
    pub ahead: bool,
    /// Whether a sequence's blocks stay mapped when the sequence has ended.
    pub deferred: bool,
    /// Whether the blocks that a waiting sequence will need are mapped beside a pass.
    pub eager: bool,
    /// Whether blocks that nobody needs are unmapped beside a pass, rather than before it.
    pub reclaim_beside: bool,
}

impl Hiding {
    /// All ways to hide time are on.
    pub const ALL: Self = Self { ahead: true, deferred: true, eager: true, reclaim_beside: true };
    /// All ways to hide time are off.
    pub const NONE: Self = Self { ahead: false, deferred: false, eager: false, reclaim_beside: false };
}

/// The blocks of one sequence that a step uses.
#[derive(Debug, Clone)]
pub struct StripUse<'a> {
    /// The sequence whose blocks are used.
    pub id: SequenceId,
    /// Number of leading blocks of the sequence that lie in a tier below memory.
    pub below: usize,
    /// The trunk blocks of the sequence in memory, in the order of its tokens, as
    /// [`BlockManager::block_table`](crate::BlockManager::block_table) returns them.
    pub table: &'a [BlockId],
    /// The range of indices in `table` of the blocks that the pass writes. The pass reads blocks before the range;
    /// blocks after it are for later passes.
    pub written: Range<usize>,
}

/// A change of what is mapped in a run of blocks of a strip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// The number of the strip.
    pub strip: u32,
    /// The place in the strip, counted in blocks, of the first block that changes.
    pub first: u32,
    /// The number of blocks that change.
    pub count: u32,
    /// What the changed blocks of the strip map from then on.
    pub to: Mapped,
}

/// What a run of blocks of a strip maps after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapped {
    /// The run maps blocks with consecutive ids, from this one on, to be read.
    Read(BlockId),
    /// The run maps blocks with consecutive ids, from this one on, to be read and written.
    Write(BlockId),
    /// The run goes on to map the same blocks, which can only be read from now on.
    ReadOnly,
    /// The run maps nothing.
    Nothing,
}

/// The place where a pass finds the blocks of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StripPlace {
    /// The blocks lie in a strip. `first`, `end` and `written` count blocks from the strip's beginning.
    Strip {
        /// The number of the strip.
        strip: u32,
        /// The place of the table's first block.
        first: u32,
        /// The place behind the last block that the pass uses.
        end: u32,
        /// The place of the first block that the pass writes.
        written: u32,
    },
    /// The blocks do not lie side by side: the pass finds each by its id in the sequence's table.
    Listed,
}

/// The changes of strips that a step needs, and where its pass then finds the blocks.
#[derive(Debug, Default)]
pub struct StripPlan {
    /// The places of each sequence's blocks, in the order in which the uses were passed to [`StripMapper::step`].
    pub places: Vec<StripPlace>,
    /// The number of the last change beside a pass that must have been made before the changes `now` and the pass
    /// begin; 0 for none.
    pub after: u64,
    /// The changes that must be made, in this order, before the pass begins.
    pub now: Vec<Mapping>,
    /// The changes that can be made, in this order, while the pass runs. All changes beside passes are numbered from 1
    /// on since the mapper was made.
    pub beside: Vec<Mapping>,
}

/// What one block of a strip maps, or will map once change number `change` is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    block: Option<BlockId>,
    writable: bool,
    change: u64,
}

impl Entry {
    const NOTHING: Self = Self { block: None, writable: false, change: 0 };

    /// Returns whether this entry and `next`, right behind it, form one mapping.
    fn joins(&self, next: &Self) -> bool {
        match (self.block, next.block) {
            (None, None) => true,
            (Some(block), Some(next_block)) => next_block.0 == block.0 + 1 && self.writable == next.writable,
            _ => false,
        }
    }

    /// Returns whether this entry maps `block`, and may be written if that is needed.
    fn serves(&self, block: BlockId, to_write: bool) -> bool {
        self.block == Some(block) && (self.writable || !to_write)
    }
}

#[derive(Debug)]
struct Strip {
    owner: Option<SequenceId>,
    /// The entries that were ever used. Nothing is mapped behind them.
    entries: Vec<Entry>,
    mapped: usize,
    /// The number of the step that used the strip last.
    used: u64,
}

impl Strip {
    fn entry(&self, at: usize) -> Entry {
        self.entries.get(at).copied().unwrap_or(Entry::NOTHING)
    }

    /// Returns how many mappings, but for the strip's first, begin at the place `at` or the next one, in a strip of
    /// `blocks` blocks.
    fn borders(&self, at: usize, blocks: usize) -> usize {
        let begins = |at: usize| at > 0 && at < blocks && !self.entry(at - 1).joins(&self.entry(at));
        usize::from(begins(at)) + usize::from(begins(at + 1))
    }
}

/// Records which blocks are mapped in strips, and plans which must be mapped. The engine makes the changes.
#[derive(Debug)]
pub struct StripMapper {
    config: StripConfig,
    strips: Vec<Strip>,
    owned: HashMap<SequenceId, u32, BuildHasherDefault<IdHasher>>,
    /// The number of mappings in all strips, empty parts included.
    mappings: usize,
    /// The number of blocks mapped in all strips.
    mapped: usize,
    /// The number of changes beside passes so far.
    changes: u64,
    steps: u64,
    /// Number of times that a sequence's blocks found no room in strips for a pass.
    listed: u64,
}

impl StripMapper {
    /// Makes a mapper with all strips empty.
    pub fn new(config: StripConfig) -> Self {
        let strip = || Strip { owner: None, entries: Vec::new(), mapped: 0, used: 0 };
        Self {
            strips: (0..config.strips).map(|_| strip()).collect(),
            owned: HashMap::default(),
            mappings: config.strips,
            mapped: 0,
            changes: 0,
            steps: 0,
            listed: 0,
            config,
        }
    }

    /// Returns which ways to hide the time of mapping are used.
    pub fn hiding(&self) -> Hiding {
        self.config.hiding
    }

    /// Returns how many mappings all strips have, empty parts included, as the system counts them.
    pub fn mappings(&self) -> usize {
        self.mappings
    }

    /// Returns how many blocks are mapped in all strips. A block that several strips map counts several times.
    pub fn mapped(&self) -> usize {
        self.mapped
    }

    /// Returns how often a sequence that fits into a strip had to be [listed](StripPlace::Listed) for a pass, for want
    /// of room in strips.
    pub fn listed(&self) -> u64 {
        self.listed
    }

    /// Plans a step whose pass uses the blocks of `uses`, and writes the plan into `plan`, which it empties first.
    /// `is_held` says whether a sequence still has its blocks in memory; strips of other sequences become free for new
    /// ones.
    pub fn step(&mut self, uses: &[StripUse<'_>], is_held: impl Fn(SequenceId) -> bool, plan: &mut StripPlan) {
        self.steps += 1;
        plan.places.clear();
        plan.now.clear();
        plan.beside.clear();
        plan.after = 0;
        for strip in 0..self.strips.len() as u32 {
            let ended = self.strips[strip as usize].owner.filter(|&id| !is_held(id));
            if let Some(id) = ended {
                self.owned.remove(&id);
                self.strips[strip as usize].owner = None;
                if !self.config.hiding.deferred {
                    self.clear(strip, false, plan);
                }
            }
        }
        for of in uses {
            let place = self.place(of, plan);
            // Sequences that are longer than a strip are not meant to have one.
            let is_short = of.below + of.table.len() <= self.config.blocks;
            self.listed += u64::from(place == StripPlace::Listed && is_short);
            plan.places.push(place);
        }
        self.reclaim(plan);
    }

    /// Adds changes beside the pass to `plan`, the plan of the last [`step`](Self::step), for a sequence that still
    /// waits. The sequence will get the blocks of `table`, of which the first `found` have content. Does nothing if
    /// [`Hiding::eager`] is off, or if too little room is left.
    pub fn foresee(&mut self, table: &[BlockId], found: usize, plan: &mut StripPlan) {
        if !self.config.hiding.eager || table.len() > self.config.blocks || !self.has_room_for(table.len()) {
            return;
        }
        let Some(strip) = self.best_for(0, table) else { return };
        self.strips[strip as usize].used = self.steps;
        for (index, &block) in table.iter().enumerate() {
            let to_write = index >= found;
            if !self.strips[strip as usize].entry(index).serves(block, to_write) {
                self.map(strip, index, block, to_write, true, plan);
            }
        }
    }

    /// Notes that the system refused `change`, so that its part of the strip maps nothing. Where a later change maps
    /// something else, that change still counts, and a pass still waits for it.
    pub fn refused(&mut self, change: &Mapping) {
        for offset in 0..change.count {
            let at = (change.first + offset) as usize;
            let entry = self.strips[change.strip as usize].entry(at);
            let wanted = match change.to {
                Mapped::Read(first) => Some((first.0 + offset, false)),
                Mapped::Write(first) => Some((first.0 + offset, true)),
                Mapped::ReadOnly | Mapped::Nothing => None,
            };
            let is_later = entry.change > 0 && entry.block.map(|block| (block.0, entry.writable)) != wanted;
            if !is_later {
                self.set(change.strip, at, Entry { change: entry.change, ..Entry::NOTHING });
            }
        }
    }

    fn place(&mut self, of: &StripUse<'_>, plan: &mut StripPlan) -> StripPlace {
        let end = of.below + of.table.len();
        if end > self.config.blocks {
            return StripPlace::Listed;
        }
        let strip = match self.owned.get(&of.id) {
            Some(&strip) => strip,
            None => {
                let Some(strip) = self.best_for(of.below, of.table).filter(|_| self.has_room_for(of.table.len()))
                else {
                    return StripPlace::Listed;
                };
                self.strips[strip as usize].owner = Some(of.id);
                self.owned.insert(of.id, strip);
                self.protect(strip, of, plan);
                strip
            }
        };
        self.strips[strip as usize].used = self.steps;
        for (index, &block) in of.table.iter().enumerate() {
            let at = of.below + index;
            let entry = self.strips[strip as usize].entry(at);
            let (is_now, to_write) = (index < of.written.end, index >= of.written.start);
            if is_now {
                // A change that is under way must end before the pass, whether it maps the wanted block or would
                // interfere.
                plan.after = plan.after.max(entry.change);
            }
            if entry.serves(block, to_write) || !is_now && !self.config.hiding.ahead {
                continue;
            }
            if !self.has_room_for(1) {
                if is_now {
                    return StripPlace::Listed;
                }
                break;
            }
            self.map(strip, at, block, to_write, !is_now, plan);
        }
        StripPlace::Strip {
            strip,
            first: of.below as u32,
            end: (of.below + of.written.end) as u32,
            written: (of.below + of.written.start) as u32,
        }
    }

    /// Makes the blocks that were found read-only in a strip that an earlier sequence may have been allowed to write.
    fn protect(&mut self, strip: u32, of: &StripUse<'_>, plan: &mut StripPlan) {
        let entries = &self.strips[strip as usize];
        let is_kept = |(at, &block)| Some(entries.entry(at)).filter(|entry| entry.serves(block, true));
        let read = (of.below..).zip(&of.table[..of.written.start]);
        let kept: Vec<_> = read.map(is_kept).map(|entry| entry.map(|entry| entry.change)).collect();
        let mut index = 0;
        while index < kept.len() {
            let run = kept[index..].iter().take_while(|kept| kept.is_some()).count();
            if run > 0 {
                let first = of.below + index;
                plan.after = plan.after.max(kept[index..index + run].iter().flatten().copied().max().unwrap_or(0));
                for at in first..first + run {
                    let entry = self.strips[strip as usize].entry(at);
                    self.set(strip, at, Entry { writable: false, change: 0, ..entry });
                }
                plan.now.push(Mapping { strip, first: first as u32, count: run as u32, to: Mapped::ReadOnly });
            }
            index += run.max(1);
        }
    }

    /// Returns the strip without an owner that has most of the blocks of `table`, from the first on, in the places
    /// behind `below`. Of several such strips, returns the one that maps the fewest blocks, and of these the one that
    /// was used longest ago. Returns `None` if all strips have owners.
    fn best_for(&self, below: usize, table: &[BlockId]) -> Option<u32> {
        let fit = |strip: &Strip| {
            let pairs = (below..).zip(table);
            pairs.take_while(|&(at, &block)| strip.entry(at).block == Some(block)).count()
        };
        let free = self.strips.iter().enumerate().filter(|(_, strip)| strip.owner.is_none());
        let best =
            free.max_by_key(|(_, strip)| (fit(strip), std::cmp::Reverse(strip.mapped), std::cmp::Reverse(strip.used)));
        best.map(|(strip, _)| strip as u32)
    }

    /// Returns whether `blocks` more blocks can be mapped, each as a mapping of its own.
    fn has_room_for(&self, blocks: usize) -> bool {
        // A mapping in the middle of another one splits it into three.
        self.mappings + 2 * blocks <= self.config.mappings_max && self.mapped + blocks <= self.config.mapped_max
    }

    fn map(&mut self, strip: u32, at: usize, block: BlockId, to_write: bool, beside: bool, plan: &mut StripPlan) {
        let list = if beside { &mut plan.beside } else { &mut plan.now };
        let to = if to_write { Mapped::Write(block) } else { Mapped::Read(block) };
        let joined = list.last_mut().filter(|last| {
            let (first, count) = match (last.to, to) {
                (Mapped::Read(first), Mapped::Read(_)) | (Mapped::Write(first), Mapped::Write(_)) => {
                    (first, last.count)
                }
                _ => return false,
            };
            last.strip == strip && (last.first + count) as usize == at && first.0 + count == block.0
        });
        match joined {
            Some(last) => last.count += 1,
            None => {
                list.push(Mapping { strip, first: at as u32, count: 1, to });
                self.changes += u64::from(beside);
            }
        }
        let change = if beside { self.changes } else { 0 };
        self.set(strip, at, Entry { block: Some(block), writable: to_write, change });
    }

    /// Unmaps all blocks of a strip, beside the pass or before it.
    fn clear(&mut self, strip: u32, beside: bool, plan: &mut StripPlan) {
        let entries = &self.strips[strip as usize].entries;
        let Some(first) = entries.iter().position(|entry| entry.block.is_some()) else { return };
        let end = entries.iter().rposition(|entry| entry.block.is_some()).map_or(first, |last| last + 1);
        let after = entries.iter().map(|entry| entry.change).max().unwrap_or(0);
        let mapping = Mapping { strip, first: first as u32, count: (end - first) as u32, to: Mapped::Nothing };
        let change = if beside {
            plan.beside.push(mapping);
            self.changes += 1;
            self.changes
        } else {
            plan.after = plan.after.max(after);
            plan.now.push(mapping);
            0
        };
        for at in first..end {
            self.set(strip, at, Entry { change, ..Entry::NOTHING });
        }
    }

    /// Empties strips without an owner while more than 8 tenths of the room is used, once 9 tenths are, beginning with
    /// the strip that was used longest ago.
    fn reclaim(&mut self, plan: &mut StripPlan) {
        let is_short = |mapper: &Self, of: usize| {
            mapper.mappings * 10 > mapper.config.mappings_max * of || mapper.mapped * 10 > mapper.config.mapped_max * of
        };
        if !is_short(self, 9) {
            return;
        }
        while is_short(self, 8) {
            let unused = self.strips.iter().enumerate().filter(|(_, strip)| strip.owner.is_none() && strip.mapped > 0);
            let Some((strip, _)) = unused.min_by_key(|(_, strip)| strip.used) else { return };
            self.clear(strip as u32, self.config.hiding.reclaim_beside, plan);
        }
    }

    fn set(&mut self, strip: u32, at: usize, entry: Entry) {
        let strip = &mut self.strips[strip as usize];
        let before = strip.borders(at, self.config.blocks);
        if strip.entries.len() <= at {
            strip.entries.resize(at + 1, Entry::NOTHING);
        }
        let was = std::mem::replace(&mut strip.entries[at], entry).block.is_some();
        let after = strip.borders(at, self.config.blocks);
        self.mappings = self.mappings + after - before;
        let (more, fewer) = (usize::from(entry.block.is_some()), usize::from(was));
        strip.mapped = strip.mapped + more - fewer;
        self.mapped = self.mapped + more - fewer;
    }

    /// Checks that the mapper's counts are true, and that every strip with an owner is known as the owner's.
    ///
    /// # Errors
    /// Fails with a description of the first thing that is wrong.
    pub fn check(&self) -> Result<(), String> {
        let mut mappings = 0;
        for (number, strip) in self.strips.iter().enumerate() {
            let borders = (1..self.config.blocks).filter(|&at| !strip.entry(at - 1).joins(&strip.entry(at)));
            mappings += 1 + borders.count();
            let mapped = strip.entries.iter().filter(|entry| entry.block.is_some()).count();
            if mapped != strip.mapped {
                return Err(format!("strip {number} has {mapped} blocks, not {}", strip.mapped));
            }
            if strip.owner.is_some_and(|id| self.owned.get(&id) != Some(&(number as u32))) {
                return Err(format!("the owner of strip {number} does not know it"));
            }
        }
        let owned = self.strips.iter().filter(|strip| strip.owner.is_some()).count();
        let mapped: usize = self.strips.iter().map(|strip| strip.mapped).sum();
        match (mappings == self.mappings, mapped == self.mapped, owned == self.owned.len()) {
            (true, true, true) => Ok(()),
            _ => Err(format!(
                "{mappings} mappings of {mapped} blocks for {owned} owners, not {}, {}, {}",
                self.mappings,
                self.mapped,
                self.owned.len()
            )),
        }
    }
}

#[cfg(test)]
mod tests;

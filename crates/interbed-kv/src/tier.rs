//! The index of one tier below memory: which contents the tier holds, where they lie, and what is forgotten to make
//! room. This is a planner: it moves no byte.
//!
//! In this module, a *content* is whatever one [`BlockKey`] names, be it a trunk block or a part of a tail block, and a
//! *block* is the room that one content takes.
//!
//! A tier is a log. Contents are written in *records* of a few blocks, one behind the other, into *segments*. A segment
//! is emptied as a whole, the oldest first, after the contents of it that are still wanted, up to half of the segment,
//! have been written again at the log's head. A disk therefore sees long writes only, and the index alone says what is
//! there. A tier in memory has segments of one block, and writes nothing again: a segment whose block is wanted is
//! passed over once instead.
//!
//! | state of a segment | leaves it by |
//! |---|---|
//! | free | the log's head reaches it → open; an earlier process wrote it → full; no room to make it → withheld |
//! | open | it has no room for the next record, a write to it failed, or it is closed to be emptied → full |
//! | full | it is the oldest, and room is needed → leaving, or full as the youngest if its one block is wanted |
//! | full, never written | there is no room to make it → withheld |
//! | leaving | what was wanted has been written elsewhere → emptied |
//! | emptied | reads that began before have ended → free |
//! | withheld | there may be room for it again → free |

mod gate;
#[cfg(test)]
mod tests;
mod write_budget;

use std::collections::{HashMap, VecDeque};

use crate::key::BlockKey;
pub use gate::Gate;
use gate::Ghosts;
pub use write_budget::WriteBudget;

/// The size and shape of a tier.
#[derive(Debug, Clone, PartialEq)]
pub struct KvTierConfig {
    /// The number of segments in all, which is at least three, unless each segment holds one block.
    pub num_segments: u32,
    /// The number of bytes in a segment, which is emptied as a whole.
    pub segment_bytes: u64,
    /// The number of bytes at the beginning of a segment that hold no record.
    pub segment_header: u64,
    /// The number of bytes in a record, by the number of its blocks: entry 0 is for a record without blocks, the last
    /// entry for the largest record.
    pub record_bytes: Vec<u64>,
    /// The number of segments that ordinary records leave free, so that contents that are written again always find
    /// room.
    pub spare_segments: u32,
    /// Decides which contents return often enough to be written at all.
    pub gate: Gate,
}

impl KvTierConfig {
    /// Returns the configuration of a tier in memory for `num_blocks` blocks, in which each block is a segment and can
    /// be replaced alone. The tier counts 1 byte for each block.
    pub fn of_blocks(num_blocks: u32, gate: Gate) -> Self {
        let record_bytes = vec![0, 1];
        Self { num_segments: num_blocks, segment_bytes: 1, segment_header: 0, record_bytes, spare_segments: 0, gate }
    }

    /// Returns the most blocks that a record holds.
    pub fn blocks_per_record(&self) -> usize {
        self.record_bytes.len().saturating_sub(1)
    }

    /// Returns how many blocks a segment holds if all its records are full.
    pub fn blocks_per_segment(&self) -> usize {
        let (room, most) = (self.segment_bytes.saturating_sub(self.segment_header), self.blocks_per_record());
        let full = self.record_bytes.last().map_or(0, |&bytes| room / bytes.max(1));
        full as usize * most
    }

    /// Returns whether each segment holds one block.
    fn is_of_blocks(&self) -> bool {
        self.blocks_per_segment() == 1
    }
}

/// The place of a record in the tier. A record is a run of a few blocks that are written together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordPlace {
    /// The number of the segment that the record lies in.
    pub segment: u32,
    /// The number that the segment got when the tier began to write it. A segment that is emptied and written again
    /// gets a higher number.
    pub generation: u64,
    /// The number of bytes from the segment's beginning to the record's.
    pub offset: u64,
    /// The number of blocks in the record.
    pub count: u16,
}

/// The place of a content in the tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TierPlace {
    /// The record that holds the content.
    pub record: RecordPlace,
    /// The number of the content among the blocks of the record, from 0 on.
    pub index: u16,
}

/// A segment that is to be emptied, and what becomes of its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reclaim {
    /// The number of the segment.
    pub segment: u32,
    /// The contents that the caller must write again before [`Tier::reclaimed`], and where they lie now.
    pub carried: Vec<(BlockKey, TierPlace)>,
    /// The contents that the tier forgets, each with its class. A lower tier may want them.
    pub dropped: Vec<(BlockKey, u8)>,
}

/// Reason why [`Tier::records_for`] finds no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRecords {
    /// Too few segments are free. The caller may empty others.
    NotFree,
    /// The records need more segments than the caller allows.
    NotAllowed,
}

/// Counts of what has happened in a tier since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierCounts {
    /// Times that a look-up has found a content in this tier.
    pub hits: u64,
    /// Contents whose first write to this tier has succeeded.
    pub stored: u64,
    /// Contents that were written again because their segment was to be emptied.
    pub carried: u64,
    /// Contents that the gate kept from being written, because contents of their class return too seldom.
    pub skipped: u64,
    /// Contents that should have been written, but found no room at that moment.
    pub refused: u64,
    /// Contents that were forgotten when their segment was emptied.
    pub evicted: u64,
    /// Contents that could not be read back, or whose first write failed.
    pub lost: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    place: TierPlace,
    /// Whether the content can be read, because its write has ended.
    written: bool,
    /// Whether a look-up has found the content since it was last written.
    wanted: bool,
    /// Whether a look-up has ever found the content in this tier.
    returned: bool,
    /// The class of the content, as passed to [`Tier::reserve`]; 0 for a content that an earlier process wrote.
    class: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SegmentState {
    Free,
    Open,
    Full,
    Leaving,
    Emptied,
    Withheld,
}

#[derive(Debug, Clone)]
struct Segment {
    state: SegmentState,
    generation: u64,
    /// The number of bytes from the beginning of the segment to the end of its last record.
    end: u64,
    /// The keys of the contents that were written to the segment. Some of the contents may lie elsewhere by now.
    keys: Vec<BlockKey>,
    /// The number of reads and writes of the segment in flight.
    holders: u32,
    /// Whether the segment was made: something was written to it, now or by an earlier process.
    is_made: bool,
}

/// Records which contents a tier holds, and where they lie. The caller, which owns the tier's storage, asks where to
/// write and read, does so, and reports how that ended.
#[derive(Debug)]
pub struct Tier {
    config: KvTierConfig,
    entries: HashMap<BlockKey, Entry>,
    segments: Vec<Segment>,
    free: VecDeque<u32>,
    /// The full segments, the oldest first.
    full: VecDeque<u32>,
    open: Option<u32>,
    /// The segments that cannot be made now.
    withheld: Vec<u32>,
    generations: u64,
    ghosts: Ghosts,
    counts: TierCounts,
}

impl Tier {
    /// Makes an empty tier.
    pub fn new(config: KvTierConfig) -> Self {
        let state = SegmentState::Free;
        let segment = Segment { state, generation: 0, end: 0, keys: Vec::new(), holders: 0, is_made: false };
        let capacity = config.num_segments as usize * config.blocks_per_segment();
        Self {
            entries: HashMap::new(),
            segments: vec![segment; config.num_segments as usize],
            free: (0..config.num_segments).collect(),
            full: VecDeque::new(),
            open: None,
            withheld: Vec::new(),
            generations: 0,
            ghosts: Ghosts::new(capacity),
            counts: TierCounts::default(),
            config,
        }
    }

    /// Returns the size and shape of the tier.
    pub fn config(&self) -> &KvTierConfig {
        &self.config
    }

    /// Returns the counts since the start.
    pub fn counts(&self) -> TierCounts {
        self.counts
    }

    /// Returns how many contents the tier holds or is about to hold, because their write is in flight.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the tier neither holds nor is about to hold a content.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the bytes of all segments that are neither free nor withheld.
    pub fn bytes_used(&self) -> u64 {
        (self.segments.len() - self.free.len() - self.withheld.len()) as u64 * self.config.segment_bytes
    }

    /// Returns the place where the content of `key` can be read. Returns `None` if the tier does not hold it, or its
    /// write has not ended.
    pub fn find(&self, key: BlockKey) -> Option<TierPlace> {
        self.entries.get(&key).filter(|entry| entry.written).map(|entry| entry.place)
    }

    /// Notes that a look-up has found `key` in this tier, or has missed it right behind contents that it found. The
    /// gate learns from both, and found contents are carried over when their segment is emptied.
    pub fn looked_up(&mut self, key: BlockKey) {
        let Some(entry) = self.entries.get_mut(&key) else {
            self.ghosts.returned(key, &mut self.config.gate);
            return;
        };
        self.counts.hits += 1;
        entry.wanted = true;
        if !std::mem::replace(&mut entry.returned, true) {
            self.config.gate.returned(entry.class);
        }
    }

    /// Returns whether `key` is to be written to this tier: the tier does not know it yet, and the gate lets contents
    /// of `class` pass. The gate counts the content as one that was offered.
    pub fn wants(&mut self, key: BlockKey, class: u8) -> bool {
        if self.entries.contains_key(&key) {
            return false;
        }
        self.config.gate.offered(class);
        let worth = self.config.gate.is_worth(class);
        if !worth {
            self.counts.skipped += 1;
            self.ghosts.skipped(key, class);
        }
        worth
    }

    /// Returns whether the tier holds `key`, or will once a write in flight has succeeded.
    pub fn knows(&self, key: BlockKey) -> bool {
        self.entries.contains_key(&key)
    }

    /// Divides `count` blocks into records that find room now, and returns the number of blocks of each record. The
    /// records lie in at most `segments_max` segments besides those for which `is_held` returns true.
    ///
    /// # Errors
    /// Fails with [`NoRecords::NotAllowed`] if the records need more segments than that, and otherwise with
    /// [`NoRecords::NotFree`] if too few segments are free.
    pub fn records_for(
        &self,
        mut count: usize,
        mut segments_max: usize,
        is_held: impl Fn(u32) -> bool,
    ) -> Result<Vec<usize>, NoRecords> {
        let KvTierConfig { record_bytes, segment_bytes, segment_header, spare_segments, .. } = &self.config;
        let (free, mut opened) = (self.free.len().saturating_sub(*spare_segments as usize), 0);
        // Room in the segment that is written to, and whether it still counts against the maximum.
        let mut segment = self.open.map(|open| (segment_bytes - self.segments[open as usize].end, !is_held(open)));
        let mut records = Vec::new();
        let mut allow = || {
            segments_max = segments_max.checked_sub(1).ok_or(NoRecords::NotAllowed)?;
            Ok(())
        };
        while count > 0 {
            let most = count.min(self.config.blocks_per_record());
            let fits = segment.and_then(|(room, _)| (1..=most).rev().find(|&blocks| record_bytes[blocks] <= room));
            let (Some(blocks), Some((room, counts))) = (fits, &mut segment) else {
                allow()?;
                opened += 1;
                segment = Some((segment_bytes - segment_header, false));
                continue;
            };
            if std::mem::take(counts) {
                allow()?;
            }
            *room -= record_bytes[blocks];
            count -= blocks;
            records.push(blocks);
        }
        if opened > free { Err(NoRecords::NotFree) } else { Ok(records) }
    }

    /// Returns whether `segment` was chosen to be emptied, and its carried contents are still to be written.
    pub fn is_leaving(&self, segment: u32) -> bool {
        self.segments[segment as usize].state == SegmentState::Leaving
    }

    /// Returns the number of free segments.
    pub fn num_free_segments(&self) -> usize {
        self.free.len()
    }

    /// Reserves room for a record of `contents`, each with its class. There are at most
    /// [`blocks_per_record`](KvTierConfig::blocks_per_record) contents, none twice, except
    /// [nameless](BlockKey::NAMELESS) ones, which nobody will find. If the tier knows one of them already, the record
    /// carries contents over from a segment that is emptied, and may use [spare
    /// segments](KvTierConfig::spare_segments). The segment of the record is held until [`written`](Self::written).
    /// Returns `None` if there is no room now, which [`reclaim`](Self::reclaim) may change.
    pub fn reserve(&mut self, contents: &[(BlockKey, u8)]) -> Option<RecordPlace> {
        debug_assert!(!contents.is_empty() && contents.len() <= self.config.blocks_per_record());
        let carrying = contents.iter().any(|(key, _)| self.entries.contains_key(key));
        let bytes = *self.config.record_bytes.get(contents.len())?;
        if let Some(open) = self.open
            && self.segments[open as usize].end + bytes > self.config.segment_bytes
        {
            self.close();
        }
        let Some(number) = self.open.or_else(|| self.open_next(carrying)) else {
            self.counts.refused += contents.len() as u64;
            return None;
        };
        let segment = &mut self.segments[number as usize];
        let (generation, offset, count) = (segment.generation, segment.end, contents.len() as u16);
        let record = RecordPlace { segment: number, generation, offset, count };
        segment.end += bytes;
        segment.holders += 1;
        for (index, &(key, class)) in (0..).zip(contents).filter(|(_, (key, _))| *key != BlockKey::NAMELESS) {
            let new =
                Entry { place: TierPlace { record, index }, written: false, wanted: false, returned: false, class };
            self.entries.entry(key).or_insert(new);
        }
        Some(record)
    }

    fn open_next(&mut self, carrying: bool) -> Option<u32> {
        let spare = if carrying { 0 } else { self.config.spare_segments };
        if self.free.len() <= spare as usize {
            return None;
        }
        let number = self.free.pop_front()?;
        self.generations += 1;
        let segment = &mut self.segments[number as usize];
        (segment.state, segment.generation, segment.end) =
            (SegmentState::Open, self.generations, self.config.segment_header);
        self.open = Some(number);
        Some(number)
    }

    /// Notes that the write of `record`, with the contents of `keys` in order, has ended, and whether it went `well`.
    /// After a failure nothing more is written to the record's segment, since the next start would not find records
    /// behind a gap.
    pub fn written(&mut self, record: RecordPlace, keys: &[BlockKey], well: bool) {
        for (index, key) in (0..).zip(keys) {
            let Some(entry) = self.entries.get_mut(key) else { continue };
            let place = TierPlace { record, index };
            match (well, entry.written) {
                (true, before) => {
                    (entry.place, entry.written, entry.wanted) = (place, true, false);
                    self.segments[record.segment as usize].keys.push(*key);
                    *(if before { &mut self.counts.carried } else { &mut self.counts.stored }) += 1;
                }
                // The content stays where it was.
                (false, true) => {}
                (false, false) if entry.place == place => {
                    self.entries.remove(key);
                    self.counts.lost += 1;
                }
                (false, false) => {}
            }
        }
        self.segments[record.segment as usize].is_made |= well;
        if !well && self.open == Some(record.segment) {
            self.close();
        }
        self.release(record.segment);
    }

    /// Closes the open segment if no read or write of it is in flight, so that it can be emptied. Returns whether a
    /// segment was closed.
    pub fn close_unread(&mut self) -> bool {
        let is_unread = self.open.is_some_and(|open| self.segments[open as usize].holders == 0);
        if is_unread {
            self.close();
        }
        is_unread
    }

    /// Closes the open segment, if there is one, so that nothing more is written to it.
    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        self.segments[open as usize].state = SegmentState::Full;
        self.full.push_back(open);
    }

    /// Notes that a read of `segment` begins. The segment is not used for other records before
    /// [`release`](Self::release).
    pub fn hold(&mut self, segment: u32) {
        self.segments[segment as usize].holders += 1;
    }

    /// Notes that a read of `segment` has ended which [`hold`](Self::hold) has noted. The end of a write is noted by
    /// [`written`](Self::written) alone.
    pub fn release(&mut self, segment: u32) {
        let holders = &mut self.segments[segment as usize].holders;
        *holders = holders.checked_sub(1).expect("what is released was held");
        self.free_if_unread(segment);
    }

    fn free_if_unread(&mut self, segment: u32) {
        let room = &mut self.segments[segment as usize];
        if room.state == SegmentState::Emptied && room.holders == 0 {
            (room.state, room.end) = (SegmentState::Free, 0);
            self.free.push_back(segment);
        }
    }

    /// Forgets the content of `key`, because the bytes at `place` are not those that were written there. Does nothing
    /// if the content lies elsewhere by now.
    pub fn lose(&mut self, key: BlockKey, place: TierPlace) {
        if self.entries.get(&key).is_some_and(|entry| entry.written && entry.place == place) {
            self.entries.remove(&key);
            self.counts.lost += 1;
        }
    }

    /// Chooses a segment to be emptied if no more than the [spare segments](KvTierConfig::spare_segments) are free, in
    /// the way of [`reclaim_for`](Self::reclaim_for).
    pub fn reclaim(&mut self) -> Option<Reclaim> {
        self.reclaim_for(self.config.spare_segments as usize + 1)
    }

    /// Chooses a segment to be emptied if fewer than `wanted` segments are free: the oldest full one of which no read
    /// or write is in flight. Contents that a look-up has found since they were written are carried over, up to half of
    /// the segment. The caller writes these contents again, then calls [`reclaimed`](Self::reclaimed). If nothing is
    /// carried, the tier empties the segment at once, and the caller does not call `reclaimed`. Segments of one block
    /// carry nothing: one whose content was found is passed over once instead. Returns `None` if enough segments are
    /// free, if another segment is being emptied, or if a read or write of every full segment is in flight.
    pub fn reclaim_for(&mut self, wanted: usize) -> Option<Reclaim> {
        let leaving =
            self.segments.iter().any(|segment| matches!(segment.state, SegmentState::Leaving | SegmentState::Emptied));
        if self.free.len() >= wanted || leaving {
            return None;
        }
        let turns = self.full.len();
        for turn in 0..=turns {
            let position = self.full.iter().position(|&number| self.segments[number as usize].holders == 0)?;
            let number = self.full.remove(position)?;
            let mut carried = self.take_wanted(number);
            // A tier of single blocks writes nothing again. A wanted content is passed over once instead.
            if self.config.is_of_blocks() && !carried.is_empty() && turn < turns {
                self.full.push_back(number);
                continue;
            }
            carried.truncate(self.config.blocks_per_segment() / 2);
            let dropped = self.dropped(number, &carried);
            self.segments[number as usize].state = SegmentState::Leaving;
            if carried.is_empty() {
                self.reclaimed(number);
            }
            return Some(Reclaim { segment: number, carried, dropped });
        }
        None
    }

    /// Lists the contents that lie in `segment`, except those of `carried`, each with its class.
    fn dropped(&self, segment: u32, carried: &[(BlockKey, TierPlace)]) -> Vec<(BlockKey, u8)> {
        let keys = self.segments[segment as usize].keys.iter();
        let there = keys.filter_map(|&key| {
            let entry = self.entries.get(&key).filter(|entry| entry.place.record.segment == segment)?;
            (!carried.iter().any(|(other, _)| *other == key)).then_some((key, entry.class))
        });
        there.collect()
    }

    /// Lists the contents in `segment` that a look-up has found since they were written, and marks them as not found
    /// from now on.
    fn take_wanted(&mut self, segment: u32) -> Vec<(BlockKey, TierPlace)> {
        let Self { segments, entries, .. } = self;
        let keys = segments[segment as usize].keys.iter();
        let wanted = keys.filter_map(|&key| {
            let entry = entries.get_mut(&key).filter(|entry| entry.place.record.segment == segment)?;
            std::mem::take(&mut entry.wanted).then_some((key, entry.place))
        });
        wanted.collect()
    }

    /// Empties a segment that was [chosen](Self::reclaim_for) and whose carried contents have been written. Contents
    /// that still lie in the segment are forgotten. The segment becomes free once no read of it is in flight.
    ///
    /// # Panics
    /// Panics if the segment was not chosen.
    pub fn reclaimed(&mut self, segment: u32) {
        let room = &mut self.segments[segment as usize];
        assert!(room.state == SegmentState::Leaving, "segment {segment} is emptied, but was not chosen for that");
        for key in std::mem::take(&mut room.keys) {
            if self.entries.get(&key).is_some_and(|entry| entry.place.record.segment == segment) {
                self.entries.remove(&key);
                self.counts.evicted += 1;
            }
        }
        self.segments[segment as usize].state = SegmentState::Emptied;
        self.free_if_unread(segment);
    }

    /// Takes in the contents that an earlier process has left in `segment`: its `records` in order, each with the keys
    /// of its blocks by their numbers in the record, and the byte offset `end` at which the last record ends. The
    /// caller restores segments in the order of generations, before any other call.
    pub fn restore(
        &mut self,
        segment: u32,
        generation: u64,
        records: &[(RecordPlace, Vec<(u16, BlockKey)>)],
        end: u64,
    ) {
        self.free.retain(|&free| free != segment);
        let room = &mut self.segments[segment as usize];
        (room.state, room.generation, room.end, room.is_made) = (SegmentState::Full, generation, end, true);
        for (record, keys) in records {
            for &(index, key) in keys {
                let place = TierPlace { record: *record, index };
                let entry = Entry { place, written: true, wanted: false, returned: false, class: 0 };
                self.entries.insert(key, entry);
                room.keys.push(key);
            }
        }
        self.full.push_back(segment);
        self.generations = self.generations.max(generation);
    }

    /// Marks a segment whose content is of no use as the first to be emptied. An earlier process has written it with
    /// number `generation`. The segment stays until its room is needed.
    pub fn set_aside(&mut self, segment: u32, generation: u64) {
        self.free.retain(|&free| free != segment);
        let room = &mut self.segments[segment as usize];
        (room.state, room.generation, room.is_made) = (SegmentState::Full, generation, true);
        self.full.push_front(segment);
        self.generations = self.generations.max(generation);
    }

    /// Withholds the segments to which nothing was ever written, because the storage has no room for them now. The tier
    /// works with the others alone, which are therefore emptied sooner.
    pub fn withhold_new(&mut self) {
        let Self { segments, free, full, withheld, .. } = self;
        for list in [free, full] {
            list.retain(|&number| {
                let segment = &mut segments[number as usize];
                let is_kept = segment.is_made || segment.holders > 0;
                if !is_kept {
                    (segment.state, segment.end) = (SegmentState::Withheld, 0);
                    withheld.push(number);
                }
                is_kept
            });
        }
    }

    /// Offers the segments that were [withheld](Self::withhold_new) again.
    pub fn offer_new(&mut self) {
        for number in self.withheld.drain(..) {
            self.segments[number as usize].state = SegmentState::Free;
            self.free.push_back(number);
        }
    }

    /// Returns whether all segments are [withheld](Self::withhold_new).
    pub fn is_without_segments(&self) -> bool {
        self.withheld.len() == self.segments.len()
    }

    /// Forgets the readable contents for which `is_theirs` returns true. Returns how many it forgot.
    pub fn forget(&mut self, mut is_theirs: impl FnMut(BlockKey, TierPlace) -> bool) -> usize {
        let before = self.entries.len();
        self.entries.retain(|&key, entry| !entry.written || !is_theirs(key, entry.place));
        before - self.entries.len()
    }

    /// Lists all contents that can be read, in no order.
    pub fn contents(&self) -> impl Iterator<Item = (BlockKey, TierPlace)> {
        self.entries.iter().filter(|(_, entry)| entry.written).map(|(&key, entry)| (key, entry.place))
    }

    /// Checks what must be true after every call, for tests.
    ///
    /// # Panics
    /// Panics if any of it is false.
    pub fn assert_sound(&self) {
        let state = |number: &u32| self.segments[*number as usize].state;
        assert!(self.free.iter().all(|number| state(number) == SegmentState::Free));
        assert!(self.full.iter().all(|number| state(number) == SegmentState::Full));
        assert!(self.open.iter().all(|number| state(number) == SegmentState::Open));
        let on_the_way = |segment: &&Segment| matches!(segment.state, SegmentState::Leaving | SegmentState::Emptied);
        let leaving = self.segments.iter().filter(on_the_way).count();
        assert!(self.withheld.iter().all(|number| state(number) == SegmentState::Withheld));
        let listed = self.free.len() + self.full.len() + self.withheld.len();
        let known = listed + usize::from(self.open.is_some()) + leaving;
        assert_eq!(known, self.segments.len(), "a segment is in no list, or in two");
        for (key, entry) in &self.entries {
            let RecordPlace { segment, generation, offset, count } = entry.place.record;
            let room = &self.segments[segment as usize];
            let lost = matches!(room.state, SegmentState::Free | SegmentState::Emptied | SegmentState::Withheld);
            assert!(!lost, "{key:?} lies in a free segment");
            assert!(room.generation == generation && entry.place.index < count, "{key:?} lies nowhere");
            assert!(offset + self.config.record_bytes[usize::from(count)] <= room.end, "{key:?} lies beyond the end");
            assert!(!entry.written || room.keys.contains(key), "{key:?} would never be forgotten");
            assert!(entry.written || room.holders > 0, "{key:?} is being written, but nobody writes");
        }
        assert!(self.segments.iter().all(|segment| segment.end <= self.config.segment_bytes));
    }
}

//! The resume points of models whose layers keep tails.
//!
//! A *resume point* is a findable content for which memory has the tail blocks that a sequence needs to go on behind
//! it. A point is *passing* as long as nothing says that hits will end there: it was made because a sequence passed by.
//! A *lasting* point is where a hit is likely to end: behind a prompt, behind an answer, where two sequences branched,
//! where a hit has ended before, and at every so many tokens. A lasting point is *wanted* if tiers below memory should
//! keep its tails, too.
//!
//! A content *leads* to a point if it is one, or if a content that continues it leads to one. A content that leads to
//! no point is of no use to any hit.

use std::collections::{HashSet, VecDeque};

use crate::contents::ContentId;

/// The reason why a resume point is a lasting one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lasts {
    /// There is none: nothing says yet that the point is of use.
    No,
    /// The point is at some distance from others. The point is not wanted.
    AtDistance,
    /// The point is behind an answer, where the next turn of a conversation goes on. The point is wanted by tiers below
    /// memory that keep answers.
    OfAnswer,
    /// A hit has ended at the point, or is likely to end there. The point is wanted by all tiers below memory.
    Wanted,
}

/// All resume points, and which contents lead to them.
#[derive(Debug)]
pub(crate) struct ResumePoints {
    entries: Vec<Entry>, // [content]
    /// The passing points, the oldest first. Some entries are of contents that no longer are passing points.
    passing: VecDeque<ContentId>,
    /// The lasting points in the order in which they are given up. Some entries are of contents that no longer are
    /// lasting points.
    lasting: VecDeque<ContentId>,
    num_points: usize,
    /// The points that have become wanted since the list was last taken; `None` unless the list is kept. A point of an
    /// answer is listed again when it becomes wanted for another reason.
    new_wanted: Option<Vec<ContentId>>,
}

/// What is known of a content, in four bytes: five flags, and the number of its ways. Each findable content that
/// continues it and leads to a point is one way, and being a point is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry(u32);

impl Entry {
    const POINT: u32 = 1 << 31;
    const LASTING: u32 = 1 << 30;
    /// Whether a hit has ended at the point since it was last considered.
    const HIT: u32 = 1 << 29;
    /// Whether the point is wanted by all tiers below memory.
    const WANTED: u32 = 1 << 28;
    /// Whether the point is wanted by tiers that keep answers.
    const OF_ANSWER: u32 = 1 << 27;
    const WAYS: u32 = Self::OF_ANSWER - 1;

    fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }
}

impl ResumePoints {
    pub(crate) fn new(num_contents: usize) -> Self {
        Self {
            entries: vec![Entry(0); num_contents],
            passing: VecDeque::new(),
            lasting: VecDeque::new(),
            num_points: 0,
            new_wanted: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.num_points
    }

    pub(crate) fn contains(&self, content: ContentId) -> bool {
        self.entry(content).has(Entry::POINT)
    }

    /// Returns whether `content` leads to a point.
    pub(crate) fn leads(&self, content: ContentId) -> bool {
        self.ways(content) > 0
    }

    /// Returns by how many ways `content` leads to points: one for each content that continues it and leads to a point,
    /// and one if it is a point itself.
    pub(crate) fn ways(&self, content: ContentId) -> u32 {
        self.entry(content).0 & Entry::WAYS
    }

    /// Makes `content`, which is no point, a passing point. `parent` returns the content that a content continues, if
    /// there is one.
    pub(crate) fn add(&mut self, content: ContentId, parent: impl Fn(ContentId) -> Option<ContentId>) {
        self.entries[content.0 as usize].0 |= Entry::POINT;
        self.num_points += 1;
        queue(&mut self.passing, content, &self.entries, |entry| entry.has(Entry::POINT) && !entry.has(Entry::LASTING));
        let mut last = Some(content);
        while let Some(content) = last {
            self.entries[content.0 as usize].0 += 1;
            last = if self.ways(content) == 1 { parent(content) } else { None };
        }
    }

    /// Makes a point last for `reason`. With [`Lasts::No`], nothing changes.
    pub(crate) fn make_lasting(&mut self, content: ContentId, reason: Lasts) {
        debug_assert!(self.contains(content));
        if reason == Lasts::No {
            return;
        }
        if !self.entry(content).has(Entry::LASTING) {
            self.entries[content.0 as usize].0 |= Entry::LASTING;
            queue(&mut self.lasting, content, &self.entries, |entry| entry.has(Entry::LASTING));
        }
        let flag = match reason {
            Lasts::Wanted => Entry::WANTED,
            Lasts::OfAnswer if !self.is_wanted(content) => Entry::OF_ANSWER,
            _ => return,
        };
        if !self.entry(content).has(flag) {
            self.entries[content.0 as usize].0 |= flag;
            self.new_wanted.iter_mut().for_each(|wanted| wanted.push(content));
        }
    }

    /// Returns whether `content` is a wanted point, be it only because of an answer.
    pub(crate) fn is_wanted(&self, content: ContentId) -> bool {
        self.entry(content).has(Entry::WANTED) || self.is_of_answer(content)
    }

    /// Returns whether `content` is a point that is wanted only because an answer ended there.
    pub(crate) fn is_of_answer(&self, content: ContentId) -> bool {
        self.entry(content).has(Entry::OF_ANSWER) && !self.entry(content).has(Entry::WANTED)
    }

    /// Begins to keep the list that [`take_wanted`](Self::take_wanted) returns. The present wanted points come first.
    pub(crate) fn list_wanted(&mut self) {
        let is_wanted = |&content: &u32| self.is_wanted(ContentId(content));
        self.new_wanted = Some((0..self.entries.len() as u32).filter(is_wanted).map(ContentId).collect());
    }

    /// Returns the points that have become wanted since the last call. Some may have ended meanwhile. Returns none
    /// unless the list [is kept](Self::list_wanted).
    pub(crate) fn take_wanted(&mut self) -> Vec<ContentId> {
        self.new_wanted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Notes that a hit has ended at the point `content`.
    pub(crate) fn hit(&mut self, content: ContentId) {
        self.entries[content.0 as usize].0 |= Entry::HIT;
        self.make_lasting(content, Lasts::Wanted);
    }

    /// Ends the point `content`. Returns the contents that led to the point and now lead to no other, each before the
    /// content that it continues. `parent` returns the content that a content continues, if there is one.
    pub(crate) fn remove(
        &mut self,
        content: ContentId,
        parent: impl Fn(ContentId) -> Option<ContentId>,
    ) -> Vec<ContentId> {
        self.entries[content.0 as usize].0 &= Entry::WAYS;
        self.num_points -= 1;
        let mut useless = Vec::new();
        let mut last = Some(content);
        while let Some(content) = last {
            self.entries[content.0 as usize].0 -= 1;
            last = if self.ways(content) == 0 { parent(content) } else { None };
            if !self.leads(content) {
                useless.push(content);
            }
        }
        useless
    }

    /// Returns the passing point that is to be given up next, and removes it from the queue.
    pub(crate) fn oldest_passing(&mut self) -> Option<ContentId> {
        while let Some(content) = self.passing.pop_front() {
            match self.entry(content) {
                entry if !entry.has(Entry::POINT) || entry.has(Entry::LASTING) => {}
                _ => return Some(content),
            }
        }
        None
    }

    /// Returns the lasting point that is to be given up next, and removes it from the queue. This is the oldest one at
    /// which no hit has ended since it was last passed over.
    pub(crate) fn oldest_lasting(&mut self) -> Option<ContentId> {
        while let Some(content) = self.lasting.pop_front() {
            match self.entry(content) {
                entry if !entry.has(Entry::LASTING) => {}
                entry if entry.has(Entry::HIT) => {
                    self.entries[content.0 as usize].0 &= !Entry::HIT;
                    self.lasting.push_back(content);
                }
                _ => return Some(content),
            }
        }
        None
    }

    /// Ends all points.
    pub(crate) fn clear(&mut self) {
        let new_wanted = self.new_wanted.as_ref().map(|_| Vec::new());
        *self = Self { new_wanted, ..Self::new(self.entries.len()) };
    }

    fn entry(&self, content: ContentId) -> Entry {
        self.entries[content.0 as usize]
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + (self.passing.capacity() + self.lasting.capacity()) * size_of::<ContentId>()
    }
}

/// Appends `content` to `queue`. If the queue is then more than twice as long as there are contents, it keeps only the
/// first entry of each content whose entry `belongs` to the queue.
fn queue(queue: &mut VecDeque<ContentId>, content: ContentId, entries: &[Entry], belongs: fn(Entry) -> bool) {
    queue.push_back(content);
    if queue.len() > 2 * entries.len() {
        let mut seen = HashSet::new();
        queue.retain(|&content| belongs(entries[content.0 as usize]) && seen.insert(content));
    }
}

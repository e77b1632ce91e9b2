//! The contents behind which a sequence can go on, in models of which some layers need the tail of a sequence.
//!
//! A *resume point* is a findable content for which the blocks of all groups are kept that a sequence needs to go on
//! behind it. A point is *passing* as long as nothing says that it is of use: it was made because a sequence passed by.
//! A *lasting* point is where a hit is likely to end: behind a prompt, behind an answer, where two sequences branched,
//! where a hit has ended before, and at every so many tokens.
//!
//! A content *leads* to a point if it is one, or if a content that continues it leads to one. A content that leads to
//! no point is of no use to any hit.

use std::collections::{HashSet, VecDeque};

use crate::contents::ContentId;

/// The reason why a resume point lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lasts {
    /// Nothing says yet that the point is of use.
    No,
    /// The point is at some distance from others. Memory keeps it.
    AtDistance,
    /// The point is behind an answer, where the next turn of a conversation goes on. Tiers below memory that keep
    /// answers keep it, too.
    OfAnswer,
    /// A hit has ended there, or is likely to end there. Tiers below memory keep it, too.
    Wanted,
}

/// All resume points, and which contents lead to them.
#[derive(Debug)]
pub(crate) struct ResumePoints {
    entries: Vec<Entry>, // [content]
    /// The passing points, the oldest first, with some that no longer are.
    passing: VecDeque<ContentId>,
    /// The lasting points in the order in which they are given up, with some that no longer are.
    lasting: VecDeque<ContentId>,
    num_points: usize,
    /// The points that tiers below memory keep since they were last taken, if anybody takes them. Some are listed first
    /// as points of answers, and once more when others want them.
    new_wanted: Option<Vec<ContentId>>,
}

/// What is known of a content, in four bytes: five flags, and by how many ways it leads to points, itself included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry(u32);

impl Entry {
    const POINT: u32 = 1 << 31;
    const LASTING: u32 = 1 << 30;
    /// Whether a hit has ended at the point since it was last considered.
    const HIT: u32 = 1 << 29;
    /// Whether tiers below memory keep the point.
    const WANTED: u32 = 1 << 28;
    /// Whether tiers below memory keep the point if they keep answers.
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

    /// Returns by how many ways `content` leads to points: through each content that continues it, and by itself.
    pub(crate) fn ways(&self, content: ContentId) -> u32 {
        self.entry(content).0 & Entry::WAYS
    }

    /// Makes `content` a passing point, which it is not yet. `parent` gives the content that another one continues.
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

    /// Makes a point last for this reason.
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

    /// Returns whether `content` is a point that tiers below memory keep, some of them perhaps.
    pub(crate) fn is_wanted(&self, content: ContentId) -> bool {
        self.entry(content).has(Entry::WANTED) || self.is_of_answer(content)
    }

    /// Returns whether `content` is a point that only tiers below memory keep that keep answers.
    pub(crate) fn is_of_answer(&self, content: ContentId) -> bool {
        self.entry(content).has(Entry::OF_ANSWER) && !self.entry(content).has(Entry::WANTED)
    }

    /// Begins to list the points that tiers below memory keep, to be [taken](Self::take_wanted), the present ones
    /// first.
    pub(crate) fn list_wanted(&mut self) {
        let is_wanted = |&content: &u32| self.is_wanted(ContentId(content));
        self.new_wanted = Some((0..self.entries.len() as u32).filter(is_wanted).map(ContentId).collect());
    }

    /// Takes the points that tiers below memory keep since the last call, as far as they are
    /// [listed](Self::list_wanted). Some may have ended meanwhile.
    pub(crate) fn take_wanted(&mut self) -> Vec<ContentId> {
        self.new_wanted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Notes that a hit has ended at a point.
    pub(crate) fn hit(&mut self, content: ContentId) {
        self.entries[content.0 as usize].0 |= Entry::HIT;
        self.make_lasting(content, Lasts::Wanted);
    }

    /// Ends a point. Returns the contents that led to it and lead to no other, each before the content that it
    /// continues. `parent` gives the content that another one continues.
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

    /// Returns the passing point that is given up next.
    pub(crate) fn oldest_passing(&mut self) -> Option<ContentId> {
        while let Some(content) = self.passing.pop_front() {
            match self.entry(content) {
                entry if !entry.has(Entry::POINT) || entry.has(Entry::LASTING) => {}
                _ => return Some(content),
            }
        }
        None
    }

    /// Returns the lasting point that is given up next: the oldest at which no hit has ended since it was considered.
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

/// Appends `content` to a queue. If the queue is much longer than there are contents, all but the first entry of each
/// content that `belongs` to it are removed.
fn queue(queue: &mut VecDeque<ContentId>, content: ContentId, entries: &[Entry], belongs: fn(Entry) -> bool) {
    queue.push_back(content);
    if queue.len() > 2 * entries.len() {
        let mut seen = HashSet::new();
        queue.retain(|&content| belongs(entries[content.0 as usize]) && seen.insert(content));
    }
}

//! When contents were used, whether they are still there or not.

use super::{
    super::steps::step,
    past::Past,
    rates::Rates,
    table::{Entry, Table},
};

/// Follows a sample of all contents, by hash, over a time of many pools, and remembers what was evicted of the others
/// lately. What it sees of the sample goes to [`Rates`]: content that gives way has been seen without a use until then,
/// and says nothing of later times.
#[derive(Debug)]
pub(super) struct History {
    sample: Table,
    evicted: Table,
    /// Hashes with none of these bits are in the sample.
    skipped: u32,
    /// The sample is gone through a few sets at a time. Those below `next` have had their times counted until
    /// `counting`, when that began, the others until `counted`, when it began the last time.
    next: usize,
    counting: u32,
    counted: u32,
    num_blocks: u32,
}

impl History {
    pub(super) fn new(num_blocks: usize) -> Self {
        let (sample, evicted) = (Table::new(entries(num_blocks)), Table::new(2 * num_blocks));
        let mut history = Self { sample, evicted, skipped: 0, next: 0, counting: 0, counted: 0, num_blocks: 0 };
        history.restart(num_blocks, 0);
        history
    }

    /// Forgets everything at `now`, and follows a pool of `num_blocks`, no more than at the start, from then on.
    pub(super) fn restart(&mut self, num_blocks: usize, now: u32) {
        let (entries, reach) = (entries(num_blocks), (8 * num_blocks).max(8192));
        self.sample.restart(entries);
        self.evicted.restart(2 * num_blocks);
        self.skipped = (reach / entries).max(1).next_power_of_two() as u32 - 1;
        (self.next, self.counting, self.counted) = (0, now, now);
        self.num_blocks = num_blocks as u32;
    }

    /// `hash` is used at `now`, and was known to be there.
    pub(super) fn found(&mut self, hash: u32, now: u32, rates: &mut Rates) {
        if self.samples(hash) {
            self.count_use(hash, now, rates);
        }
    }

    /// `hash` is used at `now`, and was not there: what is known of it from before, and for how long it was not used.
    pub(super) fn returned(&mut self, hash: u32, now: u32, rates: &mut Rates) -> Option<(Past, u32)> {
        let before = match self.samples(hash) {
            true => self.count_use(hash, now, rates),
            false => self.evicted.take(hash),
        };
        before.map(|entry| (entry.past, now.wrapping_sub(entry.used)))
    }

    /// What `hash` is known for when sequences let go of it.
    pub(super) fn let_go(&mut self, hash: u32, past: Past) {
        if self.samples(hash)
            && let Some(entry) = self.sample.get(hash)
        {
            entry.past = past;
        }
    }

    /// `hash`, last used at `used`, is evicted at `now`.
    pub(super) fn evicted(&mut self, hash: u32, used: u32, past: Past, now: u32) {
        if !self.samples(hash) {
            self.evicted.insert(hash, used, past, now);
        }
    }

    /// Sets of the sample, each of up to 8 contents.
    pub(super) fn num_sets(&self) -> usize {
        self.sample.num_sets()
    }

    /// From now on [`count_times`](Self::count_times) counts until `now`.
    pub(super) fn begin_counting(&mut self, now: u32) {
        self.counting = now;
    }

    /// Counts the times of the next set's contents until the counting began. True when it was the last set.
    pub(super) fn count_times(&mut self, now: u32, rates: &mut Rates) -> bool {
        step();
        for entry in self.sample.set(self.next) {
            // What was used since has been counted until then.
            if now.wrapping_sub(entry.used) >= now.wrapping_sub(self.counting) {
                self.count_time(entry, self.counted, self.counting, rates);
            }
        }
        self.next += 1;
        let end = self.next == self.num_sets();
        if end {
            (self.next, self.counted) = (0, self.counting);
        }
        end
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.sample.bytes() + self.evicted.bytes()
    }

    fn samples(&self, hash: u32) -> bool {
        hash & self.skipped == 0
    }

    fn count_use(&mut self, hash: u32, now: u32, rates: &mut Rates) -> Option<Entry> {
        let counted = if self.sample.place(hash) < self.next { self.counting } else { self.counted };
        if let Some(entry) = self.sample.get(hash) {
            let before = *entry;
            entry.used = now;
            self.count_time(&before, counted, now, rates);
            rates.count_use(before.past.class(self.num_blocks), now.wrapping_sub(before.used));
            return Some(before);
        }
        if let Some(oldest) = self.sample.insert(hash, now, Past::fresh(None), now) {
            self.count_time(&oldest, counted, now, rates);
        }
        None
    }

    /// Counts the time of `entry` from `counted`, or when it was used since, until `now`.
    fn count_time(&self, entry: &Entry, counted: u32, now: u32, rates: &mut Rates) {
        step();
        let age = now.wrapping_sub(entry.used);
        let since = now.wrapping_sub(counted).min(age);
        rates.count_time(entry.past.class(self.num_blocks), age - since, age);
    }
}

/// Contents that are followed for so many blocks: a small pool learns from fewer uses; it needs a larger share of them,
/// and a longer look back.
fn entries(num_blocks: usize) -> usize {
    num_blocks.max(8192)
}

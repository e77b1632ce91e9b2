//! Remembers when contents were used, including contents that are no longer in the pool.

use super::{
    super::steps::step,
    past::Past,
    rates::Rates,
    table::{Entry, Table},
};

/// Follows a sample of all contents, by hash, over many times the pool's size in uses, and remembers which of the other
/// contents were evicted lately. The idle times and uses of the sample are counted in [`Rates`]. A content that is
/// dropped from the sample counts as unused up to that time, and says nothing about later times.
#[derive(Debug)]
pub(super) struct History {
    sample: Table,
    evicted: Table,
    /// Bits that are all 0 in the hashes of the sampled contents.
    skipped: u32,
    /// Next set of the sample whose idle times are counted. Sets below `next` have been counted up to `counting`, the
    /// time when the current round began; the other sets have been counted up to `counted`, the time when the round
    /// before began.
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

    /// Forgets everything at `now`, and follows a pool of `num_blocks` blocks from then on, at most as many as at the
    /// start.
    pub(super) fn restart(&mut self, num_blocks: usize, now: u32) {
        let (entries, reach) = (entries(num_blocks), (8 * num_blocks).max(8192));
        self.sample.restart(entries);
        self.evicted.restart(2 * num_blocks);
        self.skipped = (reach / entries).max(1).next_power_of_two() as u32 - 1;
        (self.next, self.counting, self.counted) = (0, now, now);
        self.num_blocks = num_blocks as u32;
    }

    /// Notes that the content of `hash` is used at `now`, and was in the pool.
    pub(super) fn found(&mut self, hash: u32, now: u32, rates: &mut Rates) {
        if self.samples(hash) {
            self.count_use(hash, now, rates);
        }
    }

    /// Notes that the content of `hash` is used at `now`, and was not in the pool. Returns what is remembered of the
    /// content, and how many uses of blocks it had been idle.
    pub(super) fn returned(&mut self, hash: u32, now: u32, rates: &mut Rates) -> Option<(Past, u32)> {
        let before = match self.samples(hash) {
            true => self.count_use(hash, now, rates),
            false => self.evicted.take(hash),
        };
        before.map(|entry| (entry.past, now.wrapping_sub(entry.used)))
    }

    /// Notes that the last holder has released the content of `hash`, and that its past is `past` from now on.
    pub(super) fn let_go(&mut self, hash: u32, past: Past) {
        if self.samples(hash)
            && let Some(entry) = self.sample.get(hash)
        {
            entry.past = past;
        }
    }

    /// Notes that the content of `hash`, last used at `used`, is evicted at `now`.
    pub(super) fn evicted(&mut self, hash: u32, used: u32, past: Past, now: u32) {
        if !self.samples(hash) {
            self.evicted.insert(hash, used, past, now);
        }
    }

    /// Returns the number of sets of the sample, each of up to 8 contents.
    pub(super) fn num_sets(&self) -> usize {
        self.sample.num_sets()
    }

    /// Begins a round in which [`count_times`](Self::count_times) counts up to `now`.
    pub(super) fn begin_counting(&mut self, now: u32) {
        self.counting = now;
    }

    /// Counts the idle times of the next set's contents up to the start of the round. Returns true if it was the last
    /// set.
    pub(super) fn count_times(&mut self, now: u32, rates: &mut Rates) -> bool {
        step();
        for entry in self.sample.set(self.next) {
            // A content that was used since then has been counted up to that use.
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

    /// Counts the idle time of `entry` up to `now`, from `counted` or from its last use, whichever is later.
    fn count_time(&self, entry: &Entry, counted: u32, now: u32, rates: &mut Rates) {
        step();
        let age = now.wrapping_sub(entry.used);
        let since = now.wrapping_sub(counted).min(age);
        rates.count_time(entry.past.class(self.num_blocks), age - since, age);
    }
}

/// Returns the number of contents that are followed for a pool of `num_blocks` blocks. A small pool sees fewer uses, so
/// it needs a larger share of them, and must look back further.
fn entries(num_blocks: usize) -> usize {
    num_blocks.max(8192)
}

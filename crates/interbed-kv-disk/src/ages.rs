//! Remembers when records were written.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use interbed_kv::{RecordPlace, Tier};

use crate::jobs::now;

/// Number of records without readable blocks that may be remembered until they are looked for and dropped.
const STALE_MAX: usize = 1024;

/// Time between two searches for records that are too old.
pub(crate) const SWEEP: Duration = Duration::from_secs(1);

/// Times at which records were written. A record whose blocks were carried over has the time of the oldest of them.
#[derive(Debug)]
pub(crate) struct Ages {
    /// The time at which each record was written, in seconds since 1970, with the record's place.
    records: BTreeSet<(u64, RecordPlace)>,
    /// Number of records at which those without readable blocks are looked for and dropped.
    most: usize,
    /// Age in seconds above which records are not read any more; `None` for no limit.
    ttl: Option<u64>,
    /// Time of the last search for records that are too old.
    pub(crate) swept_at: Instant,
}

impl Ages {
    pub(crate) fn new(ttl: Option<u64>) -> Self {
        Self { records: BTreeSet::new(), most: 0, ttl, swept_at: Instant::now() }
    }

    /// Returns the earliest time of writing, in seconds since 1970, of records that may still be read.
    pub(crate) fn oldest(&self) -> u64 {
        self.ttl.map_or(0, |ttl| now().saturating_sub(ttl))
    }

    /// Notes that `record` was written or found. `tier` knows which records still have readable blocks.
    pub(crate) fn add(&mut self, record: RecordPlace, written_at: u64, tier: &Tier) {
        if self.records.len() >= self.most {
            let left: HashSet<_> = tier.contents().map(|(_, place)| place.record).collect();
            self.records.retain(|(_, record)| left.contains(record));
            self.most = 2 * self.records.len() + STALE_MAX;
        }
        self.records.insert((written_at, record));
    }

    /// Takes out the records that are too old to be read, from time to time.
    pub(crate) fn sweep(&mut self) -> HashSet<RecordPlace> {
        if self.ttl.is_none() || self.swept_at.elapsed() < SWEEP {
            return HashSet::new();
        }
        self.swept_at = Instant::now();
        self.take_older(self.oldest())
    }

    /// Takes out the records that were written before `oldest`, in seconds since 1970.
    fn take_older(&mut self, oldest: u64) -> HashSet<RecordPlace> {
        let first = RecordPlace { segment: 0, generation: 0, offset: 0, count: 0 };
        let left = self.records.split_off(&(oldest, first));
        std::mem::replace(&mut self.records, left).into_iter().map(|(_, record)| record).collect()
    }

    /// Returns when each record was written, in seconds since 1970.
    pub(crate) fn all(&self) -> HashMap<RecordPlace, u64> {
        self.records.iter().map(|&(written_at, record)| (record, written_at)).collect()
    }
}

#[cfg(test)]
mod tests {
    use interbed_kv::{Gate, KvTierConfig};

    use super::*;

    #[test]
    fn the_oldest_are_taken_and_what_is_gone_is_forgotten() {
        let mut tier = Tier::new(KvTierConfig::of_blocks(4, Gate::new(0.0)));
        let mut ages = Ages::new(None);
        let place = |segment| RecordPlace { segment, generation: 1, offset: 0, count: 1 };
        let key = interbed_kv::BlockKey::default();
        tier.restore(3, 1, &[(place(3), vec![(0, key)])], 1);
        ages.add(place(3), 10, &tier);
        (0..3 * STALE_MAX as u64).for_each(|time| ages.add(place(1), 20 + time, &tier));
        assert!(ages.records.len() < 2 * STALE_MAX, "{} are remembered", ages.records.len());
        assert_eq!(ages.all()[&place(3)], 10);
        assert!(ages.take_older(10).is_empty());
        assert_eq!(ages.take_older(11), HashSet::from([place(3)]));
        // What is carried over comes late, and is old.
        ages.add(place(3), 12, &tier);
        assert_eq!(ages.take_older(13), HashSet::from([place(3)]));
    }
}

//! When records were written.

use std::collections::{HashMap, HashSet, VecDeque};

use interbed_kv::{RecordPlace, Tier};

/// Records of which nothing may be left, until it is looked whether there are.
const STALE_MAX: usize = 1024;

/// When each record was written, in the order in which that was done here.
#[derive(Debug, Default)]
pub(crate) struct Ages {
    /// Each with seconds since 1970.
    records: VecDeque<(u64, RecordPlace)>,
    /// How many there may be until those of which nothing is left are looked for.
    most: usize,
}

impl Ages {
    /// `record` was written, or found; `tier` knows what is left.
    pub(crate) fn add(&mut self, record: RecordPlace, written_at: u64, tier: &Tier) {
        if self.records.len() >= self.most {
            let left: HashSet<_> = tier.contents().map(|(_, place)| place.record).collect();
            self.records.retain(|(_, record)| left.contains(record));
            self.most = 2 * self.records.len() + STALE_MAX;
        }
        self.records.push_back((written_at, record));
    }

    /// Takes out the oldest records, which were written before `oldest`.
    pub(crate) fn take_older(&mut self, oldest: u64) -> HashSet<RecordPlace> {
        let mut older = HashSet::new();
        while let Some((_, record)) = self.records.pop_front_if(|(written_at, _)| *written_at < oldest) {
            older.insert(record);
        }
        older
    }

    /// When each was written.
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
        let mut ages = Ages::default();
        let place = |segment| RecordPlace { segment, generation: 1, offset: 0, count: 1 };
        let key = interbed_kv::BlockKey::default();
        tier.restore(3, 1, &[(place(3), vec![(0, key)])], 1);
        ages.add(place(3), 10, &tier);
        (0..3 * STALE_MAX as u64).for_each(|time| ages.add(place(1), 20 + time, &tier));
        assert!(ages.records.len() < 2 * STALE_MAX, "{} are remembered", ages.records.len());
        assert_eq!(ages.all()[&place(3)], 10);
        assert!(ages.take_older(10).is_empty());
        assert_eq!(ages.take_older(11), HashSet::from([place(3)]));
    }
}

//! Remembers what fetches still wait for.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use interbed_kv::{BlockPart, FetchEnded, FetchId};

/// What a fetch of some blocks has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Brings {
    /// It brings the first of its blocks that have come.
    FirstOf { blocks: usize },
    /// It brings all of its blocks or, if any part is missing, none, because a sequence cannot go on elsewhere.
    AllOf { blocks: usize },
}

/// A fetch whose records are being read.
struct FetchInFlight {
    brings: Brings,
    wanted: usize,
    /// Parts that have come or may still come, from the first wanted one on.
    parts: Vec<BlockPart>,
    records_left: usize,
    began: Instant,
    bytes: u64,
}

/// Fetches in flight, and those that have ended and were not reported yet.
#[derive(Default)]
pub(super) struct Fetches {
    in_flight: HashMap<FetchId, FetchInFlight>,
    ended: VecDeque<FetchEnded>,
}

impl Fetches {
    /// Begins a fetch of `wanted` parts. The first of them are `parts`, which lie in `records` records.
    pub(super) fn begin(
        &mut self,
        id: FetchId,
        (brings, wanted): (Brings, usize),
        parts: Vec<BlockPart>,
        records: usize,
    ) {
        let flight = FetchInFlight { brings, wanted, parts, records_left: records, began: Instant::now(), bytes: 0 };
        self.in_flight.insert(id, flight);
        self.settle(id);
    }

    /// Returns whether a fetch is in flight.
    pub(super) fn has(&self, id: FetchId) -> bool {
        self.in_flight.contains_key(&id)
    }

    /// Notes that `parts` were filled from a record of `bytes` bytes, or could not be filled if there are no `bytes`.
    pub(super) fn was_read(&mut self, id: FetchId, parts: &[BlockPart], bytes: Option<u64>) {
        let Some(fetch) = self.in_flight.get_mut(&id) else { return };
        fetch.records_left -= 1;
        fetch.bytes += bytes.unwrap_or(0);
        // What comes behind a block that has not come is of no use.
        if bytes.is_none()
            && let Some(end) = fetch.parts.iter().position(|part| parts.contains(part))
        {
            fetch.parts.truncate(end);
        }
        self.settle(id);
    }

    /// Returns a fetch that has ended.
    pub(super) fn next_ended(&mut self) -> Option<FetchEnded> {
        self.ended.pop_front()
    }

    /// Returns whether no fetch is in flight.
    pub(super) fn is_settled(&self) -> bool {
        self.in_flight.is_empty()
    }

    fn settle(&mut self, id: FetchId) {
        if self.in_flight.get(&id).is_some_and(|fetch| fetch.records_left == 0)
            && let Some(FetchInFlight { brings, wanted, parts, began, bytes, .. }) = self.in_flight.remove(&id)
        {
            let seconds = began.elapsed().as_secs_f64();
            let (filled, wanted) = match brings {
                Brings::FirstOf { blocks } => (parts.len(), blocks),
                Brings::AllOf { blocks } => (if parts.len() == wanted { blocks } else { 0 }, blocks),
            };
            self.ended.push_back(FetchEnded { id, filled, wanted, bytes, seconds });
        }
    }
}

#[cfg(test)]
mod tests {
    use interbed_kv::BlockId;

    use super::*;

    #[test]
    fn what_comes_behind_a_gap_does_not_count() {
        let of = |numbers: &[u32]| -> Vec<_> { numbers.iter().copied().map(BlockId).map(BlockPart::whole).collect() };
        let first_of = |blocks| (Brings::FirstOf { blocks }, blocks);
        let mut fetches = Fetches::default();
        fetches.begin(FetchId(1), first_of(8), of(&[10, 11, 12, 13, 14, 15]), 3);
        fetches.was_read(FetchId(1), &of(&[13, 15]), None);
        fetches.was_read(FetchId(1), &of(&[10, 11]), Some(100));
        assert!(fetches.next_ended().is_none() && !fetches.is_settled());
        fetches.was_read(FetchId(1), &of(&[12, 14]), Some(50));
        let ended = fetches.next_ended().expect("all records were read");
        assert_eq!((ended.id, ended.filled, ended.wanted, ended.bytes), (FetchId(1), 3, 8, 150));
        // Nothing is read of a fetch of which everything has gone.
        fetches.begin(FetchId(2), first_of(3), Vec::new(), 0);
        assert_eq!(fetches.next_ended().map(|ended| (ended.id, ended.filled)), Some((FetchId(2), 0)));
        assert!(fetches.is_settled());
    }

    #[test]
    fn blocks_without_all_that_goes_with_them_are_of_no_use() {
        let part = |part| BlockPart { block: BlockId(90), part };
        let parts: Vec<_> = [1, 2].map(BlockId).map(BlockPart::whole).into_iter().chain((0..2).map(part)).collect();
        let mut fetches = Fetches::default();
        for (missing, filled) in [(None, 2), (Some(part(1)), 0)] {
            fetches.begin(FetchId(1), (Brings::AllOf { blocks: 2 }, 4), parts.clone(), 4);
            parts.iter().for_each(|part| fetches.was_read(FetchId(1), &[*part], (missing != Some(*part)).then_some(9)));
            let ended = fetches.next_ended().expect("all records were read");
            assert_eq!((ended.filled, ended.wanted), (filled, 2));
        }
        // One part has gone before anything is read.
        fetches.begin(FetchId(1), (Brings::AllOf { blocks: 2 }, 4), parts[..3].to_vec(), 0);
        assert_eq!(fetches.next_ended().map(|ended| ended.filled), Some(0));
    }
}

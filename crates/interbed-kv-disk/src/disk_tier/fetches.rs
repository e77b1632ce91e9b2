//! Remembers what fetches still wait for.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use interbed_kv::{BlockId, FetchEnded, FetchId};

/// A fetch whose records are being read.
struct FetchInFlight {
    wanted: usize,
    /// Blocks that have come or may still come, from the first wanted one on.
    blocks: Vec<BlockId>,
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
    /// Begins a fetch of `wanted` blocks. The first of them are `blocks`, which lie in `records` records.
    pub(super) fn begin(&mut self, id: FetchId, wanted: usize, blocks: Vec<BlockId>, records: usize) {
        let flight = FetchInFlight { wanted, blocks, records_left: records, began: Instant::now(), bytes: 0 };
        self.in_flight.insert(id, flight);
        self.settle(id);
    }

    /// Returns whether a fetch is in flight.
    pub(super) fn has(&self, id: FetchId) -> bool {
        self.in_flight.contains_key(&id)
    }

    /// Notes that `blocks` were filled from a record of `bytes` bytes, or could not be filled if there are no `bytes`.
    pub(super) fn was_read(&mut self, id: FetchId, blocks: &[BlockId], bytes: Option<u64>) {
        let Some(fetch) = self.in_flight.get_mut(&id) else { return };
        fetch.records_left -= 1;
        fetch.bytes += bytes.unwrap_or(0);
        // What comes behind a block that has not come is of no use.
        if bytes.is_none()
            && let Some(end) = fetch.blocks.iter().position(|block| blocks.contains(block))
        {
            fetch.blocks.truncate(end);
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
            && let Some(FetchInFlight { wanted, blocks, began, bytes, .. }) = self.in_flight.remove(&id)
        {
            let (filled, seconds) = (blocks.len(), began.elapsed().as_secs_f64());
            self.ended.push_back(FetchEnded { id, filled, wanted, bytes, seconds });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_behind_a_gap_does_not_count() {
        let of = |numbers: &[u32]| numbers.iter().copied().map(BlockId).collect::<Vec<_>>();
        let mut fetches = Fetches::default();
        fetches.begin(FetchId(1), 8, of(&[10, 11, 12, 13, 14, 15]), 3);
        fetches.was_read(FetchId(1), &of(&[13, 15]), None);
        fetches.was_read(FetchId(1), &of(&[10, 11]), Some(100));
        assert!(fetches.next_ended().is_none() && !fetches.is_settled());
        fetches.was_read(FetchId(1), &of(&[12, 14]), Some(50));
        let ended = fetches.next_ended().expect("all records were read");
        assert_eq!((ended.id, ended.filled, ended.wanted, ended.bytes), (FetchId(1), 3, 8, 150));
        // Nothing is read of a fetch of which everything has gone.
        fetches.begin(FetchId(2), 3, Vec::new(), 0);
        assert_eq!(fetches.next_ended().map(|ended| (ended.id, ended.filled)), Some((FetchId(2), 0)));
        assert!(fetches.is_settled());
    }
}

//! Empties segments: the blocks of a segment that are worth keeping are read, and written again elsewhere.

use std::collections::{HashSet, VecDeque};

use interbed_kv::{BlockKey, Reclaim, RecordPlace, Tier, TierPlace};

use super::DiskTier;
use super::reads::by_record;
use crate::jobs::{Expected, Purpose, Staged};
use crate::record::{Header, unpack};

/// A segment that is being emptied.
pub(super) struct Carrying {
    segment: u32,
    /// Records that are still to be read, each with the blocks that are kept.
    records: VecDeque<(RecordPlace, Vec<Expected>)>,
    /// Buffers for the blocks of the record that is being read; `None` if no record is being read.
    reading: Option<Vec<Vec<u8>>>,
    /// Blocks that were read and are not yet written again.
    keys: HashSet<BlockKey>,
}

impl DiskTier {
    /// Begins to empty a segment, if room is short.
    pub(super) fn reclaim(&mut self) {
        self.empty(Tier::reclaim);
    }

    /// Begins to empty a segment, if fewer than `wanted` are free.
    pub(super) fn reclaim_for(&mut self, wanted: usize) {
        self.empty(|tier| tier.reclaim_for(wanted));
    }

    /// Begins to empty the segment that `choose` names, unless another is being emptied.
    fn empty(&mut self, choose: impl FnOnce(&mut Tier) -> Option<Reclaim>) {
        if self.carrying.is_some() {
            return;
        }
        let Some(Reclaim { segment, carried, .. }) = choose(&mut self.tier) else { return };
        if carried.is_empty() {
            return;
        }
        let expected = |(key, TierPlace { record, index })| (record, Expected { index, key, content: None });
        let records = by_record(carried.into_iter().map(expected)).into();
        self.carrying = Some(Carrying { segment, records, reading: None, keys: HashSet::new() });
        self.go_on_carrying();
    }

    /// Reads the next record of the segment that is being emptied, if there are buffers for its blocks. Ends the
    /// emptying if nothing is left.
    pub(super) fn go_on_carrying(&mut self) {
        let (room, is_paused) = (self.staging.room(), self.writes.are_paused());
        let Some(carrying) = &mut self.carrying else { return };
        if carrying.reading.is_some() {
            return;
        }
        match carrying.records.front() {
            // It would only fail: what was to be carried is given up.
            Some(_) if is_paused => carrying.records.clear(),
            Some((_, blocks)) if blocks.len() <= room => {
                let Some((record, expected)) = carrying.records.pop_front() else { return };
                carrying.reading = Some(self.staging.take_buffers(expected.len()));
                return self.read(record, expected, Purpose::Carry);
            }
            Some(_) => return,
            None => {}
        }
        if carrying.records.is_empty() && carrying.keys.is_empty() {
            let segment = carrying.segment;
            self.carrying = None;
            self.tier.reclaimed(segment);
        }
    }

    /// Stages the blocks that were read from a record of the segment that is being emptied.
    pub(super) fn carry(
        &mut self,
        record: RecordPlace,
        expected: &[Expected],
        outcome: Result<Header, String>,
        bytes: &[u8],
    ) {
        let Some(carrying) = &mut self.carrying else { return };
        let buffers = carrying.reading.take().unwrap_or_default();
        let Ok(header) = outcome else {
            self.staging.give_back(buffers);
            return self.go_on_carrying();
        };
        carrying.keys.extend(expected.iter().map(|expected| expected.key));
        for (Expected { index, .. }, mut buffer) in expected.iter().zip(buffers) {
            let index = usize::from(*index);
            unpack(&self.store.shape, record.count.into(), index, bytes, &mut buffer);
            let label = header.labels[index].clone();
            self.add(Staged { label, class: 0, bytes: buffer, since: Some(header.written_at) });
        }
        self.go_on_carrying();
    }

    /// Notes that `blocks` are written again, or never will be.
    pub(super) fn carried(&mut self, blocks: &[Staged]) {
        if let Some(carrying) = &mut self.carrying {
            blocks.iter().for_each(|block| _ = carrying.keys.remove(&block.label.key));
        }
    }
}

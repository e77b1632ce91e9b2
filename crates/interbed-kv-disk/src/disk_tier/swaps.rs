//! Swaps blocks out and in. A block that the store has already is not written again. All others are written in records:
//! under their keys, so that look-ups find them too, or without a name.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use interbed_kv::{
    BlockBytes, BlockKey, BlockLabel, BlockPart, BlockSwap, NoRecords, RecordPlace, SlotTier, Swap, SwapDirection,
    SwapEnded, SwapFailure, SwapId, SwapSlot, SwapTook, SwapTrial, TierPlace, TokenId,
};

use super::DiskTier;
use super::kept_slots::KeptSlots;
use super::reads::by_record;
use crate::jobs::{Blocks, Purpose};
use crate::record::{UNKNOWN_OWNER, nameless_parent};

/// Class of blocks that are written because they are swapped out.
const SWAPPED: u8 = 0;

/// A swap in flight.
struct SwapInFlight {
    id: SwapId,
    direction: SwapDirection,
    began: Instant,
    /// Slots that a swap out fills.
    slots: Vec<SwapSlot>,
    /// Number of bytes that were moved.
    bytes: u64,
    /// Number of records that were not written, or read, yet.
    records_left: usize,
    failed: Option<SwapFailure>,
}

/// Blocks that are swapped out together and become a record, for which room is reserved.
struct Leaving {
    id: SwapId,
    record: RecordPlace,
    parts: Vec<BlockPart>,
    labels: Vec<BlockLabel>,
}

/// Slots whose blocks a store has, and swaps in flight.
pub(super) struct Swaps {
    pub(super) kept: KeptSlots,
    trial: SwapTrial,
    in_flight: Vec<SwapInFlight>,
    /// Records that wait for a buffer, in order.
    leaving: VecDeque<Leaving>,
    /// Number of buffers with records that are being written.
    pub(super) num_writing: usize,
    ended: VecDeque<SwapEnded>,
    /// Times at which the last swap out, and the last swap in, that moved anything have ended.
    last_ends: [Instant; 2],
}

impl Swaps {
    pub(super) fn new(kept: KeptSlots, trial: SwapTrial) -> Self {
        let (in_flight, leaving, ended) = (Vec::new(), VecDeque::new(), VecDeque::new());
        Self { kept, trial, in_flight, leaving, num_writing: 0, ended, last_ends: [Instant::now(); 2] }
    }

    /// Returns whether no swap is in flight.
    pub(super) fn is_settled(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Returns whether a swap is in flight, and all of it could be moved so far.
    pub(super) fn takes_bytes(&self, id: SwapId) -> bool {
        self.in_flight.iter().any(|swap| swap.id == id && swap.failed.is_none())
    }

    /// Returns whether a record waits for a buffer while no other is being written.
    pub(super) fn is_stuck(&self) -> bool {
        !self.leaving.is_empty() && self.num_writing == 0
    }

    fn flight(&mut self, id: SwapId) -> Option<&mut SwapInFlight> {
        self.in_flight.iter_mut().find(|swap| swap.id == id)
    }

    /// Takes out the records of a swap that wait for a buffer.
    fn take_leaving(&mut self, id: SwapId) -> Vec<Leaving> {
        let (gone, left): (Vec<_>, Vec<_>) = self.leaving.drain(..).partition(|leaving| leaving.id == id);
        self.leaving.extend(left);
        gone
    }
}

impl SlotTier for DiskTier {
    fn num_slots(&self) -> usize {
        self.swaps.kept.num_slots()
    }

    fn trial(&self) -> SwapTrial {
        self.swaps.trial
    }

    fn start_swap(&mut self, swap: &Swap, label: &dyn Fn(BlockPart) -> Option<BlockLabel>) {
        let (id, direction, began) = (swap.id, swap.direction, Instant::now());
        let slots = match direction {
            SwapDirection::Out => swap.transfers.iter().map(|transfer| transfer.slot).collect(),
            SwapDirection::In => Vec::new(),
        };
        let flight = SwapInFlight { id, direction, began, slots, bytes: 0, records_left: 0, failed: None };
        self.swaps.in_flight.push(flight);
        let begun = match direction {
            SwapDirection::Out => self.swap_out(swap, label),
            SwapDirection::In => self.swap_in(swap),
        };
        if let (Err(failure), Some(flight)) = (begun, self.swaps.flight(id)) {
            flight.failed = Some(failure);
        }
        // A swap that moves nothing does not wait.
        self.settle_swaps();
    }

    fn poll_swaps(&mut self, blocks: &mut dyn BlockBytes, wait: Duration) -> Option<SwapEnded> {
        self.wait_for(blocks, wait, |tier, blocks| {
            tier.write_leaving(blocks);
            (tier.swaps.ended.pop_front(), tier.swaps.is_settled())
        })
    }

    fn num_kept_slots(&self) -> usize {
        self.swaps.kept.num_kept()
    }

    fn retain_slots(&mut self, is_used: &dyn Fn(SwapSlot) -> bool) {
        let unused: Vec<_> = self.swaps.kept.slots().filter(|&slot| !is_used(slot)).collect();
        unused.into_iter().for_each(|slot| self.release_slot(slot));
    }
}

impl DiskTier {
    fn swap_out(&mut self, swap: &Swap, label: &dyn Fn(BlockPart) -> Option<BlockLabel>) -> Result<(), SwapFailure> {
        let (mut all, mut owner) = (Vec::with_capacity(swap.transfers.len()), UNKNOWN_OWNER);
        for &BlockSwap { part, slot } in &swap.transfers {
            self.release_slot(slot);
            let label = label(part);
            // All sequences of a swap belong to one tenant.
            label.iter().for_each(|label| owner = label.owner);
            let place = label.as_ref().and_then(|label| self.tier.find(label.key));
            // A slot would keep a segment that is being emptied from becoming free.
            all.push((part, slot, label, place.filter(|place| !self.tier.is_leaving(place.record.segment))));
        }
        let places: Vec<_> = all.iter().filter_map(|(.., place)| *place).collect();
        let (segments, sizes) = self.plan(all.len(), &places).ok_or(SwapFailure::NoRoom)?;
        let is_spared = |segment: u32| segments.contains(&segment);
        let mut written = Vec::new();
        for (part, slot, label, place) in all {
            let spared = place
                .filter(|TierPlace { record, .. }| self.swaps.kept.holds(record.segment) || is_spared(record.segment));
            match (spared, label) {
                (Some(place), Some(BlockLabel { key, parent, tokens, .. })) => {
                    self.keep_slot(slot, place, key, Some((parent, tokens)));
                    self.figures.swap_spared_bytes += self.store.shape.block_bytes() as u64;
                }
                (_, label) => written.push((part, slot, label)),
            }
        }
        segments.into_iter().for_each(|segment| self.tier.release(segment));
        self.writes.budget.spend(written.len() as u64 * self.store.shape.block_bytes() as u64);
        let mut written = written.into_iter();
        for size in sizes {
            let (mut parts, mut slots, mut labels) = (Vec::new(), Vec::new(), Vec::new());
            for (part, slot, label) in written.by_ref().take(size) {
                // What is on its way to the store has one name already.
                let own = label.filter(|label| !self.tier.knows(label.key) && !self.staging.has(label.key));
                parts.push(part);
                slots.push(slot);
                labels.push(own.unwrap_or_else(|| self.nameless(owner)));
            }
            let contents: Vec<_> = labels.iter().map(|label| (label.key, SWAPPED)).collect();
            let record = self.tier.reserve(&contents).expect("room was found for the record");
            let nameless = labels.iter_mut().filter(|label| label.key == BlockKey::NAMELESS);
            nameless.for_each(|label| label.parent = nameless_parent(record));
            for ((slot, label), index) in slots.into_iter().zip(&labels).zip(0..) {
                self.keep_slot(slot, TierPlace { record, index }, label.key, None);
            }
            self.swaps.leaving.push_back(Leaving { id: swap.id, record, parts, labels });
            self.swaps.flight(swap.id).into_iter().for_each(|flight| flight.records_left += 1);
        }
        Ok(())
    }

    /// Returns the label of a block of `owner` that no look-up can find.
    fn nameless(&self, owner: BlockKey) -> BlockLabel {
        let tokens = vec![0; self.store.shape.block_size()].into();
        BlockLabel { key: BlockKey::NAMELESS, parent: BlockKey::NAMELESS, owner, tokens }
    }

    /// Plans how `count` blocks leave, of which the store has some at `places`. Returns the segments that slots are to
    /// hold because blocks lie there already, and the number of blocks of each record with the other blocks. Each of
    /// the segments is held once for the caller. What must be written comes first: a block is written again if slots
    /// may not hold its segment besides.
    fn plan(&mut self, mut count: usize, places: &[TierPlace]) -> Option<(Vec<u32>, Vec<usize>)> {
        let mut found: HashMap<u32, usize> = HashMap::new();
        for TierPlace { record, .. } in places {
            *found.entry(record.segment).or_default() += 1;
        }
        count -=
            found.extract_if(|&segment, _| self.swaps.kept.holds(segment)).map(|(_, blocks)| blocks).sum::<usize>();
        let mut spared: Vec<_> = found.into_iter().collect();
        spared.sort_unstable_by_key(|&(segment, blocks)| (Reverse(blocks), segment));
        spared.truncate(self.swaps.kept.segments_left());
        count -= spared.iter().map(|(_, blocks)| blocks).sum::<usize>();
        spared.iter().for_each(|&(segment, _)| self.tier.hold(segment));
        loop {
            let segments: Vec<_> = spared.iter().map(|&(segment, _)| segment).collect();
            if let Some(sizes) = self.room_for(count, &segments) {
                return Some((segments, sizes));
            }
            let (segment, blocks) = spared.pop()?;
            self.tier.release(segment);
            count += blocks;
        }
    }

    /// Divides `count` blocks into records that find room if slots hold the segments `spared` too, and returns the
    /// number of blocks of each. Segments are emptied for the records if that is possible at once and helps.
    fn room_for(&mut self, count: usize, spared: &[u32]) -> Option<Vec<usize>> {
        let is_for_swaps_alone = self.tier.config().spare_segments == 0;
        let left = self.swaps.kept.segments_left() - spared.len();
        loop {
            let kept = &self.swaps.kept;
            let is_held = |segment: u32| kept.holds(segment) || spared.contains(&segment);
            let lack = match self.tier.records_for(count, left, is_held) {
                Ok(sizes) => return Some(sizes),
                Err(lack) => lack,
            };
            // What is left of the open segment may be too small for anything.
            if is_for_swaps_alone && self.tier.close_unread() {
                continue;
            }
            let free = self.tier.num_free_segments();
            if lack == NoRecords::NotFree {
                self.reclaim_for(free + 1);
            }
            if self.tier.num_free_segments() == free {
                return None;
            }
        }
    }

    /// Copies blocks that leave into buffers, as far as there are any, and has them written.
    fn write_leaving(&mut self, blocks: &mut dyn BlockBytes) {
        while !self.swaps.leaving.is_empty()
            && let Some(mut buffer) = self.reads.lend(self.swaps.is_stuck())
            && let Some(Leaving { id, record, parts, labels }) = self.swaps.leaving.pop_front()
        {
            let begin = self.store.shape.header_bytes(labels.len());
            let room = buffer.as_mut()[begin..].chunks_exact_mut(self.store.shape.block_bytes());
            let copied = parts.iter().zip(room).try_for_each(|(&part, bytes)| blocks.read(part, bytes));
            match copied {
                Ok(()) => {
                    self.swaps.num_writing += 1;
                    self.write(record, Blocks::Swapped { id, labels, buffer });
                }
                Err(reason) => {
                    self.reads.buffers.push(buffer);
                    self.tier.written(record, &keys(&labels), false);
                    self.swap_was_moved(id, 0, Err(SwapFailure::Broken(reason)));
                }
            }
        }
        self.feed_readers();
    }

    /// Notes that a record with `count` blocks of a swap was written or read, or why it was not.
    pub(super) fn swap_was_moved(&mut self, id: SwapId, count: usize, outcome: Result<(), SwapFailure>) {
        let bytes = (count * self.store.shape.block_bytes()) as u64;
        let Some(flight) = self.swaps.flight(id) else { return };
        flight.records_left -= 1;
        match outcome {
            Ok(()) => flight.bytes += bytes,
            Err(failure) => {
                flight.failed.get_or_insert(failure);
                let gone = self.swaps.take_leaving(id);
                self.swaps.flight(id).into_iter().for_each(|flight| flight.records_left -= gone.len());
                gone.iter().for_each(|leaving| self.tier.written(leaving.record, &keys(&leaving.labels), false));
            }
        }
        self.settle_swaps();
    }

    fn swap_in(&mut self, swap: &Swap) -> Result<(), SwapFailure> {
        let kept = |&BlockSwap { part, slot }: &BlockSwap| match self.swaps.kept.get(slot) {
            Some((record, expected)) => Ok((record, (expected, part))),
            None => Err(SwapFailure::Broken(format!("nothing was written for {slot}"))),
        };
        let records = by_record(swap.transfers.iter().map(kept).collect::<Result<Vec<_>, _>>()?);
        self.swaps.flight(swap.id).into_iter().for_each(|flight| flight.records_left = records.len());
        for (record, blocks) in records {
            let (expected, parts) = blocks.into_iter().unzip();
            self.read(record, expected, Purpose::Slots(swap.id, parts));
        }
        Ok(())
    }

    /// Reports the swaps of which nothing is left to be moved.
    fn settle_swaps(&mut self) {
        let now = Instant::now();
        while let Some(index) = self.swaps.in_flight.iter().position(|swap| swap.records_left == 0) {
            let SwapInFlight { id, direction, began, slots, bytes, failed, .. } = self.swaps.in_flight.remove(index);
            let last_end = &mut self.swaps.last_ends[usize::from(direction == SwapDirection::In)];
            let seconds = now.saturating_duration_since(began.max(*last_end)).as_secs_f64();
            // One without copies ends past those that the disk is still at.
            if bytes > 0 {
                *last_end = now;
            }
            if failed.is_some() {
                slots.into_iter().for_each(|slot| self.release_slot(slot));
            }
            let outcome = failed.map_or(Ok(SwapTook { bytes, seconds }), Err);
            self.swaps.ended.push_back(SwapEnded { id, outcome });
        }
    }

    fn keep_slot(
        &mut self,
        slot: SwapSlot,
        place: TierPlace,
        key: BlockKey,
        found: Option<(BlockKey, Box<[TokenId]>)>,
    ) {
        self.tier.hold(place.record.segment);
        self.swaps.kept.keep(slot, place, key, found);
    }

    fn release_slot(&mut self, slot: SwapSlot) {
        self.swaps.kept.forget(slot).into_iter().for_each(|segment| self.tier.release(segment));
    }
}

fn keys(labels: &[BlockLabel]) -> Vec<BlockKey> {
    labels.iter().map(|label| label.key).collect()
}

#[cfg(test)]
mod tests;

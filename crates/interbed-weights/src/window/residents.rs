//! Chooses which units stay under policy `resident`, and which stream between them.

use super::order::Order;
use super::spread::spread;
use super::unit_id::UnitId;
use super::units::Units;

/// The units that were chosen to stay, and the streamed units as a cycle of their own.
#[derive(Debug)]
pub(super) struct Residents {
    /// Whether each unit is to stay.
    chosen: Vec<bool>,
    bytes: u64,
    /// Number of slots for units that do not stay.
    slots: usize,
    /// Positions of the units that do not stay, ascending.
    streamed: Vec<u32>,
    /// Number of entries of `streamed` that lie before each position. There is one more entry than there are positions.
    rank: Vec<u32>,
}

impl Residents {
    /// Creates a choice of no unit, which holds until [`choose`](Self::choose).
    pub fn new(num_units: usize, order: &Order) -> Self {
        let rank = vec![0; order.len() + 1];
        Self { chosen: vec![false; num_units], bytes: 0, slots: 0, streamed: Vec::new(), rank }
    }

    /// Takes another order. The caller calls [`choose`](Self::choose) next, which starts from the previous choice.
    pub fn set_order(&mut self, order: &Order) {
        self.streamed.clear();
        self.rank = vec![0; order.len() + 1];
    }

    /// Fits the choice to the budget, which must hold either `stream_slots` slots or all units.
    pub fn choose(&mut self, units: &Units, order: &Order, stream_slots: usize) {
        let bytes_of = |unit: &UnitId| units.get(*unit).bytes;
        let everything: u64 = units.all().iter().map(|unit| unit.bytes).sum();
        if everything <= units.budget {
            self.slots = 0;
            self.chosen.fill(true);
        } else {
            self.slots = stream_slots;
            let room = units.budget.saturating_sub(self.slot_bytes(units));
            let bytes: Vec<u64> = order.units().iter().map(bytes_of).collect();
            let mut chosen: Vec<bool> = order.units().iter().map(|unit| self.chosen[unit.index()]).collect();
            spread(&bytes, room, &mut chosen);
            self.chosen.fill(false);
            for (unit, chosen) in order.units().iter().zip(chosen) {
                self.chosen[unit.index()] = chosen;
            }
            let ordered: u64 = bytes.iter().sum();
            if ordered <= room {
                // All units that every pass needs stay; the rest of the memory holds units on demand.
                let more = ((room - ordered) / units.slot_bytes) as usize;
                self.slots = (stream_slots + more).min((units.len() - order.len()).max(stream_slots));
            }
        }
        self.bytes = self.counted_bytes(units);
        self.streamed.clear();
        for (position, unit) in order.units().iter().enumerate() {
            self.rank[position] = self.streamed.len() as u32;
            if !self.chosen[unit.index()] {
                self.streamed.push(position as u32);
            }
        }
        self.rank[order.len()] = self.streamed.len() as u32;
    }

    pub fn contains(&self, unit: UnitId) -> bool {
        self.chosen[unit.index()]
    }

    /// Returns the bytes of all residents.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts the bytes of all residents again from the choice; [`bytes`](Self::bytes) must return the same number.
    pub fn counted_bytes(&self, units: &Units) -> u64 {
        units.all().iter().zip(&self.chosen).filter(|(_, chosen)| **chosen).map(|(unit, _)| unit.bytes).sum()
    }

    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the bytes that the residents leave for the slots.
    pub fn slot_bytes(&self, units: &Units) -> u64 {
        self.slots as u64 * units.slot_bytes
    }

    /// Returns the number of streamed units that the slots hold ahead of a pass.
    pub fn window_len(&self) -> usize {
        self.slots.min(self.streamed.len())
    }

    /// Returns the position of the streamed unit that a pass at `anchor` meets after `ahead` other streamed units.
    /// There must be at least one streamed unit.
    pub fn streamed_from(&self, anchor: usize, ahead: usize) -> usize {
        self.streamed[(self.rank[anchor] as usize + ahead) % self.streamed.len()] as usize
    }

    /// Returns how many streamed units a pass at `anchor` acquires before it comes to `position`.
    pub fn streamed_between(&self, anchor: usize, position: usize) -> usize {
        let (from, to) = (self.rank[anchor] as usize, self.rank[position] as usize);
        if to > from || (to == from && position >= anchor) { to - from } else { to + self.streamed.len() - from }
    }
}

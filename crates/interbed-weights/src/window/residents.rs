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
    /// Creates an empty set of residents. [`choose`](Self::choose) fills it.
    pub fn new(num_units: usize, order: &Order) -> Self {
        let rank = vec![0; order.len() + 1];
        Self { chosen: vec![false; num_units], bytes: 0, slots: 0, streamed: Vec::new(), rank }
    }

    /// Prepares for another order. The caller must call [`choose`](Self::choose) next, which starts from the previous
    /// residents.
    pub fn set_order(&mut self, order: &Order) {
        self.streamed.clear();
        self.rank = vec![0; order.len() + 1];
    }

    /// Chooses the residents for the current budget, which must hold either `stream_slots` slots or all units.
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

    /// Returns the total size of the residents in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Recomputes the total size of the residents in bytes. [`bytes`](Self::bytes) must return the same number.
    pub fn counted_bytes(&self, units: &Units) -> u64 {
        units.all().iter().zip(&self.chosen).filter(|(_, chosen)| **chosen).map(|(unit, _)| unit.bytes).sum()
    }

    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the total size of the slots in bytes.
    pub fn slot_bytes(&self, units: &Units) -> u64 {
        self.slots as u64 * units.slot_bytes
    }

    /// Returns the number of streamed units that the slots can hold ahead of a pass.
    pub fn window_len(&self) -> usize {
        self.slots.min(self.streamed.len())
    }

    /// Returns the position of the streamed unit that a pass at `anchor` acquires after `ahead` other streamed units.
    /// There must be at least one streamed unit.
    pub fn streamed_from(&self, anchor: usize, ahead: usize) -> usize {
        self.streamed[(self.rank[anchor] as usize + ahead) % self.streamed.len()] as usize
    }

    /// Returns the number of streamed units in the order of access from position `anchor` on, up to but not including
    /// `position`. Positions count units, and go on from the end of the order at its beginning.
    pub fn streamed_between(&self, anchor: usize, position: usize) -> usize {
        let (from, to) = (self.rank[anchor] as usize, self.rank[position] as usize);
        if to > from || (to == from && position >= anchor) { to - from } else { to + self.streamed.len() - from }
    }
}

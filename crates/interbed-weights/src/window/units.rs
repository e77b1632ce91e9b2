//! Records of all units of a window, and the bytes that the units hold.

use super::counters::WindowCounters;
use super::unit_id::UnitId;

/// A command to the driver of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowCommand {
    /// The driver brings the unit into this tier, and answers exactly once with `loaded`, `load_failed` or
    /// `allocation_failed`.
    Load {
        /// Unit that is loaded.
        unit: UnitId,
        /// Number of the load, which the answer must carry.
        ticket: u64,
        /// Whether the unit goes into memory of its own size, or (if false) into a slot of the largest unit's size.
        resident: bool,
    },
    /// The driver takes the unit's memory back, and answers with `evicted`. No one uses the unit, but on a device, work
    /// that was queued before its release may still read it; the driver waits for that work first.
    Evict {
        /// Unit whose memory is taken back.
        unit: UnitId,
    },
}

/// Where a unit is, as seen from the window's tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnitState {
    /// The unit is only in the tier below. [`WindowCommand::Load`] makes it `Inflight`.
    Absent,
    /// The unit is being loaded, and its memory is taken. The end of the load makes it `Present`, a failure makes it
    /// `Absent`.
    Inflight,
    /// The unit is readable. [`WindowCommand::Evict`], which is given only while no one uses the unit, makes it
    /// `Evicting`.
    Present,
    /// The unit's memory is being given back but still counts. The driver's answer makes the unit `Absent`.
    Evicting,
}

/// Record of one unit.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub bytes: u64,
    pub ticket: u64,
    pub users: u32,
    pub attempts: u32,
    pub pins: u32,
    pub state: UnitState,
    /// Whether the unit takes its own bytes rather than a slot; meaningful unless the unit is absent.
    pub own: bool,
    pub awaited: bool,
    /// Whether the unit has failed too often, so that it is not tried again before a caller acquires it.
    pub given_up: bool,
}

/// All units of a window, which of them are waited for, and how much memory they hold.
#[derive(Debug)]
pub(super) struct Units {
    units: Vec<Unit>,
    awaited: Vec<UnitId>,
    pinned: Vec<UnitId>,
    next_ticket: u64,
    pub budget: u64,
    pub slot_bytes: u64,
    /// Bytes of the units that take their own bytes.
    pub own_bytes: u64,
    /// Number of units that take a slot.
    pub slots_used: usize,
    /// Bytes of the units that take their own bytes and are being evicted.
    pub own_bytes_evicting: u64,
    /// Number of units that take a slot and are being evicted.
    pub slots_evicting: usize,
    /// Number of units that hold memory.
    pub held: usize,
    /// Number of units that hold memory and are being evicted.
    pub evicting: usize,
    pub in_flight: usize,
    /// Number of loads in flight whose units take their own bytes.
    pub own_in_flight: usize,
    pub counters: WindowCounters,
}

impl Units {
    /// Creates the records of absent units. The caller has checked `bytes`: none is 0, and their sum fits a `u64`.
    pub fn new(bytes: &[u64], budget: u64) -> Self {
        let unit = |&bytes| Unit {
            bytes,
            ticket: 0,
            users: 0,
            attempts: 0,
            pins: 0,
            state: UnitState::Absent,
            own: false,
            awaited: false,
            given_up: false,
        };
        Self {
            units: bytes.iter().map(unit).collect(),
            awaited: Vec::new(),
            pinned: Vec::new(),
            next_ticket: 1,
            budget,
            slot_bytes: bytes.iter().copied().max().unwrap_or(0),
            own_bytes: 0,
            slots_used: 0,
            own_bytes_evicting: 0,
            slots_evicting: 0,
            held: 0,
            evicting: 0,
            in_flight: 0,
            own_in_flight: 0,
            counters: WindowCounters::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.units.len()
    }

    pub fn all(&self) -> &[Unit] {
        &self.units
    }

    pub fn get(&self, unit: UnitId) -> &Unit {
        &self.units[unit.index()]
    }

    pub fn get_mut(&mut self, unit: UnitId) -> &mut Unit {
        &mut self.units[unit.index()]
    }

    /// Returns whether the unit is present, and neither used nor waited for nor pinned.
    pub fn is_idle(&self, unit: UnitId) -> bool {
        let unit = self.get(unit);
        unit.state == UnitState::Present && unit.users == 0 && !unit.awaited && unit.pins == 0
    }

    /// Returns whether the unit may be loaded without another acquisition: it is absent and not given up.
    pub fn is_loadable(&self, unit: UnitId) -> bool {
        let unit = self.get(unit);
        unit.state == UnitState::Absent && !unit.given_up
    }

    /// Returns the bytes held now, including units that are being loaded or evicted.
    pub fn bytes_held(&self) -> u64 {
        self.own_bytes + self.slots_used as u64 * self.slot_bytes
    }

    /// Returns the bytes that are held once all evictions in flight are done.
    pub fn bytes_staying(&self) -> u64 {
        self.bytes_held() - self.own_bytes_evicting - self.slots_evicting as u64 * self.slot_bytes
    }

    /// Returns the units that are waited for, in the order in which the waits began.
    pub fn awaited(&self) -> &[UnitId] {
        &self.awaited
    }

    /// Notes that a caller waits for the unit. Returns false if a caller was waiting already.
    pub fn begin_wait(&mut self, unit: UnitId) -> bool {
        let known = std::mem::replace(&mut self.get_mut(unit).awaited, true);
        if !known {
            self.awaited.push(unit);
        }
        !known
    }

    /// Notes that no one waits for the unit any more. Returns false if no one did.
    pub fn end_wait(&mut self, unit: UnitId) -> bool {
        let known = std::mem::replace(&mut self.get_mut(unit).awaited, false);
        if known {
            self.awaited.retain(|&awaited| awaited != unit);
        }
        known
    }

    /// Adds one pin to the unit.
    pub fn pin(&mut self, unit: UnitId) {
        self.get_mut(unit).pins += 1;
        if self.get(unit).pins == 1 {
            self.pinned.push(unit);
        }
    }

    /// Removes one pin from the unit, which must have one.
    pub fn unpin(&mut self, unit: UnitId) {
        self.get_mut(unit).pins -= 1;
        if self.get(unit).pins == 0 {
            self.pinned.retain(|&pinned| pinned != unit);
        }
    }

    /// Returns the victim when a unit is waited for and no idle unit can make room: a pinned unit, if there is one. If
    /// no load or eviction is in flight, the victim can also be a unit that another caller waits for, since that caller
    /// seems to have given up.
    pub fn last_resort(&self) -> Option<UnitId> {
        let unused = |unit: &&UnitId| self.get(**unit).state == UnitState::Present && self.get(**unit).users == 0;
        let pinned = self.pinned.iter().filter(|unit| !self.get(**unit).awaited).find(unused);
        let nothing_comes = self.in_flight == 0 && self.evicting == 0;
        pinned.or_else(|| self.awaited.iter().find(unused).filter(|_| nothing_comes)).copied()
    }

    /// Commands a load and takes memory for it. The caller has made sure that there is room.
    pub fn load(&mut self, unit: UnitId, own: bool, out: &mut Vec<WindowCommand>) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let record = &mut self.units[unit.index()];
        debug_assert_eq!(record.state, UnitState::Absent, "{unit:?} is loaded twice");
        record.state = UnitState::Inflight;
        record.ticket = ticket;
        record.own = own;
        let bytes = record.bytes;
        self.in_flight += 1;
        self.held += 1;
        if own {
            self.own_bytes += bytes;
            self.own_in_flight += 1;
        } else {
            self.slots_used += 1;
        }
        debug_assert!(self.bytes_held() <= self.budget, "a load of {unit:?} exceeds the budget");
        self.counters.loads += 1;
        out.push(WindowCommand::Load { unit, ticket, resident: own });
    }

    /// Commands an eviction. The unit's memory counts until [`evicted`](Self::evicted) is called.
    pub fn evict(&mut self, unit: UnitId, out: &mut Vec<WindowCommand>) {
        debug_assert!(self.get(unit).state == UnitState::Present && self.get(unit).users == 0, "{unit:?} is in use");
        let record = self.get_mut(unit);
        record.state = UnitState::Evicting;
        let (own, bytes) = (record.own, record.bytes);
        if own {
            self.own_bytes_evicting += bytes;
        } else {
            self.slots_evicting += 1;
        }
        self.evicting += 1;
        self.counters.evictions += 1;
        out.push(WindowCommand::Evict { unit });
    }

    /// Notes that a load has arrived. Returns false if the ticket is not that of the load in flight.
    pub fn loaded(&mut self, unit: UnitId, ticket: u64) -> bool {
        if !self.end_flight(unit, ticket) {
            return false;
        }
        let record = self.get_mut(unit);
        record.state = UnitState::Present;
        record.attempts = 0;
        record.given_up = false;
        self.counters.bytes_loaded += self.units[unit.index()].bytes;
        true
    }

    /// Notes that a load has failed. Returns false if the ticket is not that of the load in flight.
    pub fn failed(&mut self, unit: UnitId, ticket: u64, attempts_max: u32) -> bool {
        if !self.end_flight(unit, ticket) {
            return false;
        }
        self.give_back(unit);
        let record = self.get_mut(unit);
        record.attempts += 1;
        if record.attempts >= attempts_max {
            record.attempts = 0;
            record.given_up = true;
        }
        true
    }

    /// Notes that the unit's memory was given back. Returns false if the unit was not being evicted.
    pub fn evicted(&mut self, unit: UnitId) -> bool {
        let record = self.get(unit);
        if record.state != UnitState::Evicting {
            self.counters.stale_reports += 1;
            return false;
        }
        let (own, bytes) = (record.own, record.bytes);
        if own {
            self.own_bytes_evicting -= bytes;
        } else {
            self.slots_evicting -= 1;
        }
        self.evicting -= 1;
        self.give_back(unit);
        true
    }

    fn end_flight(&mut self, unit: UnitId, ticket: u64) -> bool {
        let record = self.get(unit);
        if record.state != UnitState::Inflight || record.ticket != ticket {
            self.counters.stale_reports += 1;
            return false;
        }
        let own = record.own;
        self.in_flight -= 1;
        self.own_in_flight -= usize::from(own);
        true
    }

    fn give_back(&mut self, unit: UnitId) {
        let record = self.get_mut(unit);
        record.state = UnitState::Absent;
        let (own, bytes) = (record.own, record.bytes);
        self.held -= 1;
        if own {
            self.own_bytes -= bytes;
        } else {
            self.slots_used -= 1;
        }
    }
}

//! Records of all units of a window, and the bytes that the units hold.

use super::counters::WindowCounters;
use super::unit_id::UnitId;

/// A command to the driver of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowCommand {
    /// The driver loads the unit into this tier. It answers exactly once with
    /// [`Window::loaded`](super::Window::loaded), [`Window::load_failed`](super::Window::load_failed) or
    /// [`Window::allocation_failed`](super::Window::allocation_failed).
    Load {
        /// Unit that is loaded.
        unit: UnitId,
        /// Number of the load, which the answer must carry.
        ticket: u64,
        /// Whether the unit goes into memory of its own size, or (if false) into a slot of the largest unit's size.
        resident: bool,
    },
    /// The driver frees the unit's memory, and then calls [`Window::evicted`](super::Window::evicted). No caller uses
    /// the unit any more. On a device, work that was submitted before the unit's release may still read the memory; the
    /// driver does not let the memory be written before that work ends.
    Evict {
        /// Unit whose memory is taken back.
        unit: UnitId,
    },
}

/// State of a unit in the tier of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnitState {
    /// The unit is not in this tier. [`WindowCommand::Load`] makes it `Inflight`.
    Absent,
    /// The unit is being loaded, and its memory is already taken. The unit becomes `Present` if the load succeeds, and
    /// `Absent` if the load fails.
    Inflight,
    /// The unit can be read. [`WindowCommand::Evict`] makes it `Evicting`; this command is given only while no caller
    /// uses the unit.
    Present,
    /// The unit's memory is being freed, but still counts against the budget. The unit becomes `Absent` when the driver
    /// has freed the memory.
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
    /// Whether the unit's memory is outside the slots and only as large as the unit. If false, the unit takes a slot.
    /// The value has no meaning while the unit is absent.
    pub own: bool,
    pub awaited: bool,
    /// Whether loading the unit has failed too often. Such a unit is not loaded again until a caller acquires it.
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
    /// Total size in bytes of the units whose memory is outside the slots.
    pub own_bytes: u64,
    /// Number of units that take a slot.
    pub slots_used: usize,
    /// Total size in bytes of the units whose memory is outside the slots and that are being evicted.
    pub own_bytes_evicting: u64,
    /// Number of units that take a slot and are being evicted.
    pub slots_evicting: usize,
    /// Number of units that hold memory.
    pub held: usize,
    /// Number of units that hold memory and are being evicted.
    pub evicting: usize,
    pub in_flight: usize,
    /// Number of loads in flight into memory outside the slots.
    pub own_in_flight: usize,
    pub counters: WindowCounters,
}

impl Units {
    /// Creates the records of units that are all absent. The caller has checked that no entry of `bytes` is 0, and that
    /// their sum fits a `u64`.
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

    /// Returns whether the unit is present, not in use, not waited for, and not pinned.
    pub fn is_idle(&self, unit: UnitId) -> bool {
        let unit = self.get(unit);
        unit.state == UnitState::Present && unit.users == 0 && !unit.awaited && unit.pins == 0
    }

    /// Returns whether the unit can be loaded without a new acquisition: it is absent, and loading it has not failed
    /// too often.
    pub fn is_loadable(&self, unit: UnitId) -> bool {
        let unit = self.get(unit);
        unit.state == UnitState::Absent && !unit.given_up
    }

    /// Returns the number of bytes that units take, including units that are being loaded or evicted.
    pub fn bytes_held(&self) -> u64 {
        self.own_bytes + self.slots_used as u64 * self.slot_bytes
    }

    /// Returns the number of bytes that units will take once all evictions in flight are done.
    pub fn bytes_staying(&self) -> u64 {
        self.bytes_held() - self.own_bytes_evicting - self.slots_evicting as u64 * self.slot_bytes
    }

    /// Returns the units that are waited for, in the order in which the waits began.
    pub fn awaited(&self) -> &[UnitId] {
        &self.awaited
    }

    /// Records that a caller waits for the unit. Returns false if a caller was already waiting.
    pub fn begin_wait(&mut self, unit: UnitId) -> bool {
        let known = std::mem::replace(&mut self.get_mut(unit).awaited, true);
        if !known {
            self.awaited.push(unit);
        }
        !known
    }

    /// Records that no caller waits for the unit any more. Returns false if no caller was waiting.
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

    /// Returns a unit to evict if a caller waits for another unit and no idle unit can make room. The first choice is a
    /// pinned unit that is neither in use nor waited for. The second choice is a present unit that is waited for but
    /// not in use, because the caller that waits for it seems to have given up. The second choice is made only while no
    /// load or eviction is in flight.
    pub fn last_resort(&self) -> Option<UnitId> {
        let unused = |unit: &&UnitId| self.get(**unit).state == UnitState::Present && self.get(**unit).users == 0;
        let pinned = self.pinned.iter().filter(|unit| !self.get(**unit).awaited).find(unused);
        let nothing_comes = self.in_flight == 0 && self.evicting == 0;
        pinned.or_else(|| self.awaited.iter().find(unused).filter(|_| nothing_comes)).copied()
    }

    /// Commands a load of the unit, and takes memory for it. The caller has checked that there is room.
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

    /// Commands an eviction of the unit. The memory counts against the budget until [`evicted`](Self::evicted) is
    /// called.
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

    /// Records that a load has succeeded. Returns false if no load of the unit with this ticket is in flight.
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

    /// Records that a load has failed. After `attempts_max` failures, the unit is not loaded again until a caller
    /// acquires it. Returns false if no load of the unit with this ticket is in flight.
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

    /// Records that the unit's memory was freed. Returns false if the unit was not being evicted.
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

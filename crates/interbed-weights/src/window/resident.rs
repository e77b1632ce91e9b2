//! Policy `resident`: a fixed subset of units stays, and the rest streams through a few slots.
//!
//! A pass acquires units in a cycle. Every evicted unit must be read again before the cycle ends, so no choice reads
//! less than the bytes that do not fit. Always keeping the same units reads exactly that much, and leaves nothing to
//! decide at run time. The anchor is the position in the order where the next acquisition is expected. The window is
//! the next streamed units from the anchor on, as many as there are slots, continuing past the end of the pass into the
//! next one. A streamed unit is evicted as soon as it was used, since all others are needed before it is needed again;
//! its slot takes the next unit.

use std::collections::VecDeque;

use super::config::ResidentConfig;
use super::error::WindowError;
use super::on_demand::OnDemand;
use super::order::Order;
use super::planner::Planner;
use super::positions::PositionSet;
use super::residents::Residents;
use super::unit_id::UnitId;
use super::units::{UnitState, Units, WindowCommand};

#[derive(Debug)]
pub(super) struct ResidentPlanner {
    order: Order,
    /// Configured number of slots.
    stream_slots: usize,
    residents: Residents,
    anchor: usize,
    /// Number of streamed units from the anchor on that are present, in flight, or given up.
    fetched: usize,
    /// Positions of idle units in slots.
    loose: PositionSet,
    /// Residents that may still have to be loaded, in the order of their use.
    missing: VecDeque<UnitId>,
    on_demand: OnDemand,
}

impl ResidentPlanner {
    pub fn new(config: ResidentConfig, order: Order, units: &Units) -> Result<Self, WindowError> {
        if config.stream_slots == 0 {
            return Err(WindowError::Zero { setting: "the number of stream slots" });
        }
        Ok(Self {
            stream_slots: config.stream_slots,
            residents: Residents::new(units.len(), &order),
            anchor: 0,
            fetched: 0,
            loose: PositionSet::new(order.len()),
            missing: VecDeque::new(),
            on_demand: OnDemand::new(units.len(), config.stream_slots),
            order,
        })
    }
}

impl Planner for ResidentPlanner {
    fn least_budget(&self, units: &Units) -> Result<u64, WindowError> {
        let everything: u64 = units.all().iter().map(|unit| unit.bytes).sum();
        let slots = (self.stream_slots as u64).checked_mul(units.slot_bytes);
        Ok(slots.map_or(everything, |slots| slots.min(everything)))
    }

    fn concurrent_max(&self, _units: &Units) -> usize {
        self.stream_slots
    }

    fn slots(&self, _units: &Units) -> usize {
        self.residents.slots()
    }

    fn set_order(&mut self, order: Order, units: &Units) {
        self.residents.set_order(&order);
        self.loose = PositionSet::new(order.len());
        self.on_demand = OnDemand::new(units.len(), self.stream_slots);
        (self.anchor, self.fetched) = (0, 0);
        self.order = order;
    }

    fn plan(&mut self, units: &mut Units, out: &mut Vec<WindowCommand>) {
        self.residents.choose(units, &self.order, self.stream_slots);
        self.on_demand.announced_max = self.residents.slots().max(self.stream_slots);
        self.fetched = 0;
        for index in 0..units.len() {
            let unit = UnitId(index as u32);
            if units.is_idle(unit) && !self.stays_where_it_is(units, unit) {
                self.evict(units, unit, out);
            }
        }
        self.missing.clear();
        let (before, after) = self.order.units().split_at(self.anchor);
        let on_demand = self.order.on_demand();
        let all = after.iter().chain(before).copied().chain(on_demand);
        self.missing.extend(all.filter(|&unit| self.residents.contains(unit) && units.is_loadable(unit)));
    }

    fn wanted(&mut self, _units: &Units, unit: UnitId) {
        if let Some(position) = self.order.position(unit) {
            self.move_anchor(position);
        }
    }

    fn acquired(&mut self, _units: &Units, unit: UnitId, waited: bool) {
        self.forget_idle(unit);
        if let Some(position) = self.order.position(unit)
            // With several waits at the same time, the pass is at the unit whose wait began last.
            && (!waited || position == self.anchor)
        {
            self.move_anchor(self.order.next(position));
        }
    }

    fn idle(&mut self, units: &mut Units, unit: UnitId, used: bool, out: &mut Vec<WindowCommand>) {
        let goes = match self.order.position(unit) {
            _ if !self.stays_where_it_is(units, unit) => true,
            _ if units.get(unit).own => return,
            Some(position) => used && (self.residents.contains(unit) || !self.is_in_window(position)),
            None => false,
        };
        if goes {
            self.evict(units, unit, out);
        } else if let Some(position) = self.order.position(unit) {
            self.loose.insert(position);
        } else {
            self.on_demand.idle(unit, used);
        }
    }

    fn busy(&mut self, unit: UnitId) {
        self.forget_idle(unit);
    }

    fn absent(&mut self, units: &Units, unit: UnitId) {
        if self.residents.contains(unit) && !units.get(unit).given_up {
            self.missing.push_back(unit);
        }
        self.fetch_again(unit);
    }

    fn retried(&mut self, units: &Units, unit: UnitId) {
        self.absent(units, unit);
    }

    fn expected(&mut self, units: &Units, unit: UnitId) {
        match self.order.position(unit) {
            Some(position) => self.move_anchor(position),
            None => self.on_demand.announce(unit, units.get(unit).state),
        }
    }

    fn pump(&mut self, units: &mut Units, out: &mut Vec<WindowCommand>) {
        for index in 0..units.awaited().len() {
            let unit = units.awaited()[index];
            // A unit that is waited for comes first: if it has to wait for room, no other unit may take that room.
            if units.is_loadable(unit) && !self.load_now(units, unit, true, out) {
                return;
            }
        }
        while let Some(unit) = self.on_demand.next_announced(units) {
            if units.get(unit).state == UnitState::Evicting || !self.load_now(units, unit, false, out) {
                return;
            }
        }
        while self.load_next(units, out) {}
    }

    fn resident_bytes(&self) -> u64 {
        self.residents.bytes()
    }

    fn is_resident(&self, unit: UnitId) -> bool {
        self.residents.contains(unit)
    }

    fn check_invariants(&self, units: &Units) -> Result<(), String> {
        self.check(units)
    }
}

impl ResidentPlanner {
    /// Returns whether the unit, now idle, may keep its memory. A resident may keep its own bytes; a streamed unit may
    /// keep its slot if there are enough slots.
    fn stays_where_it_is(&self, units: &Units, unit: UnitId) -> bool {
        if units.get(unit).own {
            self.residents.contains(unit)
        } else {
            units.slots_used - units.slots_evicting <= self.residents.slots()
        }
    }

    fn evict(&mut self, units: &mut Units, unit: UnitId, out: &mut Vec<WindowCommand>) {
        self.forget_idle(unit);
        self.fetch_again(unit);
        units.evict(unit, out);
    }

    /// Removes the unit from the lists of units that may be evicted.
    fn forget_idle(&mut self, unit: UnitId) {
        match self.order.position(unit) {
            Some(position) => self.loose.remove(position),
            None => self.on_demand.forget(unit),
        }
    }

    /// Takes note that the unit is no longer present. A unit of the window is considered for loading again.
    fn fetch_again(&mut self, unit: UnitId) {
        if let Some(position) = self.order.position(unit)
            && !self.residents.contains(unit)
        {
            self.fetched = self.fetched.min(self.residents.streamed_between(self.anchor, position));
        }
    }

    fn move_anchor(&mut self, position: usize) {
        // After a jump past everything that was fetched, the whole window is considered again; going backward is a jump
        // almost all the way round.
        self.fetched = self.fetched.saturating_sub(self.residents.streamed_between(self.anchor, position));
        self.anchor = position;
    }

    fn is_in_window(&self, position: usize) -> bool {
        let Some(last) = self.residents.window_len().checked_sub(1) else { return false };
        let end = self.residents.streamed_from(self.anchor, last);
        self.order.distance(self.anchor, position) <= self.order.distance(self.anchor, end)
    }

    /// Loads the next unit ahead, or evicts a unit to make room for it. Returns false if there is nothing to do now.
    fn load_next(&mut self, units: &mut Units, out: &mut Vec<WindowCommand>) -> bool {
        let streamed = self.next_streamed(units);
        let missing = self.next_missing(units);
        let distance = |unit| self.order.position(unit).map(|position| self.order.distance(self.anchor, position));
        if let Some(position) = streamed
            && missing.and_then(distance).is_none_or(|missing| self.order.distance(self.anchor, position) < missing)
        {
            let progress = self.stream(units, position, out);
            if progress {
                return true;
            }
        }
        match missing {
            Some(unit) => {
                self.missing.pop_front();
                units.load(unit, true, out);
                true
            }
            None => false,
        }
    }

    /// Returns the position of the first unit of the window that is absent and may be loaded. Returns `None` if there
    /// is no such unit, or if the memory of a unit before it is still being given back.
    fn next_streamed(&mut self, units: &Units) -> Option<usize> {
        while self.fetched < self.residents.window_len() {
            let position = self.residents.streamed_from(self.anchor, self.fetched);
            let unit = self.order.unit(position);
            if units.get(unit).state == UnitState::Evicting {
                return None;
            }
            if units.is_loadable(unit) {
                return Some(position);
            }
            self.fetched += 1;
        }
        None
    }

    /// Returns the first resident that is absent, if it may be loaded now.
    fn next_missing(&mut self, units: &Units) -> Option<UnitId> {
        while let Some(&unit) = self.missing.front() {
            if units.is_loadable(unit) && self.residents.contains(unit) {
                let may = units.own_in_flight < self.stream_slots && self.has_own_room(units, unit);
                return may.then_some(unit);
            }
            self.missing.pop_front();
        }
        None
    }

    /// Loads the unit at `position` into a slot, or evicts a unit that is needed later to make room. Returns false if
    /// neither is possible.
    fn stream(&mut self, units: &mut Units, position: usize, out: &mut Vec<WindowCommand>) -> bool {
        if self.has_slot(units) {
            units.load(self.order.unit(position), false, out);
            self.fetched += 1;
            return true;
        }
        if self.slot_is_coming(units) {
            return false;
        }
        let victim = self.on_demand.victim(false).or_else(|| {
            let farthest = self.loose.last_before(self.anchor)?;
            let farther = self.order.distance(self.anchor, farthest) > self.order.distance(self.anchor, position);
            farther.then(|| self.order.unit(farthest))
        });
        if let Some(victim) = victim {
            self.evict(units, victim, out);
        }
        victim.is_some()
    }

    /// Loads a unit that cannot wait for its turn. If a caller waits for it (`awaited`), any unit that is not in use
    /// may be evicted for it. Returns false if the unit has to wait until memory is given back.
    fn load_now(&mut self, units: &mut Units, unit: UnitId, awaited: bool, out: &mut Vec<WindowCommand>) -> bool {
        let bytes = units.get(unit).bytes;
        let resident = self.residents.contains(unit);
        if resident && self.has_own_room(units, unit) {
            units.load(unit, true, out);
            return true;
        }
        // Without slots, every unit is a resident; there is room as soon as the units kept from an earlier budget are
        // gone.
        let own = self.residents.slots() == 0;
        loop {
            let fits = if own { units.bytes_held() + bytes <= units.budget } else { self.has_slot(units) };
            if fits {
                units.load(unit, own, out);
                return true;
            }
            let coming = if own { units.bytes_staying() + bytes <= units.budget } else { self.slot_is_coming(units) };
            if coming {
                return false;
            }
            let mut victim = self
                .on_demand
                .victim(false)
                .or_else(|| self.loose.last_before(self.anchor).map(|at| self.order.unit(at)));
            if awaited {
                let short_of_bytes = own || units.slots_used - units.slots_evicting < self.residents.slots();
                victim = victim
                    .or_else(|| self.on_demand.victim(true))
                    .or_else(|| self.idle_resident(units).filter(|_| short_of_bytes))
                    .or_else(|| units.last_resort());
            }
            match victim {
                Some(victim) => self.evict(units, victim, out),
                None => return false,
            }
        }
    }

    /// Returns the idle resident that is needed last. This is called only while a smaller budget takes effect, so a
    /// linear search is fine.
    fn idle_resident(&self, units: &Units) -> Option<UnitId> {
        let (before, after) = self.order.units().split_at(self.anchor);
        let backward = before.iter().rev().chain(after.iter().rev()).copied();
        self.order.on_demand().chain(backward).find(|unit| units.is_idle(*unit))
    }

    fn has_own_room(&self, units: &Units, unit: UnitId) -> bool {
        let bytes = units.get(unit).bytes;
        units.own_bytes + bytes + self.residents.slot_bytes(units) <= units.budget
            && units.bytes_held() + bytes <= units.budget
    }

    fn has_slot(&self, units: &Units) -> bool {
        units.slots_used < self.residents.slots() && units.bytes_held() + units.slot_bytes <= units.budget
    }

    /// Returns whether a slot will be free once the evictions in flight are done.
    fn slot_is_coming(&self, units: &Units) -> bool {
        units.slots_used - units.slots_evicting < self.residents.slots()
            && units.bytes_staying() + units.slot_bytes <= units.budget
    }

    fn check(&self, units: &Units) -> Result<(), String> {
        let (bytes, slots) = (self.residents.bytes(), self.residents.slots());
        if bytes != self.residents.counted_bytes(units) || bytes + self.residents.slot_bytes(units) > units.budget {
            return Err(format!("{bytes} bytes of residents beside {slots} slots"));
        }
        for unit in (0..units.len() as u32).map(UnitId) {
            let listed = match self.order.position(unit) {
                Some(position) => self.loose.contains(position),
                None => self.on_demand.is_idle(unit),
            };
            let idle_in_slot = units.is_idle(unit) && !units.get(unit).own;
            if listed != idle_in_slot {
                return Err(format!("{unit:?}: listed as idle: {listed}, idle in a slot: {idle_in_slot}"));
            }
            if units.is_idle(unit) && !self.stays_where_it_is(units, unit) {
                return Err(format!("{unit:?} lingers where it should not be"));
            }
        }
        for ahead in 0..self.fetched.min(self.residents.window_len()) {
            let unit = self.order.unit(self.residents.streamed_from(self.anchor, ahead));
            if units.is_loadable(unit) || units.get(unit).state == UnitState::Evicting {
                return Err(format!("{unit:?} counts as fetched but is {:?}", units.get(unit).state));
            }
        }
        Ok(())
    }
}

//! Policy `resident`: a fixed subset stays, the rest streams through a few slots (W13).
//!
//! A pass acquires units in a cycle. Whatever is evicted must come back before the cycle is over, so no choice reads less
//! than what does not fit; keeping always the same units reaches that, and leaves nothing to decide while it runs. The
//! anchor is the place in the order where the next acquisition is expected. The window is the next streamed units from
//! there on, as many as there are slots, straight over the end of the pass (W8). A streamed unit that was used goes at
//! once, for it is needed again last of all; its slot takes the next one.

use std::collections::VecDeque;

use super::config::{ResidentConfig, UnitId, WindowError};
use super::list::UnitList;
use super::order::Order;
use super::planner::Planner;
use super::spread::spread;
use super::units::{Command, UnitState, Units};

#[derive(Debug)]
pub(super) struct ResidentPlanner {
    order: Order,
    /// Slots while the order streams.
    stream_slots: usize,
    /// Slots now.
    slots: usize,
    /// By unit: whether it is to stay.
    resident: Vec<bool>,
    resident_bytes: u64,
    /// Positions of the units that do not stay, ascending.
    streamed: Vec<u32>,
    /// By position: how many entries of `streamed` lie before it. One entry more than there are positions.
    rank: Vec<u32>,
    anchor: usize,
    /// The first so many streamed units from the anchor on are present or on their way, or were given up.
    fetched: usize,
    /// Positions of idle units in slots, ascending.
    loose: Vec<u32>,
    /// Units that are to stay and may still have to be loaded, in the order of their use.
    missing: VecDeque<UnitId>,
    /// Units on demand that were announced and may still have to be loaded.
    announced: VecDeque<UnitId>,
    /// Idle units on demand that were announced and not yet used, oldest first.
    ready: UnitList,
    /// Idle units on demand otherwise, least recently used first.
    unused: UnitList,
}

impl ResidentPlanner {
    pub fn new(config: ResidentConfig, order: Order, units: &Units) -> Result<Self, WindowError> {
        if config.stream_slots == 0 {
            return Err(WindowError::Zero { setting: "the number of stream slots" });
        }
        Ok(Self {
            stream_slots: config.stream_slots,
            slots: config.stream_slots,
            resident: vec![false; units.len()],
            resident_bytes: 0,
            streamed: Vec::new(),
            rank: vec![0; order.len() + 1],
            anchor: 0,
            fetched: 0,
            loose: Vec::new(),
            missing: VecDeque::new(),
            announced: VecDeque::new(),
            ready: UnitList::new(units.len()),
            unused: UnitList::new(units.len()),
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

    fn plan(&mut self, units: &mut Units, out: &mut Vec<Command>) {
        self.choose_residents(units);
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
        self.missing.extend(all.filter(|&unit| self.resident[unit.index()] && units.is_loadable(unit)));
    }

    fn wanted(&mut self, _units: &Units, unit: UnitId) {
        if let Some(position) = self.order.position(unit) {
            self.move_anchor(position);
        }
    }

    fn acquired(&mut self, _units: &Units, unit: UnitId) {
        self.forget_idle(unit);
        if let Some(position) = self.order.position(unit) {
            self.move_anchor(self.order.next(position));
        }
    }

    fn idle(&mut self, units: &mut Units, unit: UnitId, used: bool, out: &mut Vec<Command>) {
        let goes = match self.order.position(unit) {
            _ if !self.stays_where_it_is(units, unit) => true,
            _ if units.get(unit).own => return,
            Some(position) => used && (self.resident[unit.index()] || !self.is_in_window(position)),
            None => false,
        };
        if goes {
            self.evict(units, unit, out);
        } else if let Some(position) = self.order.position(unit) {
            let place = self.loose.partition_point(|&other| other < position as u32);
            self.loose.insert(place, position as u32);
        } else if used {
            self.unused.push_last(unit);
        } else {
            self.ready.push_last(unit);
            // Announcements that nobody follows must not fill the slots.
            if self.ready.len() > (self.slots / 2).max(1)
                && let Some(oldest) = self.ready.first()
            {
                self.ready.remove(oldest);
                self.unused.push_last(oldest);
            }
        }
    }

    fn absent(&mut self, units: &Units, unit: UnitId) {
        if self.resident[unit.index()] && !units.get(unit).given_up {
            self.missing.push_back(unit);
        }
        self.fetch_again(unit);
    }

    fn expected(&mut self, units: &Units, unit: UnitId) {
        match self.order.position(unit) {
            Some(position) => self.move_anchor(position),
            None if units.get(unit).state == UnitState::Present => {
                // Announced again: it moves to where it is evicted last.
                if self.unused.remove(unit) {
                    self.ready.push_last(unit);
                }
            }
            None if self.announced.len() < self.slots && !self.announced.contains(&unit) => {
                self.announced.push_back(unit);
            }
            None => {}
        }
    }

    fn pump(&mut self, units: &mut Units, out: &mut Vec<Command>) {
        for index in 0..units.awaited().len() {
            let unit = units.awaited()[index];
            // What is waited for comes first: if it has to wait for room, the others do not take the room away.
            if units.is_loadable(unit) && !self.load_now(units, unit, true, out) {
                return;
            }
        }
        while let Some(&unit) = self.announced.front() {
            let evicting = units.get(unit).state == UnitState::Evicting;
            if evicting || (units.is_loadable(unit) && !self.load_now(units, unit, false, out)) {
                return;
            }
            self.announced.pop_front();
        }
        while self.load_next(units, out) {}
    }

    fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    fn is_resident(&self, unit: UnitId) -> bool {
        self.resident[unit.index()]
    }

    fn check_invariants(&self, units: &Units) -> Result<(), String> {
        self.check(units)
    }
}

impl ResidentPlanner {
    /// Bytes that residents leave to the slots.
    fn slot_reserve(&self, units: &Units) -> u64 {
        self.slots as u64 * units.slot_bytes
    }

    /// Whether the unit's memory is of the kind that it should be in, now that it is idle.
    fn stays_where_it_is(&self, units: &Units, unit: UnitId) -> bool {
        if units.get(unit).own {
            self.resident[unit.index()]
        } else {
            units.slots_used - units.slots_evicting <= self.slots
        }
    }

    fn evict(&mut self, units: &mut Units, unit: UnitId, out: &mut Vec<Command>) {
        self.forget_idle(unit);
        self.fetch_again(unit);
        units.evict(unit, out);
    }

    /// Takes the unit out of the lists of those that may be evicted.
    fn forget_idle(&mut self, unit: UnitId) {
        match self.order.position(unit) {
            Some(position) => {
                if let Ok(place) = self.loose.binary_search(&(position as u32)) {
                    self.loose.remove(place);
                }
            }
            None => {
                let _ = self.unused.remove(unit) || self.ready.remove(unit);
            }
        }
    }

    /// The unit is no longer there: if it is in the window, it is looked at again.
    fn fetch_again(&mut self, unit: UnitId) {
        if let Some(position) = self.order.position(unit)
            && !self.resident[unit.index()]
        {
            let ahead = self.streamed_ahead(position);
            self.fetched = self.fetched.min(ahead);
        }
    }

    /// How many streamed units a pass acquires before it comes to `position`.
    fn streamed_ahead(&self, position: usize) -> usize {
        let (from, to) = (self.rank[self.anchor] as usize, self.rank[position] as usize);
        let ahead = if to >= from { to - from } else { to + self.streamed.len() - from };
        if ahead >= self.streamed.len() { 0 } else { ahead }
    }

    fn move_anchor(&mut self, position: usize) {
        let ahead = self.streamed_ahead(position);
        let wrapped = ahead == 0 && position < self.anchor;
        // After a jump forward over all that was fetched, or backward, everything is looked at again.
        self.fetched = if wrapped { 0 } else { self.fetched.saturating_sub(ahead) };
        self.anchor = position;
    }

    /// The number of streamed units in the window.
    fn window_len(&self) -> usize {
        self.slots.min(self.streamed.len())
    }

    /// The position of a streamed unit, counted from the anchor.
    fn streamed_position(&self, ahead: usize) -> usize {
        self.streamed[(self.rank[self.anchor] as usize + ahead) % self.streamed.len()] as usize
    }

    fn is_in_window(&self, position: usize) -> bool {
        self.window_len() > 0
            && self.order.distance(self.anchor, position)
                <= self.order.distance(self.anchor, self.streamed_position(self.window_len() - 1))
    }

    /// Loads the next unit ahead, or evicts something for it. False if there is nothing to do now.
    fn load_next(&mut self, units: &mut Units, out: &mut Vec<Command>) -> bool {
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

    /// The first unit of the window that is not there, unless its memory is just being given back.
    fn next_streamed(&mut self, units: &Units) -> Option<usize> {
        while self.fetched < self.window_len() {
            let position = self.streamed_position(self.fetched);
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

    /// The first resident that is not there, if it may be loaded now.
    fn next_missing(&mut self, units: &Units) -> Option<UnitId> {
        while let Some(&unit) = self.missing.front() {
            if units.is_loadable(unit) && self.resident[unit.index()] {
                let may = units.own_in_flight < self.stream_slots && self.has_own_room(units, unit);
                return may.then_some(unit);
            }
            self.missing.pop_front();
        }
        None
    }

    /// Loads the unit at `position` into a slot, or evicts one for it that is needed later. False if neither is possible.
    fn stream(&mut self, units: &mut Units, position: usize, out: &mut Vec<Command>) -> bool {
        if self.has_slot(units) {
            units.load(self.order.unit(position), false, out);
            self.fetched += 1;
            return true;
        }
        if self.slot_is_coming(units) {
            return false;
        }
        let victim = self.unused.first().or_else(|| {
            let farthest = self.farthest_loose()?;
            let farther = self.order.distance(self.anchor, farthest) > self.order.distance(self.anchor, position);
            farther.then(|| self.order.unit(farthest))
        });
        if let Some(victim) = victim {
            self.evict(units, victim, out);
        }
        victim.is_some()
    }

    /// Loads a unit that cannot wait its turn, evicting for it whatever is not in use if it is `awaited`. False if it has
    /// to wait for memory that is on its way back.
    fn load_now(&mut self, units: &mut Units, unit: UnitId, awaited: bool, out: &mut Vec<Command>) -> bool {
        let bytes = units.get(unit).bytes;
        let resident = self.resident[unit.index()];
        if resident && self.has_own_room(units, unit) {
            units.load(unit, true, out);
            return true;
        }
        // Without slots everything is to stay; there is room as soon as what lingers from an earlier budget has gone.
        let own = self.slots == 0;
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
            let mut victim = self.unused.first().or_else(|| self.farthest_loose().map(|at| self.order.unit(at)));
            if awaited {
                let short_of_bytes = own || units.slots_used - units.slots_evicting < self.slots;
                victim = victim
                    .or_else(|| self.ready.first())
                    .or_else(|| last_resort(units, &self.order, self.anchor, short_of_bytes));
            }
            match victim {
                Some(victim) => self.evict(units, victim, out),
                None => return false,
            }
        }
    }

    fn has_own_room(&self, units: &Units, unit: UnitId) -> bool {
        let bytes = units.get(unit).bytes;
        units.own_bytes + bytes + self.slot_reserve(units) <= units.budget && units.bytes_held() + bytes <= units.budget
    }

    fn has_slot(&self, units: &Units) -> bool {
        units.slots_used < self.slots && units.bytes_held() + units.slot_bytes <= units.budget
    }

    /// Whether a slot will be free once the evictions under way are done.
    fn slot_is_coming(&self, units: &Units) -> bool {
        units.slots_used - units.slots_evicting < self.slots && units.bytes_staying() + units.slot_bytes <= units.budget
    }

    /// The idle unit of the order that is needed last: the one just behind the anchor.
    fn farthest_loose(&self) -> Option<usize> {
        let behind = self.loose.partition_point(|&position| (position as usize) < self.anchor);
        let place = behind.checked_sub(1).or_else(|| self.loose.len().checked_sub(1))?;
        Some(self.loose[place] as usize)
    }

    fn choose_residents(&mut self, units: &Units) {
        let bytes_of = |unit: UnitId| units.get(unit).bytes;
        let everything: u64 = units.all().iter().map(|unit| unit.bytes).sum();
        let bytes: Vec<u64> = self.order.units().iter().map(|&unit| bytes_of(unit)).collect();
        let ordered: u64 = bytes.iter().sum();
        let num_on_demand = units.len() - self.order.len();
        self.slots = self.stream_slots;
        let room = units.budget.saturating_sub(self.slot_reserve(units));
        if everything <= units.budget {
            self.resident.fill(true);
            self.slots = 0;
        } else {
            let mut chosen: Vec<bool> = self.order.units().iter().map(|unit| self.resident[unit.index()]).collect();
            spread(&bytes, room, &mut chosen);
            self.resident.fill(false);
            for (unit, chosen) in self.order.units().iter().zip(chosen) {
                self.resident[unit.index()] = chosen;
            }
            if ordered <= room {
                // All that a pass is sure to need stays; the rest of the memory keeps units on demand.
                let more = ((room - ordered) / units.slot_bytes) as usize;
                self.slots = (self.stream_slots + more).min(num_on_demand.max(self.stream_slots));
            }
        }
        self.resident_bytes =
            (0..units.len() as u32).map(UnitId).filter(|unit| self.resident[unit.index()]).map(bytes_of).sum();
        self.streamed.clear();
        for (position, unit) in self.order.units().iter().enumerate() {
            self.rank[position] = self.streamed.len() as u32;
            if !self.resident[unit.index()] {
                self.streamed.push(position as u32);
            }
        }
        self.rank[self.order.len()] = self.streamed.len() as u32;
    }

    fn check(&self, units: &Units) -> Result<(), String> {
        let ids = || (0..units.len() as u32).map(UnitId);
        let bytes: u64 = ids().filter(|unit| self.resident[unit.index()]).map(|unit| units.get(unit).bytes).sum();
        if bytes != self.resident_bytes || bytes + self.slot_reserve(units) > units.budget {
            return Err(format!(
                "{} bytes of residents, {bytes} counted, and {} slots",
                self.resident_bytes, self.slots
            ));
        }
        for unit in ids() {
            let listed = match self.order.position(unit) {
                Some(position) => self.loose.binary_search(&(position as u32)).is_ok(),
                None => self.unused.contains(unit) || self.ready.contains(unit),
            };
            let idle_in_slot = units.is_idle(unit) && !units.get(unit).own;
            if listed != idle_in_slot {
                return Err(format!("{unit:?}: listed as idle: {listed}, idle in a slot: {idle_in_slot}"));
            }
            if units.is_idle(unit) && !self.stays_where_it_is(units, unit) {
                return Err(format!("{unit:?} lingers where it should not be"));
            }
        }
        if !self.loose.is_sorted() {
            return Err(format!("idle positions are out of order: {:?}", self.loose));
        }
        for ahead in 0..self.fetched.min(self.window_len()) {
            let unit = self.order.unit(self.streamed_position(ahead));
            if units.is_loadable(unit) || units.get(unit).state == UnitState::Evicting {
                return Err(format!("{unit:?} counts as fetched but is {:?}", units.get(unit).state));
            }
        }
        Ok(())
    }
}

/// Something idle although it is to stay, or waited for by somebody who seems to have given up. Only reached when nothing
/// else can make room: while a smaller budget takes effect, or after a wait that was abandoned.
fn last_resort(units: &Units, order: &Order, anchor: usize, short_of_bytes: bool) -> Option<UnitId> {
    if short_of_bytes {
        let (before, after) = order.units().split_at(anchor);
        let on_demand: Vec<UnitId> = order.on_demand().collect();
        let idle =
            on_demand.iter().chain(before.iter().rev()).chain(after.iter().rev()).find(|unit| units.is_idle(**unit));
        if let Some(&unit) = idle {
            return Some(unit);
        }
    }
    let nothing_comes = units.in_flight == 0 && units.bytes_held() == units.bytes_staying();
    let waited_for = |unit: &&UnitId| units.get(**unit).state == UnitState::Present && units.get(**unit).users == 0;
    if nothing_comes { units.awaited().iter().find(waited_for).copied() } else { None }
}

//! Policy `ring`: a window that slides with the pass.
//!
//! Every unit that a pass leaves behind is dropped, so if not all units fit, a pass reads all of them; `resident` is
//! the default for that reason. Load requests wait in a bounded queue and are dispatched in order. Each request carries
//! the epoch in which it was made. A jump begins a new epoch, in which all units are asked for again; requests of older
//! epochs are dropped when their turn comes.

mod check;
mod span;

use std::collections::VecDeque;

use super::error::WindowError;
use super::layers::Layers;
use super::on_demand::OnDemand;
use super::order::Order;
use super::planner::Planner;
use super::positions::PositionSet;
use super::ring_config::{Reach, RingConfig};
use super::unit_id::UnitId;
use super::units::{UnitState, Units, WindowCommand};

/// Reason why a unit is loaded, which decides what may be evicted for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Urgency {
    /// A caller waits for the unit. Any unit that is not in use may be evicted for it. Only the limits on bytes and on
    /// the number of units apply.
    Awaited,
    /// The unit was announced as needed next. Any idle unit may be evicted for it, except announced units and units
    /// just behind the pass.
    Announced,
    /// The unit lies ahead of the pass. Only idle units that are needed later, or on-demand units that are not
    /// announced, may be evicted for it.
    Ahead,
}

#[derive(Debug)]
pub(super) struct RingPlanner {
    config: RingConfig,
    order: Order,
    layers: Layers,
    /// Position in the order where the pass is.
    current: usize,
    epoch: u64,
    /// Load requests in the order of their dispatch, with their epochs.
    queue: VecDeque<(u64, UnitId)>,
    /// Epoch of each unit's last request in the queue, or 0 if there is none.
    queued: Vec<u64>,
    /// Number of positions from the current one on that were asked for; used with [`Reach::Layers`] only.
    asked: usize,
    /// Positions of idle units.
    idle: PositionSet,
    on_demand: OnDemand,
    /// Number of units of each layer that hold memory.
    held_of_layer: Vec<u32>,
    layers_held: usize,
    /// Number of requests for which the queue was full.
    refused: u64,
    /// Whether no pass has begun yet; only as much is fetched then as the warm-up allows.
    warming: bool,
}

impl RingPlanner {
    pub fn new(config: RingConfig, order: Order, units: &Units) -> Result<Self, WindowError> {
        config.check(order.len())?;
        let layers = Layers::new(&config.layers, order.len());
        Ok(Self {
            queue: VecDeque::with_capacity(config.queue_max.min(units.len())),
            queued: vec![0; units.len()],
            idle: PositionSet::new(order.len()),
            on_demand: OnDemand::new(units.len(), config.in_flight_max),
            held_of_layer: vec![0; layers.count()],
            layers_held: 0,
            refused: 0,
            warming: true,
            current: 0,
            epoch: 1,
            asked: 0,
            config,
            order,
            layers,
        })
    }
}

impl Planner for RingPlanner {
    /// Returns the bytes of two units of the largest size, or of all units if that is less: one unit is in use while
    /// the next one arrives.
    fn least_budget(&self, units: &Units) -> Result<u64, WindowError> {
        let everything: u64 = units.all().iter().map(|unit| self.cost(units, unit.bytes)).sum();
        Ok(everything.min(2 * units.slot_bytes))
    }

    fn concurrent_max(&self, units: &Units) -> usize {
        let most = usize::try_from(units.budget / units.slot_bytes.max(1)).unwrap_or(usize::MAX);
        most.min(self.config.units_max).max(1)
    }

    fn slots(&self, units: &Units) -> usize {
        if self.config.slots { self.concurrent_max(units) } else { 0 }
    }

    fn set_order(&mut self, order: Order, units: &Units) {
        let names: Vec<u32> =
            if self.config.layers.len() == order.len() { std::mem::take(&mut self.config.layers) } else { Vec::new() };
        self.layers = Layers::new(&names, order.len());
        self.config.layers = names;
        self.held_of_layer = vec![0; self.layers.count()];
        for position in 0..order.len() {
            let held = units.get(order.unit(position)).state != UnitState::Absent;
            self.held_of_layer[self.layers.layer_of(position)] += u32::from(held);
        }
        self.layers_held = self.held_of_layer.iter().filter(|held| **held > 0).count();
        self.idle = PositionSet::new(order.len());
        self.on_demand = OnDemand::new(units.len(), self.config.in_flight_max);
        self.queue.clear();
        self.queued.fill(0);
        (self.current, self.asked) = (0, 0);
        self.order = order;
    }

    fn plan(&mut self, units: &mut Units, out: &mut Vec<WindowCommand>) {
        while units.bytes_staying() > units.budget {
            let Some(victim) = self.on_demand.victim(true).or_else(|| self.farthest_idle()) else { return };
            self.evict(units, victim, out);
        }
    }

    fn start(&mut self, units: &Units) {
        if matches!(self.config.reach, Reach::Units { .. }) && self.order.len() > 0 {
            for position in 0..self.fetch_len() {
                self.ask(units, self.order.unit(position));
            }
        }
    }

    fn wanted(&mut self, units: &Units, unit: UnitId) {
        if let Some(position) = self.order.position(unit) {
            self.move_to(units, position);
        }
    }

    fn acquired(&mut self, units: &Units, unit: UnitId, waited: bool) {
        self.forget_idle(unit);
        if let Some(position) = self.order.position(unit).filter(|_| !waited) {
            self.move_to(units, position);
        }
    }

    fn idle(&mut self, units: &mut Units, unit: UnitId, used: bool, out: &mut Vec<WindowCommand>) {
        match self.order.position(unit) {
            Some(position) if units.bytes_staying() > units.budget || !self.keeps(position) => {
                self.evict(units, unit, out)
            }
            Some(position) => self.idle.insert(position),
            None if units.bytes_staying() > units.budget => self.evict(units, unit, out),
            None => self.on_demand.idle(unit, used),
        }
    }

    fn busy(&mut self, unit: UnitId) {
        self.forget_idle(unit);
    }

    fn absent(&mut self, units: &Units, unit: UnitId) {
        if let Some(position) = self.order.position(unit) {
            let layer = self.layers.layer_of(position);
            self.held_of_layer[layer] -= 1;
            self.layers_held -= usize::from(self.held_of_layer[layer] == 0);
            self.ask_again(units, unit, position);
        }
    }

    fn retried(&mut self, units: &Units, unit: UnitId) {
        if let Some(position) = self.order.position(unit) {
            self.ask_again(units, unit, position);
        }
    }

    fn expected(&mut self, units: &Units, unit: UnitId) {
        match self.order.position(unit) {
            Some(position) => self.move_to(units, position),
            None => self.on_demand.announce(unit, units.get(unit).state),
        }
    }

    fn pump(&mut self, units: &mut Units, out: &mut Vec<WindowCommand>) {
        units.counters.requests_refused += std::mem::take(&mut self.refused);
        self.drop_what_was_left(units, out);
        for index in 0..units.awaited().len() {
            let unit = units.awaited()[index];
            if units.is_loadable(unit) && !self.load(units, unit, Urgency::Awaited, out) {
                return;
            }
        }
        while let Some(unit) = self.on_demand.next_announced(units) {
            if units.get(unit).state == UnitState::Evicting || !self.load(units, unit, Urgency::Announced, out) {
                return;
            }
        }
        loop {
            self.ask_ahead(units);
            let Some(&(epoch, unit)) = self.queue.front() else { return };
            let in_reach = self.order.position(unit).is_some_and(|position| self.is_in_reach(position));
            if epoch != self.epoch || !in_reach {
                units.counters.requests_stale += 1;
            } else if units.is_loadable(unit) {
                if units.in_flight >= self.config.in_flight_max {
                    return;
                }
                if !self.load(units, unit, Urgency::Ahead, out) {
                    // Layers are queued in the order of their use, so the requests behind this one can wait. Units may
                    // be queued behind others that are needed later, so this request is dropped; it is made again at
                    // the next step.
                    if units.evicting > 0 || matches!(self.config.reach, Reach::Layers { .. }) {
                        return;
                    }
                    units.counters.requests_refused += 1;
                }
            }
            self.queue.pop_front();
            if self.queued[unit.index()] == epoch {
                self.queued[unit.index()] = 0;
            }
        }
    }

    fn resident_bytes(&self) -> u64 {
        0
    }

    fn is_resident(&self, _unit: UnitId) -> bool {
        false
    }

    fn check_invariants(&self, units: &Units) -> Result<(), String> {
        self.check(units)
    }
}

impl RingPlanner {
    fn cost(&self, units: &Units, bytes: u64) -> u64 {
        if self.config.slots { units.slot_bytes } else { bytes }
    }

    fn evict(&mut self, units: &mut Units, unit: UnitId, out: &mut Vec<WindowCommand>) {
        self.forget_idle(unit);
        units.evict(unit, out);
    }

    fn forget_idle(&mut self, unit: UnitId) {
        match self.order.position(unit) {
            Some(position) => self.idle.remove(position),
            None => self.on_demand.forget(unit),
        }
    }

    /// Takes note that the pass is at `position` now, and asks for the units that follow from this.
    fn move_to(&mut self, units: &Units, position: usize) {
        let steps = self.order.distance(self.current, position);
        if steps == 0 && !self.warming {
            return;
        }
        if steps >= self.reach_len() {
            // A jump: what was asked for on the old path is stale from now on.
            self.epoch += 1;
        }
        self.warming = false;
        self.asked = self.asked.saturating_sub(steps);
        self.current = position;
        if let Reach::Units { pair, depth_layers, ahead_units } = self.config.reach {
            let layer = self.layers.layer_of(position);
            let own = self.layers.positions(layer);
            if pair {
                (position + 1..own.end).for_each(|next| self.ask(units, self.order.unit(next)));
            }
            for further in 1..=depth_layers.min(self.layers.count() - 1) {
                let counterpart = self.layers.positions(layer + further).nth(position - own.start);
                counterpart.into_iter().for_each(|next| self.ask(units, self.order.unit(next)));
            }
            let mut next = position;
            for _ in 0..ahead_units.min(self.order.len() - 1) {
                next = self.order.next(next);
                self.ask(units, self.order.unit(next));
            }
        }
    }

    /// Asks for as much of the window as the queue has room for, if the reach is [`Reach::Layers`].
    fn ask_ahead(&mut self, units: &mut Units) {
        if matches!(self.config.reach, Reach::Units { .. }) || self.order.len() == 0 {
            return;
        }
        let end = self.fetch_len();
        while self.asked < end && self.queue.len() < self.config.queue_max {
            let position = (self.current + self.asked) % self.order.len();
            self.ask(units, self.order.unit(position));
            self.asked += 1;
        }
    }

    /// Queues a request, if the unit is absent and has no request of this epoch.
    fn ask(&mut self, units: &Units, unit: UnitId) {
        if units.is_loadable(unit) && self.queued[unit.index()] != self.epoch {
            if self.queue.len() < self.config.queue_max {
                self.queued[unit.index()] = self.epoch;
                self.queue.push_back((self.epoch, unit));
            } else {
                self.refused += 1;
            }
        }
    }

    /// Takes note that the unit at `position` is absent, and asks for it again if it is in reach.
    fn ask_again(&mut self, units: &Units, unit: UnitId, position: usize) {
        self.asked = self.asked.min(self.order.distance(self.current, position));
        if matches!(self.config.reach, Reach::Units { .. }) && self.is_in_reach(position) && !self.warming {
            self.ask(units, unit);
        }
    }

    /// Returns the idle unit of the order that is needed last, wherever it lies.
    fn farthest_idle(&self) -> Option<UnitId> {
        self.idle.last_before(self.current).map(|position| self.order.unit(position))
    }

    /// Returns the position of the idle unit that is needed last, if that is more than `steps` steps away and not just
    /// behind the pass.
    fn victim_after(&self, steps: usize) -> Option<usize> {
        let farthest = self.idle.last_before(self.first_kept())?;
        let later = self.order.distance(self.current, farthest) > steps;
        (later && !self.is_just_behind(farthest)).then_some(farthest)
    }

    /// Evicts the units that the pass has left. Those units lie just before the first position that is kept.
    fn drop_what_was_left(&mut self, units: &mut Units, out: &mut Vec<WindowCommand>) {
        if self.order.len() == 0 {
            return;
        }
        while let Some(position) = self.idle.last_before(self.first_kept()).filter(|&position| !self.keeps(position)) {
            self.evict(units, self.order.unit(position), out);
        }
    }

    /// Loads the unit, and evicts what its urgency permits. Returns false if the unit has to wait.
    fn load(&mut self, units: &mut Units, unit: UnitId, urgency: Urgency, out: &mut Vec<WindowCommand>) -> bool {
        let cost = self.cost(units, units.get(unit).bytes);
        let position = self.order.position(unit);
        let steps = position.map_or(0, |position| self.order.distance(self.current, position));
        let layer = position.map(|position| self.layers.layer_of(position));
        if urgency == Urgency::Ahead
            && layer.is_some_and(|layer| self.held_of_layer[layer] == 0)
            && self.layers_held >= self.config.high_water_layers
        {
            self.clean(units, steps, out);
            return false;
        }
        loop {
            if units.bytes_held() + cost <= units.budget && units.held < self.config.units_max {
                units.load(unit, !self.config.slots, out);
                if let Some(layer) = layer {
                    self.layers_held += usize::from(self.held_of_layer[layer] == 0);
                    self.held_of_layer[layer] += 1;
                }
                return true;
            }
            let staying = units.held - units.evicting;
            if units.bytes_staying() + cost <= units.budget && staying < self.config.units_max {
                return false;
            }
            let victim = self.on_demand.victim(urgency == Urgency::Awaited).or_else(|| {
                let later = self.order.len() > 0;
                let later = later.then(|| self.victim_after(steps).map(|position| self.order.unit(position))).flatten();
                match urgency {
                    Urgency::Awaited => later.or_else(|| self.farthest_idle()).or_else(|| units.last_resort()),
                    Urgency::Announced | Urgency::Ahead => later,
                }
            });
            match victim {
                Some(victim) => self.evict(units, victim, out),
                None => return false,
            }
        }
    }

    /// Evicts the farthest layers down to the low water mark, as far as they are needed more than `steps` steps from
    /// now.
    fn clean(&mut self, units: &mut Units, steps: usize, out: &mut Vec<WindowCommand>) {
        if units.evicting > 0 {
            return;
        }
        for _ in self.config.low_water_layers..self.layers_held {
            let Some(position) = self.victim_after(steps) else { return };
            for position in self.layers.positions(self.layers.layer_of(position)) {
                if self.idle.contains(position) {
                    self.evict(units, self.order.unit(position), out);
                }
            }
        }
    }
}

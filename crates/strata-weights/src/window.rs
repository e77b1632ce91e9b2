//! The window: which units of weights are in a tier of memory, and which come and go.
//!
//! A pure state machine: what happened goes in, what is to be done comes out, and nothing is read, waited for or timed
//! here. The same code runs over the real driver, over tests' drivers that fail on purpose, and over the simulated one
//! with which `strata plan` predicts (`strata-sim`).
//!
//! **Whose memory.** From [`WindowCommand::Load`] until `evicted`, `load_failed` or `allocation_failed` is taken for
//! it, the unit's memory counts against the budget and belongs to the load that the ticket names. Loads are never given
//! up by the window, so each is to be answered exactly once. An answer with another ticket, or a second one, is stale:
//! it returns false and changes nothing; whatever memory the driver set aside for *that* ticket is the driver's to
//! free.
//!
//! **Waits end.** As long as every command is answered and no more units are in use or waited for at a time than the
//! policy allows, a unit that is waited for is present or has failed after finitely many answers.

mod check;
mod config;
mod counters;
mod credits;
mod error;
mod layers;
mod list;
mod on_demand;
mod order;
mod planner;
mod positions;
mod resident;
mod residents;
mod ring;
mod ring_config;
mod spread;
mod tiers;
mod unit_id;
mod units;

pub use config::{Policy, ResidentConfig, WindowConfig};
pub use counters::WindowCounters;
pub use credits::{Credits, Phase};
pub use error::WindowError;
pub use ring_config::{Reach, RingConfig};
pub use tiers::{TierCommand, TierConfig, Tiers, TiersConfig};
pub use unit_id::UnitId;
pub use units::{UnitState, WindowCommand};

use order::Order;
use planner::Planner;
use resident::ResidentPlanner;
use ring::RingPlanner;
use units::Units;

/// What became of a wish to use a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Acquired {
    /// It is there and in use, until it is released as often as it was acquired.
    Ready,
    /// It is coming. Ask again after the next report to the window, or call [`Window::stop_waiting`].
    Pending,
    /// Its load was tried as often as the configuration allows. Nobody waits for it any more; the next acquisition
    /// tries anew.
    Failed,
}

/// One tier's window. Methods append what is to be done to `out`; the order of commands is the order of urgency.
#[derive(Debug)]
pub struct Window {
    units: Units,
    planner: Box<dyn Planner>,
    load_attempts: u32,
    started: bool,
}

impl Window {
    /// A window in which nothing is loaded yet.
    ///
    /// # Errors
    /// [`WindowError`]: a unit is empty, unknown or named twice, a setting is 0, or the budget is too small; the error
    /// names the least that works.
    pub fn new(config: WindowConfig) -> Result<Self, WindowError> {
        let num_units = config.unit_bytes.len();
        let order = Order::new(config.order, num_units)?;
        if config.load_attempts == 0 {
            return Err(WindowError::Zero { setting: "the number of attempts to load" });
        }
        if let Some(unit) = config.unit_bytes.iter().position(|&bytes| bytes == 0) {
            return Err(WindowError::EmptyUnit { unit: UnitId(unit as u32) });
        }
        // Slots are counted in multiples of the largest unit, and there are never more in use than units.
        let largest = config.unit_bytes.iter().copied().max().unwrap_or(0);
        if largest.checked_mul(num_units as u64).is_none_or(|bytes| bytes > u64::MAX / 4) {
            return Err(WindowError::TooLarge { units: num_units });
        }
        let units = Units::new(&config.unit_bytes, config.budget);
        let planner: Box<dyn Planner> = match config.policy {
            Policy::Resident(resident) => Box::new(ResidentPlanner::new(resident, order, &units)?),
            Policy::Ring(ring) => Box::new(RingPlanner::new(ring, order, &units)?),
        };
        let mut window = Self { units, planner, load_attempts: config.load_attempts, started: false };
        window.check_budget(config.budget)?;
        // Nothing is present, so this commands nothing; it only chooses.
        window.planner.plan(&mut window.units, &mut Vec::new());
        Ok(window)
    }

    /// Begins to load, in the order of access: what is to stay, and the first of what streams. Calling
    /// [`acquire`](Self::acquire) begins as well.
    pub fn start(&mut self, out: &mut Vec<WindowCommand>) {
        self.started = true;
        self.planner.start(&self.units);
        self.planner.pump(&mut self.units, out);
    }

    /// Asks for the right to read `unit`, and tells where the pass is.
    ///
    /// # Panics
    /// If there is no such unit.
    pub fn acquire(&mut self, unit: UnitId, out: &mut Vec<WindowCommand>) -> Acquired {
        self.started = true;
        let record = self.units.get_mut(unit);
        let answer = if record.state == UnitState::Present {
            record.users += 1;
            let waited = self.units.end_wait(unit);
            self.units.counters.acquisitions += 1;
            self.planner.acquired(&self.units, unit, waited);
            Acquired::Ready
        } else if record.awaited && record.given_up {
            // It stays given up, so that nothing but another acquisition tries it again.
            self.units.end_wait(unit);
            self.units.counters.waits_failed += 1;
            Acquired::Failed
        } else {
            // Attempts that nobody waited for do not count against whoever waits now.
            if std::mem::replace(&mut record.given_up, false) {
                self.planner.retried(&self.units, unit);
            }
            if self.units.begin_wait(unit) {
                self.units.counters.waits += 1;
                self.planner.wanted(&self.units, unit);
            }
            Acquired::Pending
        };
        self.planner.pump(&mut self.units, out);
        answer
    }

    /// One user of `unit` is done with it.
    ///
    /// # Panics
    /// If nobody uses the unit: acquisitions and releases come in pairs.
    pub fn release(&mut self, unit: UnitId, out: &mut Vec<WindowCommand>) {
        let record = self.units.get_mut(unit);
        assert!(record.users > 0, "{unit:?} is released more often than it was acquired");
        record.users -= 1;
        self.settle(unit, true, out);
        self.planner.pump(&mut self.units, out);
    }

    /// Whoever waited for `unit` will not ask again. Without this, the unit keeps its place until it is acquired, or
    /// until others cannot go on without it.
    pub fn stop_waiting(&mut self, unit: UnitId, out: &mut Vec<WindowCommand>) {
        if self.units.end_wait(unit) {
            self.settle(unit, false, out);
            self.planner.pump(&mut self.units, out);
        }
    }

    /// Announces that `unit` will be acquired next: an expert that the router chose, or where a pass goes on after a
    /// jump. An announcement that does not come true costs a load and nothing else.
    ///
    /// # Panics
    /// If there is no such unit.
    pub fn expect(&mut self, unit: UnitId, out: &mut Vec<WindowCommand>) {
        self.started = true;
        self.planner.expected(&self.units, unit);
        self.planner.pump(&mut self.units, out);
    }

    /// Makes `unit` one of those that are evicted last, whether it is there or not: it goes only if somebody waits for
    /// another one and nothing else can make room. Counted.
    ///
    /// # Panics
    /// If there is no such unit.
    pub fn pin(&mut self, unit: UnitId) {
        if self.units.is_idle(unit) {
            self.planner.busy(unit);
        }
        self.units.pin(unit);
    }

    /// Takes one pin back.
    ///
    /// # Panics
    /// If `unit` has none: pins come in pairs with this.
    pub fn unpin(&mut self, unit: UnitId, out: &mut Vec<WindowCommand>) {
        assert!(self.units.get(unit).pins > 0, "{unit:?} is unpinned more often than it was pinned");
        self.units.unpin(unit);
        self.settle(unit, true, out);
        self.planner.pump(&mut self.units, out);
    }

    /// The load has arrived. False if the report is stale: see the module's word on memory.
    pub fn loaded(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<WindowCommand>) -> bool {
        let taken = self.units.loaded(unit, ticket);
        if taken {
            self.settle(unit, false, out);
            self.planner.pump(&mut self.units, out);
        }
        taken
    }

    /// The load has failed, and its memory was given back. It is tried again at once, as often as the configuration
    /// allows; then those who wait are told. False if the report is stale.
    pub fn load_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<WindowCommand>) -> bool {
        let taken = self.units.failed(unit, ticket, self.load_attempts);
        if taken {
            self.units.counters.loads_failed += 1;
            self.planner.absent(&self.units, unit);
            self.planner.pump(&mut self.units, out);
        }
        taken
    }

    /// There was no memory for the load although the budget allows it. The budget shrinks by what the unit would
    /// have taken, as far as the least that works, so that something else is evicted; then as
    /// [`load_failed`](Self::load_failed). The budget stays so until [`set_budget`](Self::set_budget). False if the
    /// report is stale.
    pub fn allocation_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<WindowCommand>) -> bool {
        let record = self.units.get(unit);
        let cost = if record.own { record.bytes } else { self.units.slot_bytes };
        let taken = self.units.failed(unit, ticket, self.load_attempts);
        if taken {
            self.units.counters.loads_failed += 1;
            self.units.counters.allocations_failed += 1;
            let least = self.planner.least_budget(&self.units).unwrap_or(self.units.budget);
            self.units.budget = self.units.budget.saturating_sub(cost).max(least);
            self.planner.absent(&self.units, unit);
            self.planner.plan(&mut self.units, out);
            self.planner.pump(&mut self.units, out);
        }
        taken
    }

    /// The unit's memory was given back, as [`WindowCommand::Evict`] asked. False if the report is stale.
    pub fn evicted(&mut self, unit: UnitId, out: &mut Vec<WindowCommand>) -> bool {
        let taken = self.units.evicted(unit);
        if taken {
            self.planner.absent(&self.units, unit);
            self.planner.pump(&mut self.units, out);
        }
        taken
    }

    /// Changes how many bytes the window may take, while it runs. Residents come or go, no more than the difference
    /// asks for, and stay spread over the order. What is in use goes when it is released: until then
    /// [`bytes_held`](Self::bytes_held) may be above a smaller budget, and nothing is loaded that would keep it there;
    /// whoever waits while having much in use is best not shrunk in the middle of that.
    ///
    /// # Errors
    /// [`WindowError::BudgetTooSmall`]; then nothing has changed.
    pub fn set_budget(&mut self, bytes: u64, out: &mut Vec<WindowCommand>) -> Result<(), WindowError> {
        self.check_budget(bytes)?;
        self.units.budget = bytes;
        self.planner.plan(&mut self.units, out);
        if self.started {
            self.planner.pump(&mut self.units, out);
        }
        Ok(())
    }

    /// Changes the order of passes. What is there stays where it is as far as the policy allows; the next acquisition
    /// tells where the pass is. A ring whose layers do not fit the new order takes each unit for a layer.
    ///
    /// # Errors
    /// If the order names a unit that does not exist, or one twice; then nothing has changed.
    pub fn set_order(&mut self, order: Vec<UnitId>, out: &mut Vec<WindowCommand>) -> Result<(), WindowError> {
        let order = Order::new(order, self.units.len())?;
        self.planner.set_order(order, &self.units);
        for unit in (0..self.units.len() as u32).map(UnitId) {
            self.settle(unit, false, out);
        }
        self.planner.plan(&mut self.units, out);
        if self.started {
            self.planner.pump(&mut self.units, out);
        }
        Ok(())
    }

    /// How many units may be in use or waited for at the same time; with more, waits may not end.
    pub fn concurrent_max(&self) -> usize {
        self.planner.concurrent_max(&self.units)
    }

    /// How many slots there are now. A driver that keeps the memory of empty slots keeps no more than this, less those
    /// that units take: what a smaller budget, or a budget for everything, makes superfluous goes back to the system.
    pub fn slots(&self) -> usize {
        self.planner.slots(&self.units)
    }

    /// How many units are in slots now, those being loaded and being evicted included.
    pub fn slots_used(&self) -> usize {
        self.units.slots_used
    }

    /// Whether [`acquire`](Self::acquire) would answer anything but [`Acquired::Pending`].
    pub fn is_answered(&self, unit: UnitId) -> bool {
        let record = self.units.get(unit);
        record.state == UnitState::Present || (record.awaited && record.given_up)
    }

    /// The least budget with which the window works, in bytes.
    pub fn least_budget(&self) -> u64 {
        self.planner.least_budget(&self.units).unwrap_or(u64::MAX)
    }

    /// The budget now, in bytes.
    pub fn budget(&self) -> u64 {
        self.units.budget
    }

    /// Bytes of the units that are to stay, whether they are there yet or not: `M` of `bounds.md`. 0 under `ring`.
    pub fn resident_bytes(&self) -> u64 {
        self.planner.resident_bytes()
    }

    /// Whether `unit` is to stay.
    pub fn is_resident(&self, unit: UnitId) -> bool {
        self.planner.is_resident(unit)
    }

    /// Bytes that units take now, those being loaded and being evicted included; slots count whole.
    pub fn bytes_held(&self) -> u64 {
        self.units.bytes_held()
    }

    /// Where `unit` is.
    pub fn state(&self, unit: UnitId) -> UnitState {
        self.units.get(unit).state
    }

    /// Loads in flight.
    pub fn in_flight(&self) -> usize {
        self.units.in_flight
    }

    /// What has happened so far.
    pub fn counters(&self) -> WindowCounters {
        self.units.counters
    }

    /// Checks that the records agree with each other, that nobody waits for what is not coming, and what the policy
    /// promises. For tests; takes time in proportion to the number of units.
    ///
    /// # Errors
    /// What does not agree.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.units.check_invariants()?;
        self.planner.check_invariants(&self.units)
    }

    fn settle(&mut self, unit: UnitId, used: bool, out: &mut Vec<WindowCommand>) {
        if self.units.is_idle(unit) {
            self.planner.idle(&mut self.units, unit, used, out);
        }
    }

    fn check_budget(&self, budget: u64) -> Result<(), WindowError> {
        let least = self.planner.least_budget(&self.units)?;
        if budget < least { Err(WindowError::BudgetTooSmall { budget, least }) } else { Ok(()) }
    }
}

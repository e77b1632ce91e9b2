//! The window: says which units of weights are in a tier of memory, and which are loaded and evicted next.
//!
//! The window is a pure state machine: events go in, commands come out, and nothing is read, waited for or timed
//! here. The same code runs over the real driver, over drivers of tests that fail on purpose, and over the simulated
//! driver with which `interbed plan` predicts (`interbed-plan`).
//!
//! **Who owns memory.** From [`WindowCommand::Load`] until `evicted`, `load_failed` or `allocation_failed` is accepted
//! for the load, the unit's memory counts against the budget and belongs to the load with that ticket. The window never
//! cancels a load, so each load must be answered exactly once. An answer with another ticket, or a second answer, is
//! stale: the call returns false and changes nothing. The driver then frees the memory that it allocated for *that*
//! ticket.
//!
//! **Waits end.** As long as every command is answered and no more units are in use or waited for at the same time than
//! the policy allows, a unit that is waited for becomes present or fails after finitely many answers.

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

/// Result of [`Window::acquire`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Acquired {
    /// The unit is present. It stays in use until every acquisition of the unit has been released.
    Ready,
    /// The unit is not present yet. The caller acquires it again after the driver's next report to the window, or calls
    /// [`Window::stop_waiting`].
    Pending,
    /// The unit could not be loaded in the configured number of attempts. This result ends the wait; the next
    /// acquisition tries to load the unit again.
    Failed,
}

/// Decides which units are in one tier of memory. Methods append commands for the driver to `out`, the most urgent
/// first.
#[derive(Debug)]
pub struct Window {
    units: Units,
    planner: Box<dyn Planner>,
    load_attempts: u32,
    started: bool,
}

impl Window {
    /// Creates a window in which nothing is loaded yet.
    ///
    /// # Errors
    /// Fails if a unit has no bytes, if the order names an unknown unit or names a unit twice, if a setting is invalid,
    /// or if the budget is too small. [`WindowError::BudgetTooSmall`] states the least budget that works.
    pub fn new(config: WindowConfig) -> Result<Self, WindowError> {
        let num_units = config.unit_bytes.len();
        let order = Order::new(config.order, num_units)?;
        if config.load_attempts == 0 {
            return Err(WindowError::Zero { setting: "the number of attempts to load" });
        }
        if let Some(unit) = config.unit_bytes.iter().position(|&bytes| bytes == 0) {
            return Err(WindowError::EmptyUnit { unit: UnitId(unit as u32) });
        }
        // Slots are counted in multiples of the largest unit, and there are never more slots in use than units.
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
        // Nothing is present yet, so this gives no commands and only chooses the residents.
        window.planner.plan(&mut window.units, &mut Vec::new());
        Ok(window)
    }

    /// Begins to load the residents and the first streamed units, in the order in which a pass uses them. Without this
    /// call, loading begins with the first [`acquire`](Self::acquire).
    pub fn start(&mut self, out: &mut Vec<WindowCommand>) {
        self.started = true;
        self.planner.start(&self.units);
        self.planner.pump(&mut self.units, out);
    }

    /// Asks to use `unit`. If `unit` is in the order, the window concludes that the pass has reached this unit.
    ///
    /// # Panics
    /// Panics if there is no such unit.
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
            // It stays given up, so that only another acquisition tries it again.
            self.units.end_wait(unit);
            self.units.counters.waits_failed += 1;
            Acquired::Failed
        } else {
            // Attempts made while no one waited do not count against the caller that waits now.
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

    /// Ends one acquisition of `unit`.
    ///
    /// # Panics
    /// Panics if `unit` is released more often than it was acquired.
    pub fn release(&mut self, unit: UnitId, out: &mut Vec<WindowCommand>) {
        let record = self.units.get_mut(unit);
        assert!(record.users > 0, "{unit:?} is released more often than it was acquired");
        record.users -= 1;
        self.settle(unit, true, out);
        self.planner.pump(&mut self.units, out);
    }

    /// Ends the wait for `unit`, because the caller no longer needs it. While a caller waits for a unit, the window
    /// loads the unit and keeps it in memory. It evicts such a unit only if another caller waits and nothing else can
    /// make room.
    pub fn stop_waiting(&mut self, unit: UnitId, out: &mut Vec<WindowCommand>) {
        if self.units.end_wait(unit) {
            self.settle(unit, false, out);
            self.planner.pump(&mut self.units, out);
        }
    }

    /// Announces that `unit` will be acquired next. The unit can be an expert that the router has chosen, or the unit
    /// at which a pass continues after a jump in the order. A wrong announcement costs only an unneeded load.
    ///
    /// # Panics
    /// Panics if there is no such unit.
    pub fn expect(&mut self, unit: UnitId, out: &mut Vec<WindowCommand>) {
        self.started = true;
        self.planner.expected(&self.units, unit);
        self.planner.pump(&mut self.units, out);
    }

    /// Adds one pin to `unit`, whether the unit is present or not. A pinned unit is evicted only if a caller waits for
    /// another unit and nothing else can make room.
    ///
    /// # Panics
    /// Panics if there is no such unit.
    pub fn pin(&mut self, unit: UnitId) {
        if self.units.is_idle(unit) {
            self.planner.busy(unit);
        }
        self.units.pin(unit);
    }

    /// Removes one pin from `unit`.
    ///
    /// # Panics
    /// Panics if `unit` has no pin.
    pub fn unpin(&mut self, unit: UnitId, out: &mut Vec<WindowCommand>) {
        assert!(self.units.get(unit).pins > 0, "{unit:?} is unpinned more often than it was pinned");
        self.units.unpin(unit);
        self.settle(unit, true, out);
        self.planner.pump(&mut self.units, out);
    }

    /// Reports that a load of `unit` has succeeded. Returns false if the report is stale: the load with this ticket is
    /// no longer in flight.
    pub fn loaded(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<WindowCommand>) -> bool {
        let taken = self.units.loaded(unit, ticket);
        if taken {
            self.settle(unit, false, out);
            self.planner.pump(&mut self.units, out);
        }
        taken
    }

    /// Reports that a load of `unit` has failed, and that the driver has freed the memory for it. The window tries the
    /// load again at once, up to the configured number of attempts. After the last attempt, callers that wait for the
    /// unit get [`Acquired::Failed`]. Returns false if the report is stale: the load with this ticket is no longer in
    /// flight.
    pub fn load_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<WindowCommand>) -> bool {
        let taken = self.units.failed(unit, ticket, self.load_attempts);
        if taken {
            self.units.counters.loads_failed += 1;
            self.planner.absent(&self.units, unit);
            self.planner.pump(&mut self.units, out);
        }
        taken
    }

    /// Reports that a load of `unit` has failed because no memory could be allocated, although the budget allows it.
    /// The window reduces its budget by the memory that the unit would have taken, but not below the least budget that
    /// works. If the other units then exceed the budget, the window evicts some of them. The budget stays reduced until
    /// [`set_budget`](Self::set_budget) is called. The load is tried again as after [`load_failed`](Self::load_failed).
    /// Returns false if the report is stale: the load with this ticket is no longer in flight.
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

    /// Reports that the driver has freed the memory of `unit`, as [`WindowCommand::Evict`] asked. Returns false if no
    /// eviction of the unit is in flight.
    pub fn evicted(&mut self, unit: UnitId, out: &mut Vec<WindowCommand>) -> bool {
        let taken = self.units.evicted(unit);
        if taken {
            self.planner.absent(&self.units, unit);
            self.planner.pump(&mut self.units, out);
        }
        taken
    }

    /// Changes the budget to `bytes` bytes. The set of residents changes only as much as necessary, and the residents
    /// stay spread over the order. If a unit in use must be evicted, this happens after its release. Until then,
    /// [`bytes_held`](Self::bytes_held) may exceed a reduced budget, and the window begins no load that does not fit
    /// into the budget. A caller should not reduce the budget while it uses many units and waits for more.
    ///
    /// # Errors
    /// Fails with [`WindowError::BudgetTooSmall`] if the budget is below [`least_budget`](Self::least_budget). The
    /// budget is not changed in that case.
    pub fn set_budget(&mut self, bytes: u64, out: &mut Vec<WindowCommand>) -> Result<(), WindowError> {
        self.check_budget(bytes)?;
        self.units.budget = bytes;
        self.planner.plan(&mut self.units, out);
        if self.started {
            self.planner.pump(&mut self.units, out);
        }
        Ok(())
    }

    /// Changes the order in which passes acquire units. Present units stay present as far as the policy allows. The
    /// window learns the position of the pass from the next acquisition. If the configured [`RingConfig::layers`] do
    /// not have the length of the new order, each unit becomes a layer of its own.
    ///
    /// # Errors
    /// Fails if the order names an unknown unit, or names a unit twice. The order is not changed in that case.
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

    /// Returns the maximum number of units that may be in use or waited for at the same time. With more units, a wait
    /// may never end.
    pub fn concurrent_max(&self) -> usize {
        self.planner.concurrent_max(&self.units)
    }

    /// Returns the current number of slots, used or free. The driver may keep the memory of free slots for later loads,
    /// but of no more than `slots() - slots_used()` slots. It returns the memory of all other free slots to the system,
    /// for example after the budget was reduced.
    pub fn slots(&self) -> usize {
        self.planner.slots(&self.units)
    }

    /// Returns the number of units that take a slot, including units that are being loaded or evicted.
    pub fn slots_used(&self) -> usize {
        self.units.slots_used
    }

    /// Returns whether [`acquire`](Self::acquire) would return [`Acquired::Ready`] or [`Acquired::Failed`] now.
    pub fn is_answered(&self, unit: UnitId) -> bool {
        let record = self.units.get(unit);
        record.state == UnitState::Present || (record.awaited && record.given_up)
    }

    /// Returns the least budget with which the window works, in bytes.
    pub fn least_budget(&self) -> u64 {
        self.planner.least_budget(&self.units).unwrap_or(u64::MAX)
    }

    /// Returns the current budget in bytes.
    pub fn budget(&self) -> u64 {
        self.units.budget
    }

    /// Returns the total number of bytes of the residents, whether or not they are present yet. Returns 0 under
    /// [`Policy::Ring`].
    pub fn resident_bytes(&self) -> u64 {
        self.planner.resident_bytes()
    }

    /// Returns whether the policy has chosen `unit` to stay in memory.
    pub fn is_resident(&self, unit: UnitId) -> bool {
        self.planner.is_resident(unit)
    }

    /// Returns the number of bytes that units take, including units that are being loaded or evicted. A unit in a slot
    /// counts as a whole slot.
    pub fn bytes_held(&self) -> u64 {
        self.units.bytes_held()
    }

    /// Returns the state of `unit` in this tier.
    pub fn state(&self, unit: UnitId) -> UnitState {
        self.units.get(unit).state
    }

    /// Returns the number of acquisitions of `unit` that have not been released.
    pub fn users(&self, unit: UnitId) -> u32 {
        self.units.get(unit).users
    }

    /// Returns the number of loads in flight.
    pub fn in_flight(&self) -> usize {
        self.units.in_flight
    }

    /// Returns counts of what the window has done since it was created.
    pub fn counters(&self) -> WindowCounters {
        self.units.counters
    }

    /// Checks, for tests, that the records are consistent, that each unit that is waited for can still become present,
    /// and that the rules of the policy hold. The time is proportional to the number of units.
    ///
    /// # Errors
    /// Fails with a description of the inconsistency.
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

//! The planner of a window: the part that decides by a policy.

use std::fmt;

use super::error::WindowError;
use super::order::Order;
use super::unit_id::UnitId;
use super::units::{Units, WindowCommand};

/// Chooses which units are loaded and which are evicted. The window keeps the records and tells the planner what has
/// changed; the planner commands loads and evictions through [`Units::load`] and [`Units::evict`].
pub(super) trait Planner: fmt::Debug + Send {
    /// Returns the least budget that works, in bytes.
    ///
    /// # Errors
    /// Fails if the least budget exceeds what a `u64` can count.
    fn least_budget(&self, units: &Units) -> Result<u64, WindowError>;

    /// Returns how many units may be in use or waited for at the same time.
    fn concurrent_max(&self, units: &Units) -> usize;

    /// Returns how many slots there are now.
    fn slots(&self, units: &Units) -> usize;

    /// Takes another order of passes. No unit counts as idle any more: the window reports idle units anew, and then
    /// calls [`plan`](Self::plan).
    fn set_order(&mut self, order: Order, units: &Units);

    /// Tells the planner that the budget was set, for the first time or again.
    fn plan(&mut self, units: &mut Units, out: &mut Vec<WindowCommand>);

    /// Tells the planner that the window was told to begin loading before any pass.
    fn start(&mut self, _units: &Units) {}

    /// Tells the planner that a pass wants the unit now. The unit may be absent, and need not be in the order.
    fn wanted(&mut self, units: &Units, unit: UnitId);

    /// Tells the planner that the unit was present and has one more user; `waited` says that [`wanted`](Self::wanted)
    /// was called for it.
    fn acquired(&mut self, units: &Units, unit: UnitId, waited: bool);

    /// Tells the planner that the unit, which was idle, was pinned.
    fn busy(&mut self, unit: UnitId);

    /// Tells the planner that the unit is idle: it is present, has no users and no pins, and is not waited for. `used`
    /// says that the unit has just been used or pinned.
    fn idle(&mut self, units: &mut Units, unit: UnitId, used: bool, out: &mut Vec<WindowCommand>);

    /// Tells the planner that the unit became absent, because it was evicted or its load failed.
    fn absent(&mut self, units: &Units, unit: UnitId);

    /// Tells the planner that the unit, which had been given up, may be tried again.
    fn retried(&mut self, units: &Units, unit: UnitId);

    /// Tells the planner that a pass will want the unit next.
    fn expected(&mut self, units: &Units, unit: UnitId);

    /// Commands all loads and evictions that can be commanded now. The window calls this after every event.
    fn pump(&mut self, units: &mut Units, out: &mut Vec<WindowCommand>);

    /// Returns the bytes of the units that are to stay.
    fn resident_bytes(&self) -> u64;

    /// Returns whether the unit is to stay.
    fn is_resident(&self, unit: UnitId) -> bool;

    /// Checks that the planner's records agree with those of the window.
    ///
    /// # Errors
    /// Fails with a description of what does not agree.
    fn check_invariants(&self, units: &Units) -> Result<(), String>;
}

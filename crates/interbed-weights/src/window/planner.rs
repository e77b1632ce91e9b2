//! What a policy is: the part of a window that chooses.

use std::fmt;

use super::error::WindowError;
use super::order::Order;
use super::unit_id::UnitId;
use super::units::{Units, WindowCommand};

/// Chooses what is loaded and what is evicted. The window keeps the records and tells the planner what has changed; the
/// planner commands loads and evictions through [`Units::load`] and [`Units::evict`].
pub(super) trait Planner: fmt::Debug + Send {
    /// The least budget that works.
    ///
    /// # Errors
    /// If the budget exceeds what a `u64` can count.
    fn least_budget(&self, units: &Units) -> Result<u64, WindowError>;

    /// How many units may be in use or waited for at the same time.
    fn concurrent_max(&self, units: &Units) -> usize;

    /// How many slots there are now.
    fn slots(&self, units: &Units) -> usize;

    /// The order of passes has changed. No unit counts as idle any more: the window reports idle units anew, and then
    /// calls [`plan`](Self::plan).
    fn set_order(&mut self, order: Order, units: &Units);

    /// The budget was set, for the first time or again.
    fn plan(&mut self, units: &mut Units, out: &mut Vec<WindowCommand>);

    /// The window was told to begin loading before any pass.
    fn start(&mut self, _units: &Units) {}

    /// A pass wants the unit now. It may be absent, and need not be in the order.
    fn wanted(&mut self, units: &Units, unit: UnitId);

    /// The unit was present and has one more user; `waited` says that [`wanted`](Self::wanted) was called for it.
    fn acquired(&mut self, units: &Units, unit: UnitId, waited: bool);

    /// The unit, which was idle, was pinned.
    fn busy(&mut self, unit: UnitId);

    /// The unit is present, has no users and no pins, and is not waited for; `used` says that it has just been used or
    /// pinned.
    fn idle(&mut self, units: &mut Units, unit: UnitId, used: bool, out: &mut Vec<WindowCommand>);

    /// The unit became absent: it was evicted, or its load failed.
    fn absent(&mut self, units: &Units, unit: UnitId);

    /// The unit had been given up and may be tried again.
    fn retried(&mut self, units: &Units, unit: UnitId);

    /// A pass will want the unit next.
    fn expected(&mut self, units: &Units, unit: UnitId);

    /// Commands all that can be commanded now. Called after every event.
    fn pump(&mut self, units: &mut Units, out: &mut Vec<WindowCommand>);

    /// Bytes of the units that are to stay.
    fn resident_bytes(&self) -> u64;

    /// Whether the unit is to stay.
    fn is_resident(&self, unit: UnitId) -> bool;

    /// # Errors
    /// What does not agree.
    fn check_invariants(&self, units: &Units) -> Result<(), String>;
}

//! What a policy is: the part of a window that chooses.

use std::fmt;

use super::error::WindowError;
use super::order::Order;
use super::unit_id::UnitId;
use super::units::{Units, WindowCommand};

/// Chooses what is loaded and what is evicted. The window keeps the records; a planner is told what changed, and
/// commands through [`Units::load`] and [`Units::evict`].
pub(super) trait Planner: fmt::Debug + Send {
    /// The least budget that works.
    ///
    /// # Errors
    /// If it cannot be counted.
    fn least_budget(&self, units: &Units) -> Result<u64, WindowError>;

    /// How many units may be in use or waited for at the same time.
    fn concurrent_max(&self, units: &Units) -> usize;

    /// How many slots there are now.
    fn slots(&self, units: &Units) -> usize;

    /// The order of passes has changed. Nothing counts as idle any more: the window tells anew what is, and then calls
    /// [`plan`](Self::plan).
    fn set_order(&mut self, order: Order, units: &Units);

    /// The budget was set, for the first time or again.
    fn plan(&mut self, units: &mut Units, out: &mut Vec<WindowCommand>);

    /// Loading is to begin before any pass.
    fn start(&mut self, _units: &Units) {}

    /// A pass wants the unit now. It may be absent, and need not be in the order.
    fn wanted(&mut self, units: &Units, unit: UnitId);

    /// The unit, which was present, has got another user; `waited`: [`wanted`](Self::wanted) was called for it.
    fn acquired(&mut self, units: &Units, unit: UnitId, waited: bool);

    /// The unit, which was idle, was pinned.
    fn busy(&mut self, unit: UnitId);

    /// The unit is present and has neither users nor those who wait nor pins; `used`: it just had one.
    fn idle(&mut self, units: &mut Units, unit: UnitId, used: bool, out: &mut Vec<WindowCommand>);

    /// The unit became absent: it was evicted, or its load failed.
    fn absent(&mut self, units: &Units, unit: UnitId);

    /// The unit, which was given up, may be tried again.
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

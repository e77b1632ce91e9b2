//! Units outside the order (experts), which are known only one step ahead of their use.

use std::collections::VecDeque;

use super::list::UnitList;
use super::unit_id::UnitId;
use super::units::{UnitState, Units};

/// Units on demand that were announced, and units on demand that may be evicted.
#[derive(Debug)]
pub(super) struct OnDemand {
    /// Maximum number of announced units that may wait to be loaded. Further announcements are dropped, since
    /// announcements are only hints.
    pub announced_max: usize,
    /// Units that were announced, and perhaps are still to be loaded.
    announced: VecDeque<UnitId>,
    /// Idle units that were announced and not yet used, the oldest first.
    ready: UnitList,
    /// All other idle units, the least recently used first.
    unused: UnitList,
}

impl OnDemand {
    pub fn new(num_units: usize, announced_max: usize) -> Self {
        Self {
            announced_max,
            announced: VecDeque::new(),
            ready: UnitList::new(num_units),
            unused: UnitList::new(num_units),
        }
    }

    /// Records that the unit will be needed next.
    pub fn announce(&mut self, unit: UnitId, state: UnitState) {
        if state == UnitState::Present {
            if self.unused.remove(unit) {
                self.ready.push_last(unit);
            }
        } else if self.announced.len() < self.announced_max && !self.announced.contains(&unit) {
            self.announced.push_back(unit);
        }
    }

    /// Returns the first announced unit that can be loaded now or is being evicted. Drops the announcements before it.
    pub fn next_announced(&mut self, units: &Units) -> Option<UnitId> {
        while let Some(&unit) = self.announced.front() {
            if units.is_loadable(unit) || units.get(unit).state == UnitState::Evicting {
                return Some(unit);
            }
            self.announced.pop_front();
        }
        None
    }

    /// Records that the unit has become idle. `used` says whether it was released or unpinned just now. If `used` is
    /// false, the unit is treated as announced and not yet used.
    pub fn idle(&mut self, unit: UnitId, used: bool) {
        if used {
            self.unused.push_last(unit);
            return;
        }
        self.ready.push_last(unit);
        // Announcements that do not come true must not fill the memory.
        if self.ready.len() > (self.announced_max / 2).max(1)
            && let Some(oldest) = self.ready.first()
        {
            self.ready.remove(oldest);
            self.unused.push_last(oldest);
        }
    }

    /// Removes the unit from the idle units, because it is now used, pinned or evicted.
    pub fn forget(&mut self, unit: UnitId) {
        if !self.unused.remove(unit) {
            self.ready.remove(unit);
        }
    }

    /// Returns whether the unit is recorded as idle.
    pub fn is_idle(&self, unit: UnitId) -> bool {
        self.unused.contains(unit) || self.ready.contains(unit)
    }

    /// Returns the on-demand unit to evict next: the least recently used of the idle units, except those that were
    /// announced and not yet used. If there is no such unit and `ready` is true, returns the announced unit that has
    /// been idle longest.
    pub fn victim(&self, ready: bool) -> Option<UnitId> {
        self.unused.first().or_else(|| self.ready.first().filter(|_| ready))
    }
}

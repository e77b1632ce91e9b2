//! Checks of what must hold of the records after every event.

use super::units::{UnitState, Units};

impl Units {
    /// Checks that the totals match the records of the units.
    ///
    /// # Errors
    /// Fails with a description of the mismatch.
    pub fn check_invariants(&self) -> Result<(), String> {
        let (mut own, mut own_evicting, mut slots, mut slots_evicting, mut in_flight, mut own_in_flight) =
            (0, 0, 0, 0, 0, 0);
        for (index, unit) in self.all().iter().enumerate() {
            let evicting = unit.state == UnitState::Evicting;
            if unit.users > 0 && unit.state != UnitState::Present {
                return Err(format!("unit {index} is in use and {:?}", unit.state));
            }
            if unit.awaited != self.awaited().iter().any(|awaited| awaited.index() == index) {
                return Err(format!("unit {index}: waited for: {}, which the list does not know", unit.awaited));
            }
            if unit.state == UnitState::Inflight {
                in_flight += 1;
                own_in_flight += usize::from(unit.own);
            }
            if unit.state != UnitState::Absent {
                if unit.own {
                    own += unit.bytes;
                    own_evicting += if evicting { unit.bytes } else { 0 };
                } else {
                    slots += 1;
                    slots_evicting += usize::from(evicting);
                }
            }
        }
        let counted = (own, own_evicting, slots, slots_evicting, in_flight, own_in_flight);
        let noted = (
            self.own_bytes,
            self.own_bytes_evicting,
            self.slots_used,
            self.slots_evicting,
            self.in_flight,
            self.own_in_flight,
        );
        if counted != noted {
            return Err(format!("counted {counted:?}, noted {noted:?}"));
        }
        self.check_waits()
    }

    /// Checks that waits can end. A unit that is waited for but not being loaded waits for memory, and that memory must
    /// be on its way: through a load that will arrive, an eviction, or a release.
    fn check_waits(&self) -> Result<(), String> {
        let something_comes = self.in_flight > 0
            || self.bytes_staying() < self.bytes_held()
            || self.all().iter().any(|unit| unit.users > 0 || (unit.awaited && unit.state == UnitState::Present));
        let stuck = self.awaited().iter().find(|unit| self.is_loadable(**unit));
        match stuck {
            Some(unit) if !something_comes => Err(format!("{unit:?} is waited for, and nothing happens")),
            _ => Ok(()),
        }
    }
}

//! Checks of what must hold of an arena after every call.

use super::arena::{Arena, SlabState};
use super::slots::SlotState;

impl Arena {
    /// Checks that the records of slabs, slots and eviction candidates are consistent. The check goes through all slabs
    /// and slots, so it is meant for tests.
    ///
    /// # Errors
    /// Fails if the records are inconsistent. The error describes what does not agree.
    pub fn check_invariants(&self) -> Result<(), String> {
        let (mut bytes, mut held) = (0, 0);
        for class in 0..self.slots.class_count() {
            let (mut live, mut free) = (0, 0);
            for (number, state) in self.slots.states(class).iter().enumerate() {
                live += u64::from(*state != SlotState::Withdrawn);
                free += usize::from(*state == SlotState::Free);
                let rated = self.victims[class].score(number as u32);
                let SlotState::Held(slab) = *state else {
                    if rated.is_some() {
                        return Err(format!("slot {number} of class {class} is {state:?}, and its slab may go"));
                    }
                    continue;
                };
                held += 1;
                let resident = matches!(self.slabs[slab].state, SlabState::Resident { .. });
                let may_go = resident && !self.slabs[slab].pinned;
                if rated != may_go.then(|| self.scores.score(slab)) {
                    return Err(format!("slab {slab} is {:?}, and rated {rated:?}", self.slabs[slab]));
                }
                let slot = match self.slabs[slab].state {
                    SlabState::Loading { slot, .. } | SlabState::Resident { slot } => Some(slot),
                    SlabState::Absent => None,
                };
                if slot.is_none_or(|slot| slot.class as usize != class || slot.index as usize != number) {
                    return Err(format!("slot {number} of class {class} holds slab {slab}, which is in {slot:?}"));
                }
            }
            let listed = self.slots.free(class).len();
            if live != self.slots.live(class) || free != listed {
                let counted = self.slots.live(class);
                return Err(format!("class {class}: {live} slots, {counted} counted; {free} free, {listed} listed"));
            }
            bytes += live * self.shape.class_bytes()[class];
        }
        // Each held slot names a slab that names this slot, so equal numbers make the two the same pairs.
        let placed = self.slabs.iter().filter(|slab| slab.state != SlabState::Absent).count();
        if placed != held {
            return Err(format!("{placed} slabs have a slot, but {held} slots hold one"));
        }
        if bytes > self.slots.budget() {
            return Err(format!("slots of {bytes} bytes under a budget of {}", self.slots.budget()));
        }
        if self.visit.is_none() && self.slabs.iter().any(|slab| slab.pinned) {
            return Err("a slab is pinned without a visit".to_owned());
        }
        Ok(())
    }
}

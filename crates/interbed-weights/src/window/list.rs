//! A list of units from which any member can be removed in constant time.

use super::unit_id::UnitId;

const END: u32 = u32::MAX;
const OUTSIDE: u32 = u32::MAX - 1;

/// Units in the order in which they were added; each at most once.
#[derive(Debug)]
pub(super) struct UnitList {
    first: u32,
    last: u32,
    len: usize,
    /// Links of each unit: the unit before it and the unit after it, or `OUTSIDE` twice if it is not in the list.
    links: Vec<(u32, u32)>,
}

impl UnitList {
    pub fn new(num_units: usize) -> Self {
        Self { first: END, last: END, len: 0, links: vec![(OUTSIDE, OUTSIDE); num_units] }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn first(&self) -> Option<UnitId> {
        (self.first != END).then_some(UnitId(self.first))
    }

    pub fn contains(&self, unit: UnitId) -> bool {
        self.links[unit.index()].0 != OUTSIDE
    }

    /// Adds the unit at the end, if it is not in the list.
    pub fn push_last(&mut self, unit: UnitId) {
        if self.contains(unit) {
            return;
        }
        self.links[unit.index()] = (self.last, END);
        match self.last {
            END => self.first = unit.0,
            last => self.links[last as usize].1 = unit.0,
        }
        self.last = unit.0;
        self.len += 1;
    }

    /// Takes the unit out of the list. Returns false if it was not in the list.
    pub fn remove(&mut self, unit: UnitId) -> bool {
        let (before, after) = std::mem::replace(&mut self.links[unit.index()], (OUTSIDE, OUTSIDE));
        if before == OUTSIDE {
            return false;
        }
        match before {
            END => self.first = after,
            before => self.links[before as usize].1 = after,
        }
        match after {
            END => self.last = before,
            after => self.links[after as usize].0 = before,
        }
        self.len -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{UnitId, UnitList};

    proptest! {
        #[test]
        fn it_behaves_as_a_plain_vector(operations in prop::collection::vec((any::<bool>(), 0_u32..8), 0..200)) {
            let mut list = UnitList::new(8);
            let mut model: Vec<UnitId> = Vec::new();
            for (add, unit) in operations {
                let unit = UnitId(unit);
                prop_assert_eq!(list.contains(unit), model.contains(&unit));
                if add {
                    list.push_last(unit);
                    if !model.contains(&unit) {
                        model.push(unit);
                    }
                } else {
                    prop_assert_eq!(list.remove(unit), model.contains(&unit));
                    model.retain(|&other| other != unit);
                }
                prop_assert_eq!(list.len(), model.len());
                prop_assert_eq!(list.first(), model.first().copied());
            }
            for unit in model {
                prop_assert_eq!(list.first(), Some(unit));
                list.remove(unit);
            }
            prop_assert_eq!(list.first(), None);
        }
    }
}

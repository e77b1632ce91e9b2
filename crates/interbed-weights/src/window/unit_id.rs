//! The number of a unit.

/// Number of a unit, counted from 0 within a window. A unit is moved in one piece: a band of rows, a tensor, a group or
/// a whole layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId(pub u32);

impl UnitId {
    /// Returns the unit's index in vectors that have an entry per unit.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

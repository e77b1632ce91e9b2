//! The number of a unit.

/// Number of a unit in a window, counted from 0. A unit is a part of the weights that is loaded and evicted as a whole:
/// a band of rows, a tensor, a group or a whole layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId(pub u32);

impl UnitId {
    /// Returns the unit's index into vectors that have one entry per unit.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

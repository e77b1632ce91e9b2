//! The number of a unit.

/// A unit is what is moved in one piece: a band of rows, a tensor, a group or a whole layer. Numbered from 0 within a
/// window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId(pub u32);

impl UnitId {
    /// The unit's index in vectors that have an entry per unit.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

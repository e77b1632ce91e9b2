//! Which unit.

/// What is moved in one go: a band of rows, a tensor, a group or a whole layer. Numbered from 0 within a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId(pub u32);

impl UnitId {
    /// The unit's place in vectors that are kept by unit.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

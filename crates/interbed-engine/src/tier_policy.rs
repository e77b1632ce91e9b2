//! The rules about what goes to a tier below memory, and what is computed rather than read from there.

use std::time::Duration;

/// The rule that says which blocks are written to a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StoreMode {
    /// Blocks that memory has no room for any more.
    Evict,
    /// Blocks of prompts as soon as they are computed, and blocks that memory has no room for any more.
    #[default]
    Eager,
    /// Every block as soon as it is full.
    Mirror,
}

impl StoreMode {
    /// Returns whether blocks of generated tokens are written as soon as they are computed.
    pub(crate) fn stores_generated(self) -> bool {
        self == Self::Mirror
    }
}

/// The rule that says which part of a prefix in a tier is computed rather than read.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Recompute {
    /// As many of the first blocks as can be computed while the rest is read, by the rates at which this engine has
    /// read and computed so far. If reading the whole prefix takes longer than computing it, all of the prefix is
    /// computed.
    #[default]
    Measured,
    /// The given share of the prefix, whatever the rates are.
    Share(f64),
}

impl Recompute {
    /// Returns how many of the first of `blocks` blocks are computed. Reading all of them takes `reading` seconds and
    /// computing all of them takes `computing` seconds, as far as these times are known.
    pub(crate) fn blocks(self, blocks: usize, reading: Option<f64>, computing: Option<f64>) -> usize {
        let share = match (self, reading, computing) {
            (Recompute::Share(share), ..) => share,
            (Recompute::Measured, Some(reading), Some(computing)) if computing < reading => 1.0,
            // With this share, reading and computing end at the same time.
            (Recompute::Measured, Some(reading), Some(computing)) => reading / (reading + computing),
            // While a rate is unknown, blocks are read, so that the rate becomes known.
            (Recompute::Measured, ..) => 0.0,
        };
        ((blocks as f64 * share) as usize).min(blocks)
    }
}

/// The rules about what goes to a tier, and what is computed rather than read from there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TierPolicy {
    /// The rule that says which blocks are written.
    pub mode: StoreMode,
    /// The rule that says which part of a prefix in the tier is computed.
    pub recompute: Recompute,
    /// The time after which blocks that nobody has held are written, whatever the mode is; `None` if they are not. When
    /// the engine stops, the last such blocks are written at once.
    pub idle_after: Option<Duration>,
    /// Whether the oldest computed blocks are dropped if more wait to be written than memory holds. They have left
    /// memory by then, or are written when they are evicted.
    pub drops_fresh: bool,
}

impl TierPolicy {
    /// The rules for a store that servers share. It is told of prompts at once, and everything that it brings is read.
    pub const SHARED: Self =
        Self { mode: StoreMode::Eager, recompute: Recompute::Share(0.0), idle_after: None, drops_fresh: true };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_and_computing_end_together_or_the_faster_does_all() {
        let measured = |reading, computing| Recompute::Measured.blocks(100, reading, computing);
        assert_eq!((measured(Some(1.0), Some(0.9)), measured(Some(1.0), Some(3.0))), (100, 25));
        assert_eq!((measured(Some(1.0), Some(500.0)), measured(Some(0.0), Some(0.0))), (0, 0));
        assert_eq!((measured(None, Some(1.0)), measured(Some(1.0), None)), (0, 0));
        assert_eq!(Recompute::Share(0.5).blocks(3, None, None), 1);
    }
}

//! The rules about what goes to a tier below memory, and what is computed rather than read from there.

use std::time::Duration;

/// The rule for when KV blocks in memory are written to a tier, which is on disk or in a shared store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StoreMode {
    /// Blocks are written when they are evicted from memory.
    Evict,
    /// Blocks of prompts are written as soon as they are computed. Other blocks are written when they are evicted from
    /// memory.
    #[default]
    Eager,
    /// All blocks are written as soon as they are full, whether they hold prompt tokens or generated tokens.
    Mirror,
}

impl StoreMode {
    /// Returns whether blocks of generated tokens are written as soon as they are computed.
    pub(crate) fn stores_generated(self) -> bool {
        self == Self::Mirror
    }
}

/// The rule for how much of a prompt's prefix the engine computes although a tier holds the KV of this prefix.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Recompute {
    /// The engine computes the first blocks of the prefix while it reads the rest from the tier. It divides the prefix
    /// so that, at the rates measured so far, computing and reading end at the same time. If computing the whole prefix
    /// is faster than reading the whole prefix, the engine computes all of it. While one of the rates is unknown, the
    /// engine reads all of it.
    #[default]
    Measured,
    /// The engine computes this share of the prefix, from 0 to 1, and reads the rest. It ignores the measured rates.
    /// The computed blocks are the first ones of the prefix.
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

/// The rules for one tier: which blocks are written to it, and which are computed even though it holds them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TierPolicy {
    /// The rule for when blocks are written to the tier.
    pub mode: StoreMode,
    /// The rule for how much of a prompt's prefix the engine computes even though the tier holds the KV of the prefix.
    pub recompute: Recompute,
    /// The time after which the engine writes a computed block that no sequence holds any longer, in every mode. While
    /// a sequence holds the block, the engine checks it again each time that this time has passed. Before the engine
    /// stops, it writes the blocks that still wait, as far as the tier takes them in a limited time. With `None`, only
    /// the mode decides when blocks are written.
    pub idle_after: Option<Duration>,
    /// Whether the queue of computed blocks that wait to be written has a maximum length. The maximum is the number of
    /// KV blocks for which the engine has memory. When the queue exceeds it, the engine drops the oldest blocks from
    /// the queue.
    pub drops_fresh: bool,
}

impl TierPolicy {
    /// The rules for a store that servers share: blocks of prompts are written as soon as they are computed, and every
    /// prefix in the store is read in full.
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

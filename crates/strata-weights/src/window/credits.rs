//! How many copies to the device may be in flight.

/// What a pass does, as far as copies care.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Prompts: much to compute for each unit, and the device is to be filled quickly.
    Prefill,
    /// One token, or few, of each sequence.
    Decode,
}

/// The number of copies in flight at the same time, by phase. The defaults suit a GPU of 16 GB.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Credits {
    /// `H2D_BASE_CONCURRENCY`, 8.
    pub base: usize,
    /// `H2D_PREFILL_MULT`, 2.0.
    pub prefill_multiplier: f64,
    /// `H2D_DECODE_MULT`, 1.2.
    pub decode_multiplier: f64,
}

impl Default for Credits {
    fn default() -> Self {
        Self { base: 8, prefill_multiplier: 2.0, decode_multiplier: 1.2 }
    }
}

impl Credits {
    /// How many copies `phase` allows: the product, rounded down, and at least one.
    pub fn of(&self, phase: Phase) -> usize {
        let multiplier = match phase {
            Phase::Prefill => self.prefill_multiplier,
            Phase::Decode => self.decode_multiplier,
        };
        ((self.base as f64 * multiplier) as usize).max(1)
    }
}

//! How many copies to the device may be in flight.

/// What a pass does, as far as it matters to copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Prompts: each unit is used for much computation, and the device must be filled quickly.
    Prefill,
    /// One token, or a few, of each sequence.
    Decode,
}

/// The number of copies in flight at the same time, by phase. The defaults suit a GPU of 16 GB.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Credits {
    /// The number of copies before a factor is applied: 8.
    pub base: usize,
    /// The factor for [`Phase::Prefill`]: 2.0.
    pub prefill_multiplier: f64,
    /// The factor for [`Phase::Decode`]: 1.2.
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

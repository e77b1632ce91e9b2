//! Limits on how many copies to the device may be in flight.

/// Kind of a pass, as far as it matters to copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The pass computes prompts: each unit is used for much computation, and the device must be filled quickly.
    Prefill,
    /// The pass computes one token, or a few, of each sequence.
    Decode,
}

/// Number of copies that may be in flight at the same time, by phase. The defaults suit a GPU of 16 GB.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Credits {
    /// Number of copies before a factor is applied. The default is 8.
    pub base: usize,
    /// Factor for [`Phase::Prefill`]. The default is 2.0.
    pub prefill_multiplier: f64,
    /// Factor for [`Phase::Decode`]. The default is 1.2.
    pub decode_multiplier: f64,
}

impl Default for Credits {
    fn default() -> Self {
        Self { base: 8, prefill_multiplier: 2.0, decode_multiplier: 1.2 }
    }
}

impl Credits {
    /// Returns how many copies `phase` allows: `base` times the factor of the phase, rounded down, and at least one.
    pub fn of(&self, phase: Phase) -> usize {
        let multiplier = match phase {
            Phase::Prefill => self.prefill_multiplier,
            Phase::Decode => self.decode_multiplier,
        };
        ((self.base as f64 * multiplier) as usize).max(1)
    }
}

//! Limits on how many copies to the device may be in flight.

/// Kind of forward pass, which decides how many copies to the device may be in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The pass processes prompts: each unit serves many tokens, so the device needs its next units early.
    Prefill,
    /// The pass processes one token, or a few, of each sequence.
    Decode,
}

/// Limits on the number of copies to the device in flight, by [`Phase`]. The defaults suit a GPU with 16 GB of memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Credits {
    /// Base number of copies. The limit of a phase is this number times the factor of the phase. The default is 8.
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
    /// Returns the number of copies that `phase` allows: `base` times the factor of the phase, rounded down, but at
    /// least 1.
    pub fn of(&self, phase: Phase) -> usize {
        let multiplier = match phase {
            Phase::Prefill => self.prefill_multiplier,
            Phase::Decode => self.decode_multiplier,
        };
        ((self.base as f64 * multiplier) as usize).max(1)
    }
}

//! The tiers of KV below memory, which the engine is given.

use std::sync::mpsc::Receiver;

use interbed_kv::LowerTier;

use crate::tier_policy::TierPolicy;

/// A tier of KV below memory, and the rules about what goes there.
pub struct TierBelow {
    /// The tier, whose blocks are those of [`Runner::block_bytes`](crate::Runner::block_bytes).
    pub tier: Box<dyn LowerTier>,
    /// The rules.
    pub policy: TierPolicy,
}

/// Tiers that come while the engine runs. Until they come, no KV is stored below memory.
pub struct LaterTiers {
    /// The channel that brings the tiers, nearest first, or closes without them.
    pub tiers: Receiver<Vec<TierBelow>>,
    /// The number of tokens that a sequence may have with these tiers, if that is more than memory has room for;
    /// otherwise 0. Sequences that are longer than memory wait for the tiers.
    pub long_tokens: usize,
}

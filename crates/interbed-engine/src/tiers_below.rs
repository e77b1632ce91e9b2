//! The tiers of KV below memory, which the engine is given.

use std::sync::mpsc::Receiver;

use interbed_kv::{ChainRoot, LowerTier};

use crate::tier_policy::TierPolicy;

/// A tier of KV below memory, and the rules about what goes there.
pub struct TierBelow {
    /// The tier, whose blocks are those of [`Runner::block_bytes`](crate::Runner::block_bytes).
    pub tier: Box<dyn LowerTier>,
    /// The rules.
    pub policy: TierPolicy,
}

impl TierBelow {
    /// Checks that `tiers`, nearest first, can be used together.
    ///
    /// # Errors
    /// Fails with the reason if they cannot.
    pub(crate) fn check(tiers: &[Self]) -> Result<(), String> {
        let root = |below: &Self| below.tier.key_chain().root(&ChainRoot::new(None, 0));
        for (index, below) in tiers.iter().enumerate() {
            let (name, nearer) = (below.tier.name(), &tiers[..index]);
            if nearer.iter().any(|other| other.tier.name() == name) {
                return Err(format!("two tiers of KV are called {name}; give each a name of its own"));
            }
            if nearer.iter().any(|other| root(other) != root(below)) {
                return Err(format!("the tier {name} has other keys than nearer tiers; open it with theirs"));
            }
            if !below.tier.knows_contents() && index + 1 < tiers.len() {
                return Err(format!("the tier {name} does not know what it has; give it as the last one"));
            }
        }
        Ok(())
    }
}

/// Tiers that come while the engine runs. Until they come, no KV is stored below memory.
pub struct LaterTiers {
    /// The channel that brings the tiers, nearest first, or closes without them.
    pub tiers: Receiver<Vec<TierBelow>>,
    /// The number of tokens that a sequence may have with these tiers, if that is more than memory has room for;
    /// otherwise 0. Sequences that are longer than memory wait for the tiers.
    pub long_tokens: usize,
}

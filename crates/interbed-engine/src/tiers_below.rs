//! The tiers of KV below memory, which the engine is given.

use std::sync::mpsc::Receiver;

use interbed_kv::{ChainRoot, LowerTier};

use crate::tier_policy::TierPolicy;

/// A KV tier on disk or in a shared store, and the rules for its use.
pub struct TierBelow {
    /// The tier. It reads and writes the KV blocks in memory through the interface that
    /// [`Runner::block_bytes`](crate::Runner::block_bytes) returns.
    pub tier: Box<dyn LowerTier>,
    /// The rules that say which blocks are written to the tier, and which are read from it.
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

/// KV tiers that are attached while the engine runs. Until they are attached, no KV is written to them.
pub struct LaterTiers {
    /// The channel that delivers the tiers, nearest first. If it closes without a delivery, no tiers are attached.
    pub tiers: Receiver<Vec<TierBelow>>,
    /// The maximum number of tokens of a sequence whose KV does not fit in memory; 0 if the tiers accept no such
    /// sequence. If a sequence within this limit does not fit in memory, it waits until the tiers are attached.
    pub long_tokens: usize,
}

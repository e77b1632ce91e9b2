//! The tiers of KV below memory, which the engine is given.

use std::sync::mpsc::Receiver;

use interbed_kv::{ChainRoot, LowerTier};

use crate::tier_policy::TierPolicy;

/// A KV tier on disk or in a shared store, and the rules for its use.
pub struct TierBelow {
    /// The tier. The engine gives it access to the KV blocks in memory through the interface that
    /// [`Runner::block_bytes`](crate::Runner::block_bytes) returns.
    pub tier: Box<dyn LowerTier>,
    /// The rules that say when blocks are written to the tier, and which blocks are computed even though the tier holds
    /// them.
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

/// KV tiers that are not open yet when the engine starts. The engine attaches them while it runs.
pub struct LaterTiers {
    /// The channel that delivers the list of tiers. The tier nearest to memory, which the engine asks first, comes
    /// first. If the channel closes without a delivery, no tiers are attached.
    pub tiers: Receiver<Vec<TierBelow>>,
    /// The maximum length, in tokens, of a sequence whose KV does not fit in memory and is partly kept in one of the
    /// tiers; 0 if no tier keeps KV in this way. Until the tiers are attached, a sequence of at most this length waits
    /// if its KV does not fit in memory.
    pub long_tokens: usize,
}

//! The tiers of KV below memory, which the engine is given.

use std::sync::mpsc::Receiver;

use interbed_kv_remote::RemoteTier;

use crate::kv_disk::KvDisk;

/// The tiers of one model's KV. If there are both, they have to name contents in the same way.
#[derive(Default)]
pub struct TiersBelow {
    /// KV on disk, whose blocks are those of [`Runner::block_bytes`](crate::Runner::block_bytes).
    pub kv_disk: Option<KvDisk>,
    /// KV in a store that servers share.
    pub kv_remote: Option<RemoteTier>,
}

/// Tiers that come while the engine runs. Until they come, no KV is stored below memory.
pub struct LaterTiers {
    /// The channel that brings the tiers, or closes without them.
    pub tiers: Receiver<TiersBelow>,
    /// The number of tokens that a sequence may have with these tiers, if that is more than memory has room for;
    /// otherwise 0. Sequences that are longer than memory wait for the tiers.
    pub long_tokens: usize,
}

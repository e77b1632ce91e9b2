//! The tiers of KV below memory, as the engine is given them.

use std::sync::mpsc::Receiver;

use interbed_kv_remote::RemoteTier;

use crate::kv_disk::KvDisk;

/// The tiers of one model's KV. With both, they have to name contents alike.
#[derive(Default)]
pub struct TiersBelow {
    /// KV on disk, whose blocks are those of [`Runner::block_bytes`](crate::Runner::block_bytes).
    pub kv_disk: Option<KvDisk>,
    /// KV in a store that servers share.
    pub kv_remote: Option<RemoteTier>,
}

/// Tiers that come while the engine runs: until then KV goes nowhere.
pub struct LaterTiers {
    /// Brings them, or ends without them.
    pub tiers: Receiver<TiersBelow>,
    /// Tokens that a sequence may have with them, if that is more than memory has room for; such sequences wait. 0 if
    /// there are none.
    pub long_tokens: usize,
}

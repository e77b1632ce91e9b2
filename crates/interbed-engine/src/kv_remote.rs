//! Figures of KV in a store that servers share.

use interbed_kv_remote::RemoteStats;

/// Figures of KV in a store that servers share.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KvRemoteStatus {
    /// Figures of the store.
    pub store: RemoteStats,
    /// Tokens of prompts that the store was asked for.
    pub asked_tokens: u64,
    /// Those that came.
    pub fetched_tokens: u64,
    /// Fetches that have ended, and the seconds that sequences waited for them.
    pub fetches: u64,
    /// See [`fetches`](Self::fetches).
    pub fetch_seconds: f64,
}

//! Figures of KV in a store that servers share.

use interbed_kv_remote::RemoteStats;

/// Figures of KV in a store that servers share.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KvRemoteStatus {
    /// The figures of the store.
    pub store: RemoteStats,
    /// The prompt tokens whose KV the store was asked for.
    pub asked_tokens: u64,
    /// The prompt tokens whose KV came from the store.
    pub fetched_tokens: u64,
    /// The fetches that have ended.
    pub fetches: u64,
    /// The seconds that sequences waited for fetches that have ended.
    pub fetch_seconds: f64,
}

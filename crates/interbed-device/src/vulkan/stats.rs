//! What a GPU has been used for.

use std::sync::Arc;

use crate::Bytes;

/// The memory of a GPU and what went over its link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceStats {
    /// The GPU, as its driver calls it.
    pub name: Arc<str>,
    /// Its memory in use.
    pub memory_used: Bytes,
    /// Its memory that may be used.
    pub memory_budget: Bytes,
    /// Bytes that the host handed to it.
    pub bytes_to_device: u64,
    /// Bytes that came back to the host.
    pub bytes_to_host: u64,
    /// Times that the host had to wait for room before it could hand over more.
    pub waits_for_room: u64,
}

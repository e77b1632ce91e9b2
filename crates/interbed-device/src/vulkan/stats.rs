//! Counts of what a GPU has been used for.

use std::sync::Arc;

use crate::Bytes;

/// The memory of a GPU and the bytes that went over the GPU's link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceStats {
    /// The GPU's name, from its driver.
    pub name: Arc<str>,
    /// The GPU's memory in use.
    pub memory_used: Bytes,
    /// The GPU's memory that may be used.
    pub memory_budget: Bytes,
    /// Bytes that the host handed to the GPU.
    pub bytes_to_device: u64,
    /// Bytes that came back to the host.
    pub bytes_to_host: u64,
    /// Times that the host had to wait for room before it could hand over more.
    pub waits_for_room: u64,
}

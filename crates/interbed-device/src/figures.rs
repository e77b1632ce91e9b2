//! Figures of a device with memory of its own: its memory and traffic, when it worked, and how fast it is.

use std::sync::Arc;
use std::time::Instant;

use crate::{Bytes, Queue};

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

/// A batch of commands that ran on a queue of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceEvent {
    /// The queue.
    pub queue: Queue,
    /// The number of commands in the batch.
    pub operations: usize,
    /// The time at which the batch began, as far as the clocks of host and device can be compared.
    pub start: Instant,
    /// The time at which the batch ended.
    pub end: Instant,
}

/// Weights in host memory, per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostRates {
    /// Bytes that are copied to the GPU.
    pub link: f64,
    /// Bytes that the host multiplies with the activations of one token.
    pub host: f64,
    /// The most tokens for which the host is the faster.
    pub tokens_max: usize,
}

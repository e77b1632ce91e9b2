//! Memory of which a device has little: weights and KV blocks share it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The memory that a device may use, in bytes.
#[derive(Debug)]
pub struct Room {
    budget: u64,
    used: Arc<AtomicU64>,
}

/// Bytes of a room that were taken. They are free again when this is dropped.
#[derive(Debug)]
pub struct Taken {
    bytes: u64,
    used: Arc<AtomicU64>,
}

impl Room {
    pub fn new(budget: u64) -> Self {
        Self { budget, used: Arc::default() }
    }

    /// Takes `bytes`; `None` if so many are not free.
    pub fn take(&self, bytes: u64) -> Option<Taken> {
        let used = Arc::clone(&self.used);
        let more = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.budget);
        used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Taken { bytes, used })
    }

    /// Returns the number of bytes that are taken.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

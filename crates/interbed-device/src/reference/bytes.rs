//! Memory for weights of the reference device.

use std::sync::{Mutex, PoisonError};

/// Bytes that copies write when the device executes them.
#[derive(Debug)]
pub struct ReferenceBytes {
    bytes: Mutex<Vec<u8>>,
    len: usize,
}

impl ReferenceBytes {
    /// Bytes that are no number in any plain type, until they are written.
    pub(super) fn poisoned(len: usize) -> Self {
        Self { bytes: Mutex::new(vec![0xff; len]), len }
    }

    /// Bytes in the memory.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Lets `look` see all bytes, or change them.
    pub(super) fn with<R>(&self, look: impl FnOnce(&mut [u8]) -> R) -> R {
        look(&mut self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

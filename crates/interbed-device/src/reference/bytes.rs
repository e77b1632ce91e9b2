//! Memory for weights of the reference device.

use std::sync::{Mutex, PoisonError};

use super::room::Taken;

/// Bytes that copies write when the device executes them.
#[derive(Debug)]
pub struct ReferenceBytes {
    bytes: Mutex<Vec<u8>>,
    len: usize,
    /// The part of the device's memory that these bytes take, if the device has little.
    _taken: Option<Taken>,
}

impl ReferenceBytes {
    /// Creates `len` bytes that are no number in any plain type, until they are written.
    pub(super) fn poisoned(len: usize, taken: Option<Taken>) -> Self {
        Self { bytes: Mutex::new(vec![0xff; len]), len, _taken: taken }
    }

    /// Returns the number of bytes in the memory.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Calls `look` with all bytes, which it may read or change.
    pub(super) fn with<R>(&self, look: impl FnOnce(&mut [u8]) -> R) -> R {
        look(&mut self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

//! Memory that reads fill and that products read in place, without a copy in between.

use std::sync::Arc;

use interbed_device::{AllocError, HostBuffer};

/// A buffer that reads can fill while it has a single owner. Once filled, the buffer can be shared.
#[derive(Debug)]
pub struct StreamBuffer(Arc<HostBuffer>);

impl StreamBuffer {
    /// Allocates `bytes` bytes of page-aligned memory.
    ///
    /// # Errors
    /// Fails if the system has no memory left.
    pub fn new(bytes: usize) -> Result<Self, AllocError> {
        HostBuffer::new_zeroed(bytes).map(|buffer| Self(Arc::new(buffer)))
    }

    /// Allocates `count` buffers of `bytes` bytes each. The buffers are contiguous in memory if `bytes` is a multiple
    /// of the page size.
    ///
    /// # Errors
    /// Fails if the system has no memory left.
    pub fn new_row(bytes: usize, count: usize) -> Result<Vec<Self>, AllocError> {
        let row = HostBuffer::new_row(bytes, count)?;
        Ok(row.into_iter().map(|buffer| Self(Arc::new(buffer))).collect())
    }

    /// Converts the filled buffer into one that can have several owners.
    pub fn share(self) -> Arc<HostBuffer> {
        self.0
    }

    /// Converts a shared buffer back into one that reads can fill. Returns `None` if the buffer has another owner.
    pub fn reclaim(mut shared: Arc<HostBuffer>) -> Option<Self> {
        Arc::get_mut(&mut shared).is_some().then_some(Self(shared))
    }

    /// Returns the bytes of the buffer.
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_slice()
    }
}

impl AsMut<[u8]> for StreamBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        // Shared buffers come back only through `reclaim`, which checks that there is no other owner.
        Arc::get_mut(&mut self.0).map(HostBuffer::as_mut_slice).unwrap_or_default()
    }
}

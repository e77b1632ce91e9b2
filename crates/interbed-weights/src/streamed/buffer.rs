//! Memory that reads fill and that products read in place, without a copy in between.

use std::sync::Arc;

use interbed_device::{AllocError, HostBuffer};

/// A buffer that is read into while it has one owner, and that may be shared afterwards.
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

    /// Allocates `count` buffers of `bytes` bytes each. They lie side by side if `bytes` is a whole number of pages.
    ///
    /// # Errors
    /// Fails if the system has no memory left.
    pub fn new_row(bytes: usize, count: usize) -> Result<Vec<Self>, AllocError> {
        let row = HostBuffer::new_row(bytes, count)?;
        Ok(row.into_iter().map(|buffer| Self(Arc::new(buffer))).collect())
    }

    /// Makes the buffer shared, after it was read into.
    pub fn share(self) -> Arc<HostBuffer> {
        self.0
    }

    /// Takes back a shared buffer; returns `None` if it has another owner.
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

//! Memory that direct reads can be made into.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;

use crate::DIRECT_ALIGN;

/// Zeroed memory that starts on a [`DIRECT_ALIGN`] boundary and is a whole number of blocks long: for probes, packing and
/// tests. Weights live in buffers of a device instead.
pub struct AlignedBuffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its memory alone, and shared references to it only read.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Takes at least `len` bytes, rounded up to whole blocks; `None` if the system has not got them.
    pub fn new_zeroed(len: usize) -> Option<Self> {
        let len = len.max(1).checked_next_multiple_of(DIRECT_ALIGN)?;
        let layout = Layout::from_size_align(len, DIRECT_ALIGN).ok()?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, len })
    }

    /// The whole buffer.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` points to `len` initialised bytes that live as long as self; nobody writes while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsMut<[u8]> for AlignedBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: `start` points to `len` initialised bytes that live as long as self, borrowed here alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} bytes)", self.len)
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if let Ok(layout) = Layout::from_size_align(self.len, DIRECT_ALIGN) {
            // SAFETY: `start` was allocated in `new_zeroed` with this very layout, and is freed once.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
    }
}

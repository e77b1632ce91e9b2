//! Memory that direct reads can be made into.

use std::fmt;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::DIRECT_ALIGN;

/// Zeroed memory that starts on a [`DIRECT_ALIGN`] boundary and is a whole number of blocks long: for probes, packing and
/// tests. Weights live in buffers of a device instead. It comes straight from the system and goes straight back: an allocator
/// would keep tens of MiB of what a probe has used, beside every budget.
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
        // SAFETY: a new private mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
        // Pages are blocks or multiples of them.
        Some(Self { start: NonNull::new(start.ok()?.cast())?, len })
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
        // SAFETY: unmaps exactly what `new_zeroed` mapped, once; no reference outlives `self`. It cannot fail for a whole
        // mapping, and there is nobody to tell.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

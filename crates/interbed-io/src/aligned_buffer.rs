//! Buffers for direct reads and writes.

use std::fmt;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::DIRECT_ALIGN;

/// The bytes of a huge page. Direct reads into such pages are split into few pieces, and some disks take a long time
/// for each piece. With small pages, reads were measured at less than half the speed.
const HUGE_PAGE: usize = 2 << 20;

/// Zeroed memory for direct reads and writes. It begins on a [`DIRECT_ALIGN`] boundary, and its length is a multiple of
/// `DIRECT_ALIGN`. A buffer of 2 MiB or more begins on a huge-page boundary and requests huge pages from the system.
/// The memory is mapped directly from the system, and unmapped when the buffer is dropped. It does not come from the
/// allocator, because an allocator may keep freed memory, which no memory budget would count.
pub struct AlignedBuffer {
    start: NonNull<u8>,
    len: usize,
    /// The start of the mapping that contains the buffer.
    map: NonNull<u8>,
    mapped: usize,
}

// SAFETY: the buffer owns its memory alone, and shared references to it only read.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Allocates `len` bytes, rounded up to a positive multiple of [`DIRECT_ALIGN`]. Returns `None` if the system does
    /// not provide the memory.
    pub fn new_zeroed(len: usize) -> Option<Self> {
        let len = len.max(1).checked_next_multiple_of(DIRECT_ALIGN)?;
        // The extra room lets the buffer begin at a huge page, since the system chooses where the mapping begins. Pages
        // that are never written use no memory.
        let room = if len >= HUGE_PAGE { HUGE_PAGE } else { 0 };
        let mapped = len.checked_add(room)?;
        // SAFETY: a new private mapping at an address of the kernel's choice touches no memory in use.
        let map = unsafe { mmap_anonymous(null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
        let map = NonNull::new(map.ok()?.cast::<u8>())?;
        let before = map.as_ptr().align_offset(HUGE_PAGE).min(room);
        // SAFETY: `before` is at most the extra room, after which the mapping has the whole buffer. Pages are whole
        // blocks.
        let start = unsafe { map.add(before) };
        let huge = len / HUGE_PAGE * HUGE_PAGE;
        if huge > 0 {
            // This is only advice: a system without huge pages uses small ones. SAFETY: the range lies in the mapping
            // made above.
            let _ = unsafe { madvise(start.as_ptr().cast(), huge, Advice::LinuxHugepage) };
        }
        Some(Self { start, len, map, mapped })
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the whole buffer as a slice.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` points to `len` initialised bytes that live as long as self; nothing writes while it is
        // borrowed.
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
        // SAFETY: unmaps exactly what `new_zeroed` mapped, once; no reference outlives `self`. It cannot fail for a
        // whole mapping, and there is no way to report it.
        let _ = unsafe { munmap(self.map.as_ptr().cast(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_and_begin_where_reads_want_them() {
        for len in [0, 1, DIRECT_ALIGN + 1, HUGE_PAGE / 2, HUGE_PAGE, HUGE_PAGE + 1, 4 * HUGE_PAGE] {
            let mut buffer = AlignedBuffer::new_zeroed(len).unwrap();
            let bytes = buffer.as_mut();
            assert!(bytes.len() == len.max(1).next_multiple_of(DIRECT_ALIGN) && bytes.iter().all(|&byte| byte == 0));
            let align = if len >= HUGE_PAGE { HUGE_PAGE } else { DIRECT_ALIGN };
            assert!(bytes.as_ptr().addr().is_multiple_of(align), "{len}");
            bytes.fill(1);
        }
        assert!(AlignedBuffer::new_zeroed(usize::MAX).is_none());
    }
}

//! Memory taken straight from the operating system: page-aligned, zeroed, and counted only when touched.

use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use thiserror::Error;

/// Buffers from this size on ask for huge pages: fewer TLB misses when a pass walks through all of it.
const HUGE_PAGE_THRESHOLD: usize = 2 << 20;

/// The operating system refused memory.
#[derive(Debug, Error)]
#[error("could not reserve {bytes} bytes of host memory: {source}; lower --memory or free memory on this machine")]
pub struct AllocError {
    /// Bytes asked for.
    pub bytes: usize,
    source: rustix::io::Errno,
}

/// A page-aligned, zeroed region of host memory. Pages count towards the process only once they are written.
#[derive(Debug)]
pub struct HostBuffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its mapping, and hands out references under Rust's usual borrow rules.
unsafe impl Send for HostBuffer {}
// SAFETY: as above; a shared reference only gives shared slices.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Maps `len` bytes. A length of 0 gives an empty buffer.
    ///
    /// # Errors
    /// The system has no such amount of address space or memory left.
    pub fn new_zeroed(len: usize) -> Result<Self, AllocError> {
        let advice = (len >= HUGE_PAGE_THRESHOLD).then_some(Advice::LinuxHugepage);
        Self::map(len, MapFlags::PRIVATE, advice)
    }

    /// Maps `len` bytes of which many may never be written, or be [given back](Self::give_back): the system promises no
    /// memory for them ahead, and takes no huge pages, of which a single byte would count whole.
    ///
    /// # Errors
    /// The system has no such amount of address space left.
    pub fn new_sparse(len: usize) -> Result<Self, AllocError> {
        Self::map(len, MapFlags::PRIVATE | MapFlags::NORESERVE, Some(Advice::LinuxNoHugepage))
    }

    /// Bytes in the buffer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the whole pages within `range` back to the system. They no longer count towards the process, and are zeros
    /// when they are next looked at; what shares a page with bytes outside `range` stays as it is.
    ///
    /// # Errors
    /// The system refused, which it has no reason to; the bytes are as they were.
    ///
    /// # Panics
    /// If the range is not within the buffer.
    pub fn give_back(&mut self, range: Range<usize>) -> std::io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is not within {} bytes", self.len);
        let page = page_size();
        // The last page reaches beyond a length that is no multiple of it; the rest of it is nobody's.
        let end = if range.end == self.len { self.len.next_multiple_of(page) } else { range.end / page * page };
        let start = range.start.next_multiple_of(page);
        if start >= end {
            return Ok(());
        }
        // SAFETY: the pages are of this private anonymous mapping, whose start is page-aligned and whose last page was
        // mapped whole; `&mut self` excludes every reference into them, and zeros are as good as any other bytes.
        let dropped = unsafe { madvise(self.start.as_ptr().add(start).cast(), end - start, Advice::LinuxDontNeed) };
        Ok(dropped?)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping is `len` bytes, initialised to zero by the kernel, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    fn map(len: usize, flags: MapFlags, advice: Option<Advice>) -> Result<Self, AllocError> {
        if len == 0 {
            return Ok(Self { start: NonNull::dangling(), len });
        }
        // SAFETY: a new private anonymous mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }
            .map_err(|source| AllocError { bytes: len, source })?;
        if let Some(advice) = advice {
            // Advice only: where the system has no huge pages, small ones serve.
            // SAFETY: the range is the mapping made above.
            let _ = unsafe { madvise(start, len, advice) };
        }
        let start = NonNull::new(start.cast()).expect("mmap never returns null for a non-fixed mapping");
        Ok(Self { start, len })
    }
}

/// Bytes of a page of memory.
pub(crate) fn page_size() -> usize {
    rustix::param::page_size()
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: unmaps exactly what `new_zeroed` mapped; no reference outlives `self`.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}

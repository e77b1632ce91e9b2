//! Memory mapped directly from the operating system: page-aligned, zeroed, resident only once touched, and in huge
//! pages if it is large.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use thiserror::Error;

/// Bytes of a huge page.
pub const HUGE_PAGE: usize = 2 << 20;

/// Minimum size in bytes of a buffer that asks for huge pages, which give fewer TLB misses when a pass walks through
/// all of the buffer, and split direct reads into few pieces (some disks take a fixed time for each piece). A buffer
/// smaller than a huge page shares that page with neighbouring mappings, because the system maps the buffer beside
/// them. (After unmapping, the buffer's part of the page no longer counts as used; the system splits the huge page when
/// memory is short.)
const HUGE_FROM: usize = 256 << 10;

/// The operating system refused memory.
#[derive(Debug, Error)]
#[error("could not reserve {bytes} bytes of host memory: {source}; lower --memory or free memory on this machine")]
pub struct AllocError {
    /// Bytes asked for.
    pub bytes: usize,
    source: Errno,
}

impl AllocError {
    pub(crate) fn new(bytes: usize, source: Errno) -> Self {
        Self { bytes, source }
    }

    pub(crate) fn of(bytes: usize, source: &std::io::Error) -> Self {
        Self { bytes, source: source.raw_os_error().map_or(Errno::NOMEM, Errno::from_raw_os_error) }
    }
}

/// A page-aligned, zeroed region of host memory. Pages count towards the process only once they are written.
#[derive(Debug)]
pub struct HostBuffer {
    start: NonNull<u8>,
    len: usize,
    /// A device's view of this memory, if a device has one.
    view: OnceLock<Box<dyn Any + Send + Sync>>,
}

// SAFETY: the buffer owns its mapping, and hands out references under Rust's usual borrow rules.
unsafe impl Send for HostBuffer {}
// SAFETY: as above; a shared reference only gives shared slices.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Maps `len` bytes. A length of 0 gives an empty buffer.
    ///
    /// # Errors
    /// Fails if the system does not have that much address space or memory left.
    pub fn new_zeroed(len: usize) -> Result<Self, AllocError> {
        let advice = (len >= HUGE_FROM).then_some(Advice::LinuxHugepage);
        Self::map(len, 0, MapFlags::PRIVATE, advice)
    }

    /// Maps `count` buffers of `len` bytes each. If `len` is a multiple of the page size, the buffers lie side by side
    /// and use huge pages even if one buffer is smaller than a huge page. Each buffer is unmapped separately.
    ///
    /// # Errors
    /// Fails if the system does not have that much address space or memory left.
    pub fn new_row(len: usize, count: usize) -> Result<Vec<Self>, AllocError> {
        if !len.is_multiple_of(page_size()) {
            return (0..count).map(|_| Self::new_zeroed(len)).collect();
        }
        let bytes = len.checked_mul(count).ok_or(AllocError { bytes: usize::MAX, source: Errno::NOMEM })?;
        let room = if bytes >= HUGE_PAGE { HUGE_PAGE } else { 0 };
        let advice = (bytes >= HUGE_FROM).then_some(Advice::LinuxHugepage);
        let row = ManuallyDrop::new(Self::map(bytes, room, MapFlags::PRIVATE, advice)?);
        // Each buffer owns its pages of the mapping, and unmaps them when it is dropped.
        let starts = (0..count).map(|index| row.start.map_addr(|start| start.saturating_add(index * len)));
        Ok(starts.map(|start| Self::of(start, len)).collect())
    }

    /// Maps `len` bytes, many of which may never be written, or may be [given back](Self::give_back). The system does
    /// not reserve memory for these bytes, and uses no huge pages, because one written byte would make a whole huge
    /// page resident.
    ///
    /// # Errors
    /// Fails if the system does not have that much address space left.
    pub fn new_sparse(len: usize) -> Result<Self, AllocError> {
        Self::map(len, 0, MapFlags::PRIVATE | MapFlags::NORESERVE, Some(Advice::LinuxNoHugepage))
    }

    /// Returns the number of bytes in the buffer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the whole pages within `range` back to the system. The pages are no longer resident, and read as zeros
    /// from now on; pages that also hold bytes outside `range` stay unchanged.
    ///
    /// # Errors
    /// Fails if the system refused, for which it has no reason; the bytes are then unchanged.
    ///
    /// # Panics
    /// Panics if the range is not within the buffer.
    pub fn give_back(&mut self, range: Range<usize>) -> std::io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is not within {} bytes", self.len);
        let page = page_size();
        // If the length is no multiple of the page size, the last page reaches beyond it; no one else uses the rest of
        // it.
        let end = if range.end == self.len { self.len.next_multiple_of(page) } else { range.end / page * page };
        let start = range.start.next_multiple_of(page);
        if start >= end {
            return Ok(());
        }
        // A device would keep the pages that it has seen.
        self.view.take();
        // SAFETY: the pages are of this private anonymous mapping, whose start is page-aligned and whose last page was
        // mapped whole; `&mut self` excludes every reference into them, and zeros are as good as any other bytes.
        let dropped = unsafe { madvise(self.start.as_ptr().add(start).cast(), end - start, Advice::LinuxDontNeed) };
        Ok(dropped?)
    }

    /// Returns the address at which the buffer's pages begin, and the number of their bytes.
    pub(crate) fn pages(&self) -> (NonNull<u8>, usize) {
        (self.start, self.len.next_multiple_of(page_size()))
    }

    /// Keeps a device's view of the [pages](Self::pages), which stay mapped until the buffer is dropped. If a view is
    /// kept already, that view stays and the new view is dropped.
    pub(crate) fn keep_view<T: Any + Send + Sync>(&self, view: T) {
        self.view.get_or_init(|| Box::new(view));
    }

    /// Returns the view that is kept, if the view has the type `T`.
    pub(crate) fn view<T: Any>(&self) -> Option<&T> {
        self.view.get()?.downcast_ref()
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping is `len` bytes, initialised to zero by the kernel, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Returns the bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Maps `len` bytes. If `room` is the size of a huge page and not 0, they begin at a huge page.
    fn map(len: usize, room: usize, flags: MapFlags, advice: Option<Advice>) -> Result<Self, AllocError> {
        if len == 0 {
            return Ok(Self::of(NonNull::dangling(), len));
        }
        let refused = |source| AllocError { bytes: len, source };
        let pages = len.checked_next_multiple_of(page_size()).ok_or(refused(Errno::NOMEM))?;
        let mapped = pages.checked_add(room).ok_or(refused(Errno::NOMEM))?;
        // SAFETY: a new private anonymous mapping at an address of the kernel's choice touches no memory in use.
        let first = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, flags) }
            .map_err(refused)?;
        let before = if room > 0 { first.align_offset(HUGE_PAGE).min(room) } else { 0 };
        let start = first.wrapping_byte_add(before);
        for (unused, bytes) in [(first, before), (start.wrapping_byte_add(pages), room - before)] {
            if bytes > 0 {
                // SAFETY: whole pages of the mapping made above, which are not in use. It would only fail for want of
                // memory to note it, and address space is all that stays then.
                let _ = unsafe { munmap(unused, bytes) };
            }
        }
        if let Some(advice) = advice {
            // Only advice: if the system has no huge pages, small ones work too.
            // SAFETY: the range is the mapping made above.
            let _ = unsafe { madvise(start, len, advice) };
        }
        let start = NonNull::new(start.cast()).expect("mmap never returns null for a non-fixed mapping");
        Ok(Self::of(start, len))
    }

    fn of(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, view: OnceLock::new() }
    }
}

/// Returns the number of bytes of a page of memory.
pub fn page_size() -> usize {
    rustix::param::page_size()
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        self.view.take();
        if self.len > 0 {
            // SAFETY: unmaps the buffer's own pages of what was mapped; no reference outlives `self`.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_a_row_lie_side_by_side_and_go_one_by_one() {
        let len = 3 * page_size();
        let mut row = HostBuffer::new_row(len, 400).unwrap();
        for (i, buffer) in row.iter_mut().enumerate() {
            assert!(buffer.as_slice().iter().all(|&byte| byte == 0));
            buffer.as_mut_slice().fill(i as u8);
        }
        let start = |buffer: &HostBuffer| buffer.as_slice().as_ptr().addr();
        assert_eq!(start(&row[0]) % HUGE_PAGE, 0);
        assert!(row.windows(2).all(|pair| start(&pair[1]) - start(&pair[0]) == len));
        // Every second buffer is dropped, the first one included.
        let kept: Vec<_> = row.into_iter().enumerate().filter(|(i, _)| i % 2 == 1).collect();
        for (i, buffer) in &kept {
            assert!(buffer.as_slice().iter().all(|&byte| byte == *i as u8), "buffer {i}");
        }
    }

    #[test]
    fn rows_of_any_shape_are_served() {
        for (len, count) in [(0, 3), (1, 4), (page_size(), 0), (page_size() + 1, 2), (HUGE_PAGE + page_size(), 2)] {
            let mut row = HostBuffer::new_row(len, count).unwrap();
            assert_eq!(row.len(), count);
            for buffer in &mut row {
                assert_eq!(buffer.len(), len);
                buffer.as_mut_slice().fill(7);
            }
        }
        assert!(HostBuffer::new_row(page_size(), usize::MAX).is_err());
    }

    #[test]
    fn what_is_given_back_is_zeros() {
        for len in [1, HUGE_FROM, HUGE_PAGE, HUGE_PAGE + 1, 5 * HUGE_PAGE - 4096] {
            let mut buffer = HostBuffer::new_zeroed(len).unwrap();
            buffer.as_mut_slice().fill(1);
            buffer.give_back(0..len).unwrap();
            assert!(buffer.as_slice().iter().all(|&byte| byte == 0));
        }
    }
}

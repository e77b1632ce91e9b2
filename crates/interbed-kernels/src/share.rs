//! An output buffer to which the threads of a job write disjoint parts.

use std::marker::PhantomData;

/// A mutable slice that several threads cut disjoint pieces from.
#[derive(Clone, Copy)]
pub(crate) struct Share<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: callers of `slice` guarantee that pieces are disjoint, and `T` may cross threads.
unsafe impl<T: Send> Send for Share<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Share<'_, T> {}

impl<'a, T> Share<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// Wraps `len` elements from `start` on.
    ///
    /// # Safety
    /// For the lifetime `'a`, all elements of every piece that is cut are readable and writable.
    pub(crate) unsafe fn from_raw(start: *mut T, len: usize) -> Self {
        Self { start, len, lifetime: PhantomData }
    }

    /// Returns the address of element `first`, which `count` elements of the buffer begin with.
    ///
    /// # Panics
    /// Panics if the range exceeds the buffer.
    pub(crate) fn pointer(&self, first: usize, count: usize) -> *mut T {
        assert!(first <= self.len && count <= self.len - first);
        self.start.wrapping_add(first)
    }

    /// Cuts out elements `first .. first + count`.
    ///
    /// # Safety
    /// While the piece is in use, nothing else reads or writes these elements.
    ///
    /// # Panics
    /// Panics if the range exceeds the buffer.
    pub(crate) unsafe fn slice(&self, first: usize, count: usize) -> &'a mut [T] {
        assert!(first <= self.len && count <= self.len - first);
        // SAFETY: within the buffer; exclusive as the caller guarantees.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(first), count) }
    }
}

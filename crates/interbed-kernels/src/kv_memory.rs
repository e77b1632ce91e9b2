//! The memory of KV blocks in the form in which kernels access it. Parts of its address range may have no memory.

use std::marker::PhantomData;

use crate::Share;

/// The memory of KV blocks that an operation reads.
///
/// A kernel reads only the blocks of its [spans](crate::AttentionSpan). Memory between the blocks may be inaccessible.
#[derive(Clone, Copy)]
pub struct KvBytes<'a> {
    start: *const u8,
    len: usize,
    lifetime: PhantomData<&'a [u8]>,
}

// SAFETY: this gives only read access to bytes, as a shared slice does.
unsafe impl Send for KvBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for KvBytes<'_> {}

impl<'a> KvBytes<'a> {
    /// Wraps the KV blocks in the `len` bytes from `start` on. Memory between the blocks may be inaccessible.
    ///
    /// # Safety
    /// For the lifetime `'a`, every block that the spans of an operation name is readable, and nothing writes to it
    /// during the operation.
    pub unsafe fn new(start: *const u8, len: usize) -> Self {
        Self { start, len, lifetime: PhantomData }
    }

    /// Returns the number of bytes in the range.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the byte at `offset`, which is not read.
    ///
    /// # Panics
    /// Panics if the offset is beyond the range.
    pub(crate) fn at(&self, offset: usize) -> *const u8 {
        assert!(offset <= self.len, "byte {offset} of {}", self.len);
        self.start.wrapping_add(offset)
    }
}

impl<'a> From<&'a [u8]> for KvBytes<'a> {
    fn from(blocks: &'a [u8]) -> Self {
        // SAFETY: a slice is readable as long as it is borrowed.
        unsafe { Self::new(blocks.as_ptr(), blocks.len()) }
    }
}

/// The memory of KV blocks that an operation writes. [`KvBytes`] is the read-only counterpart.
pub struct KvBytesMut<'a> {
    start: *mut u8,
    len: usize,
    lifetime: PhantomData<&'a mut [u8]>,
}

impl<'a> KvBytesMut<'a> {
    /// Wraps the KV blocks in the `len` bytes from `start` on. Memory between the blocks may be inaccessible.
    ///
    /// # Safety
    /// For the lifetime `'a`, the slots of all tokens in the spans of an operation are writable, and nothing else reads
    /// or writes them during the operation.
    pub unsafe fn new(start: *mut u8, len: usize) -> Self {
        Self { start, len, lifetime: PhantomData }
    }

    /// Returns the number of bytes in the range.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns a [`Share`] from which threads take disjoint slots that the spans name.
    pub(crate) fn share(self) -> Share<'a, u8> {
        // SAFETY: only slots that spans name are taken, and `new` requires that these are writable.
        unsafe { Share::from_raw(self.start, self.len) }
    }
}

impl<'a> From<&'a mut [u8]> for KvBytesMut<'a> {
    fn from(blocks: &'a mut [u8]) -> Self {
        // SAFETY: a mutable slice is writable as long as it is borrowed, and by nobody else.
        unsafe { Self::new(blocks.as_mut_ptr(), blocks.len()) }
    }
}

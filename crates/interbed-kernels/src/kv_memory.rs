//! The memory that KV blocks lie in, as kernels see it: not all of it need be there.

use std::marker::PhantomData;

use crate::Share;

/// KV blocks to read.
///
/// A kernel touches the blocks that its spans name, and no others: between them there may be addresses without memory.
#[derive(Clone, Copy)]
pub struct KvBytes<'a> {
    start: *const u8,
    len: usize,
    lifetime: PhantomData<&'a [u8]>,
}

// SAFETY: it only gives read access to bytes, which is what a shared slice gives too.
unsafe impl Send for KvBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for KvBytes<'_> {}

impl<'a> KvBytes<'a> {
    /// Blocks in `len` bytes from `start` on, between which memory may be missing.
    ///
    /// # Safety
    /// As long as `'a`, every block that the spans of an operation name is readable, and nothing writes to it during
    /// the operation.
    pub unsafe fn new(start: *const u8, len: usize) -> Self {
        Self { start, len, lifetime: PhantomData }
    }

    /// Whole blocks in it.
    pub(crate) fn num_blocks(&self, block_bytes: usize) -> usize {
        self.len / block_bytes
    }

    /// The byte at `offset`, which is not read.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn at(&self, offset: usize) -> *const u8 {
        assert!(offset <= self.len, "byte {offset} of {}", self.len);
        self.start.wrapping_add(offset)
    }
}

impl<'a> From<&'a [u8]> for KvBytes<'a> {
    fn from(blocks: &'a [u8]) -> Self {
        // SAFETY: all of a slice is readable as long as it is borrowed.
        unsafe { Self::new(blocks.as_ptr(), blocks.len()) }
    }
}

/// KV blocks to write, otherwise like [`KvBytes`].
pub struct KvBytesMut<'a> {
    start: *mut u8,
    len: usize,
    lifetime: PhantomData<&'a mut [u8]>,
}

impl<'a> KvBytesMut<'a> {
    /// Blocks in `len` bytes from `start` on, between which memory may be missing.
    ///
    /// # Safety
    /// As long as `'a`, the slots of the tokens of every span of an operation are writable, and nothing else reads or
    /// writes them during the operation.
    pub unsafe fn new(start: *mut u8, len: usize) -> Self {
        Self { start, len, lifetime: PhantomData }
    }

    /// Whole blocks in it.
    pub(crate) fn num_blocks(&self, block_bytes: usize) -> usize {
        self.len / block_bytes
    }

    /// For threads to cut disjoint pieces from, of slots that spans name.
    pub(crate) fn share(self) -> Share<'a, u8> {
        // SAFETY: pieces are cut from slots that spans name, which are writable by the promise made to `new`.
        unsafe { Share::from_raw(self.start, self.len) }
    }
}

impl<'a> From<&'a mut [u8]> for KvBytesMut<'a> {
    fn from(blocks: &'a mut [u8]) -> Self {
        // SAFETY: all of a mutable slice is writable as long as it is borrowed, by nobody else.
        unsafe { Self::new(blocks.as_mut_ptr(), blocks.len()) }
    }
}

//! Keys and values that are in memory only while attention reads them.

use std::fmt;
use std::sync::Arc;

/// One layer's parts of consecutive blocks, side by side: `[block, k|v, kv_head, slot, head_dim]`, in the layout of
/// [`KvLayer::alone`](interbed_kernels::KvLayer::alone). A frame keeps its memory alive, so that an operation that a
/// device executes later still finds the KV.
#[derive(Clone)]
pub struct KvFrame {
    memory: Arc<dyn AsRef<[u8]> + Send + Sync>,
    len: usize,
}

impl KvFrame {
    /// Creates a frame of the first `len` bytes of `memory`.
    ///
    /// # Panics
    /// Panics if `memory` has fewer bytes.
    pub fn new(memory: Arc<dyn AsRef<[u8]> + Send + Sync>, len: usize) -> Self {
        assert!(len <= (*memory).as_ref().len(), "a frame is longer than its memory");
        Self { memory, len }
    }

    /// Returns the bytes in the form in which kernels read them.
    pub fn bytes(&self) -> &[u8] {
        &(*self.memory).as_ref()[..self.len]
    }
}

impl fmt::Debug for KvFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KvFrame({} bytes)", self.len)
    }
}

//! Keys and values that are in memory only while they are being looked at.

use std::fmt;
use std::sync::Arc;

/// One layer's parts of consecutive blocks, side by side: `[block, k|v, kv_head, slot, head_dim]`, as
/// [`KvLayer::alone`](interbed_kernels::KvLayer::alone) says. It keeps its memory alive, so that an operation that a
/// device executes later still finds it.
#[derive(Clone)]
pub struct KvFrame {
    memory: Arc<dyn AsRef<[u8]> + Send + Sync>,
    len: usize,
}

impl KvFrame {
    /// The first `len` bytes of `memory`.
    ///
    /// # Panics
    /// If it has fewer.
    pub fn new(memory: Arc<dyn AsRef<[u8]> + Send + Sync>, len: usize) -> Self {
        assert!(len <= (*memory).as_ref().len(), "a frame is longer than its memory");
        Self { memory, len }
    }

    /// The bytes, as kernels read them.
    pub fn bytes(&self) -> &[u8] {
        &(*self.memory).as_ref()[..self.len]
    }
}

impl fmt::Debug for KvFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KvFrame({} bytes)", self.len)
    }
}

//! Pieces of large allocations, for memory that is needed in many small ones and kept.

use std::sync::Arc;

use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::{GpuBuffer, Heap};

/// The most bytes of a chunk. A smaller budget has chunks of one part in [`BUDGET_SHARE`] of the budget, so that the
/// last chunk leaves little of it empty.
const CHUNK_MAX: u64 = 256 << 20;
const BUDGET_SHARE: u64 = 64;

/// Multiple of bytes at which pieces begin.
const PIECES: usize = 8;

/// Pieces begin at multiples of this.
const ALIGN: usize = 256;

/// The chunk that pieces are taken from.
#[derive(Default)]
pub(super) struct Chunks {
    last: Option<(GpuBuffer, usize)>,
}

impl Chunks {
    /// Takes `len` bytes of device memory.
    ///
    /// # Errors
    /// Fails if the budget, or the GPU, has no such memory.
    pub fn take(&mut self, gpu: &Arc<Gpu>, len: usize) -> Result<GpuBuffer, GpuError> {
        let [_, budget] = gpu.used();
        let chunk = usize::try_from((budget.0 / BUDGET_SHARE).min(CHUNK_MAX)).unwrap_or(usize::MAX);
        if len > chunk / PIECES {
            return GpuBuffer::new(gpu, Heap::Device, len);
        }
        if let Some((buffer, used)) = &mut self.last
            && len <= buffer.len() - *used
        {
            let start = *used;
            *used = (start + len).next_multiple_of(ALIGN).min(buffer.len());
            return Ok(buffer.part(start..start + len));
        }
        match GpuBuffer::new(gpu, Heap::Device, chunk) {
            Ok(buffer) => {
                let piece = buffer.part(0..len);
                self.last = Some((buffer, len.next_multiple_of(ALIGN)));
                Ok(piece)
            }
            // Near the end of the budget there may still be room for one.
            Err(GpuError::OutOfMemory { .. } | GpuError::DeviceMemory { .. }) => GpuBuffer::new(gpu, Heap::Device, len),
            Err(error) => Err(error),
        }
    }
}

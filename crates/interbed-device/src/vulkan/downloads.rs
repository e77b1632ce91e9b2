//! Host memory from which the host reads downloaded tensors.

use std::sync::Arc;

use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::{GpuBuffer, Heap};
use crate::Tensor;

/// Room for each tensor that was downloaded, used again for another once the host has read it.
#[derive(Default)]
pub(super) struct Downloads {
    places: Vec<Place>,
    /// Bytes that were ever downloaded.
    bytes: u64,
}

struct Place {
    tensor: Tensor,
    buffer: Arc<GpuBuffer>,
    /// The queue and submission that write the place.
    writer: (usize, u64),
}

impl Downloads {
    /// Returns room for `tensor`, which submission `writer` will write. Room may be used again if `is_read` says that
    /// the host has waited for the room's writer.
    pub fn room(
        &mut self,
        gpu: &Arc<Gpu>,
        tensor: Tensor,
        writer: (usize, u64),
        is_read: impl Fn((usize, u64)) -> bool,
    ) -> Result<Arc<GpuBuffer>, GpuError> {
        let len = tensor.len() * size_of::<f32>();
        self.bytes += len as u64;
        let own = self.places.iter().position(|place| place.tensor == tensor);
        let free = || self.places.iter().position(|place| place.buffer.len() >= len && is_read(place.writer));
        let index = match own.or_else(free) {
            Some(index) => index,
            None => {
                // A smaller one that is free makes room.
                if let Some(index) = self.places.iter().position(|place| is_read(place.writer)) {
                    self.places.swap_remove(index);
                }
                let buffer = Arc::new(GpuBuffer::new(gpu, Heap::Readback, len)?);
                self.places.push(Place { tensor, buffer, writer });
                self.places.len() - 1
            }
        };
        let place = &mut self.places[index];
        (place.tensor, place.writer) = (tensor, writer);
        Ok(Arc::clone(&place.buffer))
    }

    /// Returns the number of bytes that were ever downloaded.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the buffer to which `tensor` was downloaded last, and the submission that wrote it.
    pub fn find(&self, tensor: Tensor) -> Option<(&GpuBuffer, (usize, u64))> {
        let place = self.places.iter().find(|place| place.tensor == tensor)?;
        Some((&place.buffer, place.writer))
    }
}

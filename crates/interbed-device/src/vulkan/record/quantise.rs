//! Conversion of activations to bytes, before products that need bytes.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use super::{GROUPS_MAX, Recorder};
use crate::vulkan::error::GpuError;
use crate::vulkan::integers::{BLOCK, BLOCK_BYTES};
use crate::vulkan::kernels::Kernel;
use crate::{BandProduct, Operand, Tensor, Use};

impl Recorder<'_> {
    /// Converts the activations `x` to bytes, if `products` need bytes and these activations are not held already.
    /// Returns how the products use the bytes.
    pub(super) fn quantise(
        &mut self,
        x: Tensor,
        cols: usize,
        products: &[BandProduct<'_>],
    ) -> Result<Option<Use>, GpuError> {
        let Some(room) = self.integers.room.clone() else { return Ok(None) };
        if products.iter().all(|product| self.integers.address(product.weights.dtype()).is_none()) {
            return Ok(None);
        }
        assert!(cols.is_multiple_of(BLOCK), "rows of quantised weights are whole blocks");
        let blocks = x.len() / BLOCK;
        let place = Operand::Weights { memory: Arc::as_ptr(&room).addr(), start: 0, end: room.len() };
        let read = Use { place, writes: false };
        if self.integers.holds != Some(x) {
            assert!(blocks * BLOCK_BYTES <= room.len(), "activations beyond what was reserved for them");
            let push = QuantisePush { x: self.address(x), result: room.address(), blocks: blocks as u32, unused: 0 };
            let uses = [Use { place: Operand::Tensor(x), writes: false }, Use { place, writes: true }];
            let groups = blocks.div_ceil(self.kernels.threads()).min(GROUPS_MAX);
            self.run(&uses, Kernel::Quantise, &push, [groups, 1])?;
            self.integers.holds = Some(x);
        }
        Ok(Some(read))
    }
}

/// The arguments of `quantise.comp`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct QuantisePush {
    x: u64,
    result: u64,
    blocks: u32,
    unused: u32,
}

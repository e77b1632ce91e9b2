//! Products with quantised weights in integer arithmetic, like the processor's: activations become bytes, once for all
//! products of the same activations.

use std::fmt;
use std::sync::Arc;

use interbed_kernels::DType;

use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::{GpuBuffer, Heap};
use crate::{Operand, PassNeeds, Tensor, Use};

/// Numbers of activations that share a scale.
pub(super) const BLOCK: usize = 32;
/// Bytes that a block takes, with its scale and the sums of its halves.
pub(super) const BLOCK_BYTES: usize = 48;

/// The arithmetic of products with quantised weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProductArithmetic {
    /// Weights become f32, and activations stay as they are.
    #[default]
    Float,
    /// Activations become bytes with a scale for each 32, and bytes are multiplied. (On the processor, products with
    /// weights in blocks of 256 have other scales.)
    Integer,
}

impl fmt::Display for ProductArithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Float => "float",
            Self::Integer => "integer",
        })
    }
}

/// Memory for activations as bytes, and the activations that it holds.
pub(super) struct Integers {
    /// The memory; `None` if products are not computed in integers.
    pub room: Option<Arc<GpuBuffer>>,
    /// The activations that the room has as bytes.
    pub holds: Option<Tensor>,
}

impl Integers {
    /// Returns the number of bytes of room for passes of these `needs`.
    pub fn bytes(needs: &PassNeeds, arithmetic: ProductArithmetic) -> usize {
        match arithmetic {
            ProductArithmetic::Float => 0,
            ProductArithmetic::Integer => {
                needs.tokens.saturating_mul(needs.product_cols.div_ceil(BLOCK)).saturating_mul(BLOCK_BYTES)
            }
        }
    }

    /// Creates room for passes of these `needs`, if products are computed in integers.
    ///
    /// # Errors
    /// Fails if the GPU cannot compute in integers, or has no memory.
    pub fn new(gpu: &Arc<Gpu>, needs: &PassNeeds, arithmetic: ProductArithmetic) -> Result<Self, GpuError> {
        if arithmetic == ProductArithmetic::Float {
            return Ok(Self { room: None, holds: None });
        }
        if !gpu.info().has_dot_products {
            return Err(GpuError::NoDotProducts { gpu: gpu.info().name.clone() });
        }
        let room = GpuBuffer::new(gpu, Heap::Device, Self::bytes(needs, arithmetic))?;
        Ok(Self { room: Some(Arc::new(room)), holds: None })
    }

    /// Notes that a command with these uses is computed: activations that the command overwrites are not held any more.
    pub fn note(&mut self, uses: &[Use]) {
        let overwrites = |x: Tensor| uses.iter().any(|used| used.writes && used.place.overlaps(&Operand::Tensor(x)));
        self.holds = self.holds.filter(|&x| !overwrites(x));
    }

    /// Forgets which activations are held, because what was recorded may never be computed.
    pub fn forget(&mut self) {
        self.holds = None;
    }

    /// Returns the address at which products with weights of this type find activations as bytes, if they use bytes.
    pub fn address(&self, dtype: DType) -> Option<u64> {
        self.room.as_ref().filter(|_| !dtype.is_plain() && !dtype.is_decoded()).map(|room| room.address())
    }
}

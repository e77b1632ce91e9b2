//! Products with quantised weights in integers, as the processor computes them: activations become bytes, once for all
//! products of the same ones.

use std::fmt;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use strata_kernels::DType;

use super::error::GpuError;
use super::gpu::Gpu;
use super::kernels::Kernel;
use super::memory::{GpuBuffer, Heap};
use super::record::Recorder;
use crate::{BandProduct, Operand, PassNeeds, Tensor, Use};

/// Numbers of activations that share a scale, and the bytes that they take with it and the sums of their halves.
const BLOCK: usize = 32;
const BLOCK_BYTES: usize = 48;

/// How products with quantised weights are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProductArithmetic {
    /// Weights become f32, and activations stay as they are.
    #[default]
    Float,
    /// Activations become bytes with a scale for each 32, as on the processor, and bytes are multiplied.
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

/// Room for activations as bytes, and what is in it.
pub(super) struct Integers {
    room: Option<Arc<GpuBuffer>>,
    /// The activations that the room has as bytes.
    holds: Option<Tensor>,
}

impl Integers {
    /// Bytes of room for passes of these `needs`.
    pub fn bytes(needs: &PassNeeds, arithmetic: ProductArithmetic) -> usize {
        match arithmetic {
            ProductArithmetic::Float => 0,
            ProductArithmetic::Integer => {
                needs.tokens.saturating_mul(needs.product_cols.div_ceil(BLOCK)).saturating_mul(BLOCK_BYTES)
            }
        }
    }

    /// Room for passes of these `needs`, if products are computed in integers.
    ///
    /// # Errors
    /// When the GPU cannot compute so, or has no memory.
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

    /// Something with these uses is computed: what it overwrites is not held any more.
    pub fn note(&mut self, uses: &[Use]) {
        let overwrites = |x: Tensor| uses.iter().any(|used| used.writes && used.place.overlaps(&Operand::Tensor(x)));
        self.holds = self.holds.filter(|&x| !overwrites(x));
    }

    /// What was recorded may never be computed.
    pub fn forget(&mut self) {
        self.holds = None;
    }

    /// Where products with weights of this type find their activations, if they find bytes.
    pub fn address(&self, dtype: DType) -> Option<u64> {
        self.room.as_ref().filter(|_| !dtype.is_plain() && !is_coded(dtype)).map(|room| room.address())
    }
}

impl Recorder<'_> {
    /// Has the activations `x` as bytes, if `products` need them, and says how products use those.
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
            let groups = blocks.div_ceil(self.kernels.threads()).min(super::record::GROUPS_MAX);
            self.run(&uses, Kernel::Quantise, &push, [groups, 1])?;
            self.integers.holds = Some(x);
        }
        Ok(Some(read))
    }
}

fn is_coded(dtype: DType) -> bool {
    matches!(dtype, DType::CodedBf16 { .. })
}

/// What `quantise.comp` is given.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct QuantisePush {
    x: u64,
    result: u64,
    blocks: u32,
    unused: u32,
}

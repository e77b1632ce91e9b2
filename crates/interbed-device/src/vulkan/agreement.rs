//! Whether the host's products have the bits of a GPU's: drivers may round in more ways than one, so it is tried.

use std::sync::Arc;

use interbed_kernels::{Columns, DType, Level, Matrix, Pool, Product, SubgroupActivations, SubgroupOrder, join_scales};

use super::VulkanDevice;
use crate::{BandProduct, Command, Device, DeviceError, GpuError, HostBuffer, Queue, TensorArea, Weights};

/// Columns and rows of the products that are tried: some steps of the largest subgroup, with a rest.
const COLS: usize = 2560;
const ROWS: usize = 24;

/// Offsets of the half floats in a block, which are the only bits of a weight that must not be just any.
fn halves(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
        DType::Q2K => &[80, 82],
        DType::Q3K => &[108],
        DType::Q6K => &[208],
        DType::F16 | DType::Q8_0 | DType::Q4_0 | DType::Q5_0 | DType::Iq4Nl => &[0],
        DType::Iq4Xs | DType::Iq3S | DType::Iq3Xxs | DType::Iq2S => &[0],
        DType::Iq2Xs | DType::Iq2Xxs | DType::Iq1S => &[0],
        DType::Iq1M => &[],
        DType::F32 | DType::BF16 | DType::Mxfp4 | DType::Fp8 | DType::CodedBf16 { .. } => &[],
    }
}

/// Bits from a linear congruential generator.
struct Bits(u64);

impl Bits {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// Returns a number in -1 .. 1.
    fn number(&mut self) -> f32 {
        self.next() as f32 / (1u32 << 31) as f32 - 1.0
    }

    /// Returns random rows of weights of common sizes.
    fn weights(&mut self, dtype: DType) -> Vec<u8> {
        let len = dtype.row_bytes(COLS).expect("whole blocks of every type") * ROWS;
        match dtype {
            DType::F32 => (0..len / 4).flat_map(|_| self.number().to_le_bytes()).collect(),
            DType::BF16 => (0..len / 2).flat_map(|_| ((self.number().to_bits() >> 16) as u16).to_le_bytes()).collect(),
            DType::Fp8 => {
                let mut bytes = vec![0; len];
                // No code is that of NaN.
                bytes[len - ROWS * COLS..].fill_with(|| self.next() as u8 & 0xbf);
                join_scales(&mut bytes, COLS, 0, &vec![1.0 / 448.0; COLS.div_ceil(dtype.block_len())]);
                bytes
            }
            _ => {
                let mut bytes: Vec<u8> = (0..len).map(|_| self.next() as u8).collect();
                for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
                    for &at in halves(dtype) {
                        // Between 2^-8 and 2^-4.
                        block[at + 1] = block[at + 1] & 0x83 | (0x1c + 4 * (block[at + 1] >> 5 & 3));
                    }
                    if dtype == DType::Mxfp4 {
                        block[0] = 120 + block[0] % 8;
                    }
                }
                bytes
            }
        }
    }
}

impl VulkanDevice {
    /// Finds in which order, and with which roundings, this GPU adds up products with weights of these types, if the
    /// host can do the same. Writes the first of the device's tensors, which must not be in use yet.
    ///
    /// # Errors
    /// Fails if the GPU fails, or has no memory.
    pub(super) fn order_of_sums(&mut self, dtypes: &[DType]) -> Result<Option<SubgroupOrder>, DeviceError> {
        let mut area = TensorArea::default();
        let (x, out) = (area.take(COLS), area.take(ROWS));
        if area.check(self.tensor_capacity()).is_err()
            || !dtypes.iter().all(|&dtype| SubgroupActivations::multiplies(dtype))
        {
            return Ok(None);
        }
        let threads = self.gpu().info().subgroup as usize;
        let mut orders = [true, false].map(|fused| Some(SubgroupOrder { threads, fused }));
        let pool = Pool::new(std::num::NonZeroUsize::MIN);
        let mut bits = Bits(1);
        for &dtype in dtypes {
            let activations: Vec<f32> = (0..COLS).map(|_| bits.number()).collect();
            let bytes = bits.weights(dtype);
            let mut buffer = HostBuffer::new_zeroed(bytes.len()).map_err(|error| GpuError::Host(Arc::new(error)))?;
            buffer.as_mut_slice().copy_from_slice(&bytes);
            let weights = Weights::new(dtype, ROWS, COLS, Arc::new(buffer), 0..bytes.len());
            let values = |to: &mut [f32]| to.copy_from_slice(&activations);
            let products = [BandProduct { weights: &weights, rows: 0..ROWS, bias: None, out }];
            let commands = [
                Command::Fill { out: x, values: &values },
                Command::Products { x, cols: COLS, products: &products, gate: None },
                Command::Download { from: out },
            ];
            let token = self.submit(Queue::Compute, &commands, &[])?;
            self.complete(token)?;
            let by_gpu: Vec<u32> = self.downloaded(out)?.iter().map(|number| number.to_bits()).collect();
            for order in &mut orders {
                order.take_if(|order| {
                    let mut by_host = [0.0; ROWS];
                    let mut sums = SubgroupActivations::new(*order);
                    sums.set(&activations, COLS);
                    let weights = Matrix::new(dtype, ROWS, COLS, &bytes);
                    let product = Product { weights, bias: None, out: Columns::new(&mut by_host, ROWS) };
                    sums.multiply(&pool, Level::detect(), [product]);
                    by_host.iter().zip(&by_gpu).any(|(host, gpu)| host.to_bits() != *gpu)
                });
            }
        }
        Ok(orders.into_iter().flatten().next())
    }
}

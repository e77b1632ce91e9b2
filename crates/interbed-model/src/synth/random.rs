//! Generates random weights quickly. Each value is a hash of its position, so any thread can generate any chunk.

use half::f16;
use half::slice::HalfFloatSliceExt;
use interbed_kernels::{DType, quantize};
use interbed_weights::TensorMeta;

use super::Chunks;

/// The number of elements in a chunk, which is the unit of work. A chunk has a few MiB.
pub(super) const CHUNK_ELEMENTS: u64 = 1 << 20;
/// The number of elements that are converted at a time. This many elements fit in the L1 cache.
const BLOCK: usize = 4096;

/// A generator of the values of one tensor.
pub(super) struct TensorStream {
    key: u64,
    num_elements: u64,
    dtype: DType,
    mean: f32,
    /// The standard deviation of the values.
    spread: f32,
    /// The number of columns of a router's matrix, and the power of the rank by which its rows are divided. Other
    /// tensors have `None`.
    skew: Option<(u64, f32)>,
}

impl TensorStream {
    /// Chooses the distribution of the values of `tensor`, so that activations keep their size from layer to layer.
    ///
    /// The values of a matrix have a standard deviation of 1/√(inputs); the values of a norm lie around 1, and those of
    /// a bias around 0. The rows of a router are divided by their rank to the power `router_skew`. In a `routed` model,
    /// which has experts, the embeddings of tokens have a standard deviation of 1, as much as a layer adds to them.
    /// With less, attention, which adds the mean of all tokens, would hide the differences between tokens, and all
    /// tokens of a sequence would go to the same experts.
    pub(super) fn new(seed: u64, router_skew: f32, routed: bool, tensor: &TensorMeta) -> Self {
        let (mean, spread) = match tensor.shape.as_slice() {
            _ if routed && tensor.name.ends_with("embed_tokens.weight") => (0.0, 1.0),
            [.., inputs] if tensor.shape.len() > 1 => (0.0, 1.0 / (*inputs as f32).max(1.0).sqrt()),
            _ if tensor.name.ends_with("norm.weight") => (1.0, 0.05),
            _ => (0.0, 0.02),
        };
        let key = tensor.name.bytes().fold(mix64(seed), |key, byte| mix64(key ^ u64::from(byte)));
        let num_elements = tensor.shape.iter().map(|&dim| dim as u64).product();
        let is_router = tensor.name.ends_with(".mlp.gate.weight") && router_skew != 0.0;
        let skew = tensor.shape.last().filter(|_| is_router).map(|&cols| (cols as u64, router_skew));
        Self { key, num_elements, dtype: tensor.dtype, mean, spread, skew }
    }

    /// Makes all values smaller by `offset`.
    pub(super) fn less(self, offset: f32) -> Self {
        Self { mean: self.mean - offset, ..self }
    }

    /// Fills `values` with the elements from number `first` on, before they are converted to the tensor's type.
    pub(super) fn fill_values(&self, mut first: u64, mut values: &mut [f32]) {
        while !values.is_empty() {
            let (chunk, within) = (first / CHUNK_ELEMENTS, first % CHUNK_ELEMENTS);
            let count = (values.len() as u64).min(CHUNK_ELEMENTS - within);
            let (now, later) = values.split_at_mut(count as usize);
            self.fill_block(mix64(self.key ^ chunk), within as u32, now);
            self.skew(first, now);
            (first, values) = (first + count, later);
        }
    }

    /// Divides the rows of a router's matrix by their rank to the chosen power. `values` are its elements from `first`
    /// on.
    fn skew(&self, first: u64, values: &mut [f32]) {
        let Some((cols, power)) = self.skew else { return };
        for (element, value) in (first..).zip(values) {
            *value *= ((1 + element / cols) as f32).powf(-power);
        }
    }

    /// Fills `values` with nearly normal values for the elements of a chunk from `first` on. The loop has only 32-bit
    /// steps without branches, so that the compiler can vectorise it.
    fn fill_block(&self, key: u64, first: u32, values: &mut [f32]) {
        let (low, high) = (key as u32, (key >> 32) as u32);
        // The sum of four bytes has a variance of 4 · (256² - 1) / 12, and the fraction adds 1/12.
        let scale = self.spread / (65_535.0f32 / 3.0 + 1.0 / 12.0).sqrt();
        for (index, value) in values.iter_mut().enumerate() {
            let bits = mix32((first + index as u32).wrapping_mul(0x9E37_79B9) ^ low) ^ high;
            let sum = (bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24);
            // Four bytes alone give only a thousand values; the fraction fills the gaps between them.
            let fraction = bits.wrapping_mul(0x2545_F491) >> 16;
            let centred = sum as i32 as f32 - 510.0 + (fraction as i32 as f32 / 65_536.0 - 0.5);
            *value = self.mean + scale * centred;
        }
    }
}

impl Chunks for TensorStream {
    fn num_chunks(&self) -> u64 {
        self.num_elements.div_ceil(CHUNK_ELEMENTS)
    }

    /// Writes the values of a chunk in a plain type, little-endian.
    fn fill_chunk(&self, chunk: u64, bytes: &mut Vec<u8>) {
        let count = (self.num_elements - chunk * CHUNK_ELEMENTS).min(CHUNK_ELEMENTS) as usize;
        bytes.resize(count * self.dtype.block_bytes(), 0);
        let key = mix64(self.key ^ chunk);
        let mut values = [0f32; BLOCK];
        for (block, out) in bytes.chunks_mut(BLOCK * self.dtype.block_bytes()).enumerate() {
            let values = &mut values[..out.len() / self.dtype.block_bytes()];
            self.fill_block(key, (block * BLOCK) as u32, values);
            self.skew(chunk * CHUNK_ELEMENTS + (block * BLOCK) as u64, values);
            encode(self.dtype, values, out);
        }
    }
}

/// Encodes finite `values`, which fill whole blocks of `dtype`, into the little-endian bytes `out`.
pub(super) fn encode(dtype: DType, values: &[f32], out: &mut [u8]) {
    match dtype {
        DType::F32 => {
            for (out, value) in out.chunks_exact_mut(4).zip(values) {
                out.copy_from_slice(&value.to_le_bytes());
            }
        }
        DType::F16 => {
            let mut short = [f16::ZERO; BLOCK];
            for (out, values) in out.chunks_mut(2 * BLOCK).zip(values.chunks(BLOCK)) {
                let short = &mut short[..values.len()];
                short.convert_from_f32_slice(values);
                out.copy_from_slice(bytemuck::cast_slice(short));
            }
        }
        // The loop rounds by hand: all values are finite, and without a test for other values the loop vectorises.
        DType::BF16 => {
            for (out, value) in out.chunks_exact_mut(2).zip(values) {
                let bits = value.to_bits();
                let rounded = bits + 0x7FFF + (bits >> 16 & 1);
                out.copy_from_slice(&((rounded >> 16) as u16).to_le_bytes());
            }
        }
        quantised => quantize(quantised, values, out),
    }
}

/// Mixes 32 bits with the finaliser of MurmurHash3.
fn mix32(mut value: u32) -> u32 {
    value ^= value >> 16;
    value = value.wrapping_mul(0x85EB_CA6B);
    value ^= value >> 13;
    value = value.wrapping_mul(0xC2B2_AE35);
    value ^ value >> 16
}

/// Mixes 64 bits with one step of SplitMix64.
fn mix64(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

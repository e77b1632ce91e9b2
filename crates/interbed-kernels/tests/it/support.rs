//! Small deterministic data, and comparisons.

use std::num::NonZeroUsize;

use half::{bf16, f16};
use interbed_kernels::{
    AttentionSpan, DType, KvDType, KvLayer, KvLayout, KvShape, Level, Pool, RopeStyle, Rotation, rotate_and_store,
};

/// Numbers in -1 .. 1 from a linear congruential generator.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    pub fn take(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }
}

pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

pub fn pool(threads: usize) -> Pool {
    Pool::new(NonZeroUsize::new(threads).unwrap())
}

/// Encodes `values` as `dtype`; returns the bytes, and the values after rounding.
pub fn encode(dtype: DType, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    match dtype {
        DType::F32 => (values.iter().flat_map(|v| v.to_le_bytes()).collect(), values.to_vec()),
        DType::F16 => {
            let rounded: Vec<f16> = values.iter().map(|&v| f16::from_f32(v)).collect();
            (rounded.iter().flat_map(|v| v.to_le_bytes()).collect(), rounded.iter().map(|v| v.to_f32()).collect())
        }
        DType::BF16 => {
            let rounded: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
            (rounded.iter().flat_map(|v| v.to_le_bytes()).collect(), rounded.iter().map(|v| v.to_f32()).collect())
        }
        other => unreachable!("{other} is no plain type"),
    }
}

pub fn assert_close(got: &[f32], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(1e-6f64, |largest, value| largest.max(value.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*got) - want).abs() <= tolerance * largest, "{what}: [{i}] is {got}, not {want}");
    }
}

/// The levels that have fused multiply-add, which agree to the bit.
pub fn fused_levels() -> impl Iterator<Item = Level> {
    Level::available().filter(|level| level.name() != "portable")
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// One level for each set of vector operations, and the level that multiplies pairs of bf16.
pub fn kernel_levels() -> impl Iterator<Item = Level> {
    Level::available().filter(|level| ["portable", "neon", "avx2", "avx512", "avx512-bf16"].contains(&level.name()))
}

/// A layout with equal layers.
pub fn alike(num_layers: usize, num_kv_heads: usize, head_dim: usize, block_size: usize, dtype: KvDType) -> KvLayout {
    KvLayout::new(block_size, dtype, vec![KvShape { num_kv_heads, head_dim }; num_layers])
}

/// Writes keys and values `[tokens, kv_heads, head_dim]` of the positions from `first` on, without rotation.
pub fn store(layer: &KvLayer, blocks: &mut [u8], block_table: &[u32], first: usize, k: &[f32], v: &[f32]) {
    store_at(Level::detect(), layer, blocks, block_table, first, k, v);
}

/// Writes keys and values like [`store`], with the instructions of `level`.
pub fn store_at(
    level: Level,
    layer: &KvLayer,
    blocks: &mut [u8],
    block_table: &[u32],
    first: usize,
    k: &[f32],
    v: &[f32],
) {
    let tokens = k.len() / layer.num_kv_heads() / layer.head_dim();
    let half = tokens * layer.head_dim() / 2;
    let (cos, sin) = (vec![1.0; half], vec![0.0; half]);
    let rotation = Rotation { style: RopeStyle::Neighbours, cos: &cos, sin: &sin };
    let spans = [AttentionSpan::new(first, tokens, 0..block_table.len() as u32)];
    let (mut q, mut keys) = (vec![0.0; tokens * layer.head_dim()], k.to_vec());
    let pool = pool(1);
    rotate_and_store(&pool, level, layer, blocks.into(), &spans, block_table, rotation, &mut q, &mut keys, v);
}

//! The operation before attention: rotates queries and keys, and writes keys and values to the KV cache.

use crate::attention::{AttentionSpan, Lanes};
use crate::pool::Pool;
use crate::rope::{RopeStyle, rope};
use crate::share::Share;
use crate::simd::{LANES, dispatch, load_few};
use crate::{KvBytesMut, KvDType, KvLayer, Level};

/// The angles of the rotary position embedding for each token of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Rotation<'a> {
    /// The rule that pairs the elements of a head.
    pub style: RopeStyle,
    /// The cosines of each token's angles, `[tokens, pairs]`, with at most `head_dim / 2` pairs. Elements beyond the
    /// pairs are not rotated.
    pub cos: &'a [f32],
    /// The sines, in the shape of `cos`.
    pub sin: &'a [f32],
}

/// The cost of rotating, narrowing and moving one element, in multiply-adds.
const ELEMENT_COST: usize = 4;

/// Rotates all queries and keys of a batch, and writes the batch's keys and values to their blocks, rounded to the type
/// of the KV cache.
///
/// - `blocks`: the KV pool, `[block, layer, k|v, kv_head, slot, head_dim]`
/// - `tables`: the block tables, of which each [`KvPlace::Listed`](crate::KvPlace::Listed) selects a range
/// - `q`: `[tokens, heads, head_dim]`, rotated in place
/// - `k`: `[tokens, num_kv_heads, head_dim]`, rotated in place
/// - `v`: `[tokens, num_kv_heads, head_dim]`
///
/// # Panics
/// Panics if a block table is too short or names a block that is not in the KV pool, or the lengths disagree. In these
/// cases, nothing has been written.
#[expect(clippy::too_many_arguments, reason = "an operation with this many operands")]
pub fn rotate_and_store(
    pool: &Pool,
    level: Level,
    layer: &KvLayer,
    blocks: KvBytesMut<'_>,
    spans: &[AttentionSpan],
    tables: &[u32],
    rotation: Rotation<'_>,
    q: &mut [f32],
    k: &mut [f32],
    v: &[f32],
) {
    let (head_dim, kv_heads) = (layer.head_dim(), layer.num_kv_heads());
    for span in spans {
        span.kv(tables).check(layer, blocks.len(), &span.positions());
    }
    let tokens: usize = spans.iter().map(|span| span.tokens).sum();
    assert!(k.len() == tokens * kv_heads * head_dim && v.len() == k.len());
    if tokens == 0 {
        return;
    }
    let half = rotation.cos.len() / tokens;
    assert!(rotation.cos.len() == tokens * half && rotation.sin.len() == tokens * half && 2 * half <= head_dim);
    let width = q.len() / tokens;
    assert!(q.len() == tokens * width && width.is_multiple_of(head_dim));
    let slot_bytes = layer.slot_bytes();
    let (keys, blocks) = (Share::new(k), blocks.share());
    // Heads of the cache are disjoint whatever the block tables say, so threads divide the heads rather than the
    // tokens.
    pool.split(2 * kv_heads, 1, ELEMENT_COST * tokens * head_dim, |heads| {
        for head in heads {
            let (kv_head, is_value) = (head / 2, head % 2 == 1);
            let first_slot = layer.key_offset(kv_head) + if is_value { layer.value_offset() } else { 0 };
            let mut first_token = 0;
            for run in spans.iter().flat_map(|span| span.kv(tables).runs(layer, span.positions())) {
                // SAFETY: slots of one head, keys or values, belong to no other, and each head is in one thread's share
                // only.
                let slots = unsafe { blocks.slice(first_slot + run.offset, run.tokens * slot_bytes) };
                for (token, slot) in (first_token..).zip(slots.chunks_exact_mut(slot_bytes)) {
                    let at = (token * kv_heads + kv_head) * head_dim;
                    let row = if is_value {
                        &v[at..at + head_dim]
                    } else {
                        // SAFETY: as above.
                        let row = unsafe { keys.slice(at, head_dim) };
                        turn(level, rotation, [head_dim, half], token, row);
                        &*row
                    };
                    narrow(level, layer.dtype(), row, slot);
                }
                first_token += run.tokens;
            }
        }
    });
    rotate(pool, level, rotation, [width / head_dim, head_dim], q);
}

/// Rotates the queries `q`, `[tokens, heads, head_dim]`, of a batch.
///
/// # Panics
/// Panics if the lengths disagree.
pub fn rotate(pool: &Pool, level: Level, rotation: Rotation<'_>, [heads, head_dim]: [usize; 2], q: &mut [f32]) {
    let width = heads * head_dim;
    if q.is_empty() {
        return;
    }
    let (tokens, half) = (q.len() / width, rotation.cos.len() * width / q.len());
    assert!(q.len() == tokens * width && rotation.cos.len() == tokens * half && rotation.sin.len() == tokens * half);
    assert!(2 * half <= head_dim);
    let queries = Share::new(q);
    pool.split(tokens, 1, ELEMENT_COST * width, |range| {
        for token in range {
            // SAFETY: each token is in one thread's share only.
            let row = unsafe { queries.slice(token * width, width) };
            turn(level, rotation, [head_dim, half], token, row);
        }
    });
}

/// Rotates the heads in `row`, of the batch's token number `token`.
fn turn(level: Level, rotation: Rotation<'_>, [head_dim, half]: [usize; 2], token: usize, row: &mut [f32]) {
    let style = rotation.style;
    let (cos, sin) = (&rotation.cos[token * half..][..half], &rotation.sin[token * half..][..half]);
    dispatch!(level, turn_kernel::<_>(row: &mut [f32], head_dim: usize, style: RopeStyle, cos: &[f32], sin: &[f32]));
}

/// Rotates heads, compiled for a level's instructions, with which the compiler vectorizes the loop.
#[inline(always)]
fn turn_kernel<S: Lanes>(_: S, row: &mut [f32], head_dim: usize, style: RopeStyle, cos: &[f32], sin: &[f32]) {
    rope(row, head_dim, style, cos, sin);
}

fn narrow(level: Level, dtype: KvDType, from: &[f32], to: &mut [u8]) {
    match dtype {
        KvDType::F32 => to.copy_from_slice(bytemuck::cast_slice(from)),
        KvDType::F16 => dispatch!(level, narrow_f16::<_>(from: &[f32], to: &mut [u8])),
        KvDType::BF16 => dispatch!(level, narrow_bf16::<_>(from: &[f32], to: &mut [u8])),
        KvDType::Q8 => dispatch!(level, quantize::<_>(from: &[f32], to: &mut [u8])),
    }
}

#[inline(always)]
fn narrow_f16<S: Lanes>(s: S, from: &[f32], to: &mut [u8]) {
    let (to, _) = to.as_chunks_mut::<2>();
    assert!(to.len() == from.len());
    let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<LANES>(), to.as_chunks_mut::<LANES>());
    for (from, to) in from.iter().zip(to) {
        s.store_f16(s.load(from), to);
    }
    if !from_rest.is_empty() {
        let mut tail = [[0; 2]; LANES];
        s.store_f16(load_few(s, from_rest), &mut tail);
        to_rest.copy_from_slice(&tail[..from_rest.len()]);
    }
}

#[inline(always)]
fn narrow_bf16<S: Lanes>(_: S, from: &[f32], to: &mut [u8]) {
    let (elements, _) = to.as_chunks_mut::<2>();
    for (value, element) in from.iter().zip(elements) {
        let bits = value.to_bits();
        // Rounds to nearest, ties to even; a NaN stays NaN.
        let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
        let quiet = (bits >> 16) as u16 | 0x40;
        *element = (if value.is_nan() { quiet } else { rounded }).to_ne_bytes();
    }
}

/// Quantizes each [`KvDType::SCALED`] elements to integers with a common scale that fits the greatest of them: the
/// scale is rounded up to bf16, so that no integer exceeds 127, and the integers are relative to the rounded scale. If
/// an element is not finite the scale is NaN, as an overflow must show.
#[inline(always)]
fn quantize<S: Lanes>(_: S, from: &[f32], to: &mut [u8]) {
    // 1.5 * 2^23: adding it leaves the nearest integer in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    const INFINITE: u32 = f32::INFINITY.to_bits();
    let (scales, integers) = to.split_at_mut(2 * from.len().div_ceil(KvDType::SCALED));
    let (scales, _) = scales.as_chunks_mut::<2>();
    let groups = from.chunks(KvDType::SCALED).zip(integers.chunks_mut(KvDType::SCALED));
    for ((from, to), scale) in groups.zip(scales) {
        let mut greatest = 0u32;
        for value in from {
            // Without the sign, floats are ordered like their bits, and those that are not finite come last.
            greatest = greatest.max(value.to_bits() & !(1 << 31));
        }
        if greatest >= INFINITE || greatest == 0 {
            *scale = (if greatest == 0 { 0u16 } else { (f32::NAN.to_bits() >> 16) as u16 }).to_ne_bytes();
            to.fill(0);
            continue;
        }
        let exact = (f32::from_bits(greatest) / 127.0).to_bits();
        let bits = exact.wrapping_add(0xffff) & 0xffff_0000;
        // A scale that is too small for bf16 becomes the smallest one.
        let bits = bits.max(1 << 16);
        *scale = ((bits >> 16) as u16).to_ne_bytes();
        let divisor = f32::from_bits(bits);
        for (value, to) in from.iter().zip(to) {
            *to = (value / divisor + ROUND).to_bits() as u8;
        }
    }
}

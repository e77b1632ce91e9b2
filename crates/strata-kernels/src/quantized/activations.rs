//! Activations as bytes: what the integer products take in.
//!
//! Each 32 numbers of a token have a scale `largest magnitude / 127` in f32, and codes `round(x * (1 / scale))`, ties to
//! even. That depends on nothing but the 32 numbers, and is computed by the same formula at every level. Where a number is
//! not finite the scale is NaN, so that every product shows it.

use bytemuck::cast_slice_mut;

#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{Portable, Simd, dispatch};
use crate::{Level, Pool, Share};

/// Numbers that share a scale, in activations and (at least) in all quantised weights.
pub(super) const BLOCK: usize = 32;

/// Tokens that lie side by side in the lanes of a vector.
pub(super) const TILE: usize = 16;

/// Parts of the scratch begin at whole cache lines.
const LINE: usize = 64;

/// Codes of a token by itself are padded to whole vectors of four blocks.
const ROW_GRANULE: usize = 128;

/// How codes, scales and sums lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// Token by token: codes `[token][column]`, with zeros up to a multiple of 128 columns; scales `[token][block]`;
    /// sums `[token][block][half]`.
    Rows,
    /// Sixteen tokens side by side: codes `[tile][block][8][token 16][4]`, scales `[tile][block][token 16]`, sums
    /// `[tile][block][half][token 16]`. Missing tokens of the last tile are zeros.
    Tiles,
}

/// The quantised activations of some tokens, shared by any number of products.
#[derive(Debug, Clone, Copy)]
pub(super) struct Activations<'a> {
    pub layout: Layout,
    pub tokens: usize,
    /// Blocks of 32 in a row.
    pub blocks: usize,
    pub codes: &'a [i8],
    pub scales: &'a [f32],
    /// Sums of the codes of each half block; integers, and so exact.
    pub sums: &'a [f32],
}

/// Bytes of scratch that [`quantize`] needs for so many tokens, in either layout.
///
/// # Panics
/// If that is more than can be counted.
pub(super) fn scratch_bytes(tokens: usize, cols: usize) -> usize {
    Sizes::of(Layout::Rows, tokens, cols).total().max(Sizes::of(Layout::Tiles, tokens, cols).total())
}

/// Codes, scales and sums of `x` `[tokens, cols]`, in `scratch`, which may hold anything before; unless they are `wanted`,
/// those that it holds.
///
/// # Panics
/// If `cols` is not a multiple of 32, or the scratch has fewer than [`scratch_bytes`].
pub(super) fn quantize<'a>(
    pool: &Pool,
    level: Level,
    layout: Layout,
    x: &[f32],
    cols: usize,
    scratch: &'a mut [u8],
    wanted: bool,
) -> Activations<'a> {
    assert!(cols > 0 && cols.is_multiple_of(BLOCK) && x.len().is_multiple_of(cols));
    let (tokens, blocks) = (x.len() / cols, cols / BLOCK);
    let sizes = Sizes::of(layout, tokens, cols);
    let skipped = scratch.as_ptr().align_offset(LINE);
    let (codes, rest) = scratch[skipped..][..sizes.codes + sizes.scales + sizes.sums].split_at_mut(sizes.codes);
    let (scales, sums) = rest.split_at_mut(sizes.scales);
    let (codes, scales, sums) = (cast_slice_mut(codes), cast_slice_mut(scales), cast_slice_mut(sums));
    let shares = (Share::new(codes), Share::new(scales), Share::new(sums));
    let (granule, stride) = match layout {
        Layout::Rows => (1, cols.next_multiple_of(ROW_GRANULE)),
        Layout::Tiles => (TILE, cols),
    };
    let tokens_wanted = if wanted { tokens } else { 0 };
    // A number costs about as much as four multiply-adds.
    pool.split(tokens_wanted, granule, cols.saturating_mul(4), |share| {
        // What belongs to these tokens, with the missing ones of a last tile.
        let (first, count) = (share.start, share.len().next_multiple_of(granule));
        // SAFETY: shares begin at whole granules, so no two threads are given the same token or tile.
        let job = unsafe {
            Job {
                x: &x[share.start * cols..share.end * cols],
                cols,
                codes: shares.0.slice(first * stride, count * stride),
                scales: shares.1.slice(first * blocks, count * blocks),
                sums: shares.2.slice(first * blocks * 2, count * blocks * 2),
            }
        };
        match layout {
            Layout::Rows => dispatch!(level, rows::<_>(job: Job<'_>)),
            Layout::Tiles => dispatch!(level, tiles::<_>(job: Job<'_>)),
        }
    });
    Activations { layout, tokens, blocks, codes, scales, sums }
}

/// Bytes of each part, in the order in which they lie.
struct Sizes {
    codes: usize,
    scales: usize,
    sums: usize,
}

impl Sizes {
    fn of(layout: Layout, tokens: usize, cols: usize) -> Self {
        let (tokens, stride) = match layout {
            Layout::Rows => (Some(tokens), cols.checked_next_multiple_of(ROW_GRANULE)),
            Layout::Tiles => (tokens.checked_next_multiple_of(TILE), Some(cols)),
        };
        let times = |a: Option<usize>, b: Option<usize>| a?.checked_mul(b?);
        let blocks = times(tokens, Some(cols / BLOCK));
        let part = |bytes: Option<usize>| bytes.expect("activations that exist can be counted");
        Self {
            codes: part(times(tokens, stride)),
            scales: part(times(blocks, Some(size_of::<f32>()))),
            sums: part(times(blocks, Some(2 * size_of::<f32>()))),
        }
    }

    /// With room for alignment.
    fn total(&self) -> usize {
        let total = self.codes.checked_add(self.scales).and_then(|sum| sum.checked_add(self.sums));
        total.and_then(|sum| sum.checked_add(LINE)).expect("activations that exist can be counted")
    }
}

struct Job<'a> {
    x: &'a [f32],
    cols: usize,
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
}

/// # Safety
/// The level's instructions exist.
#[inline(always)]
unsafe fn rows<S: Encode>(job: Job<'_>) {
    let blocks = job.cols / BLOCK;
    let stride = job.cols.next_multiple_of(ROW_GRANULE);
    for (token, x) in job.x.chunks_exact(job.cols).enumerate() {
        let codes = &mut job.codes[token * stride..][..stride];
        codes[job.cols..].fill(0);
        for (block, x) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
            let at = token * blocks + block;
            // SAFETY: the caller's promise.
            let encoded = unsafe { S::encode(x) };
            codes[block * BLOCK..][..BLOCK].copy_from_slice(&encoded.codes);
            job.scales[at] = encoded.scale;
            job.sums[at * 2..][..2].copy_from_slice(&encoded.sums);
        }
    }
}

/// # Safety
/// As for [`rows`].
#[inline(always)]
unsafe fn tiles<S: Encode>(job: Job<'_>) {
    let blocks = job.cols / BLOCK;
    let tokens = job.x.len() / job.cols;
    for tile in 0..job.scales.len() / (blocks * TILE) {
        for block in 0..blocks {
            let at = tile * blocks + block;
            let codes = &mut job.codes[at * BLOCK * TILE..][..BLOCK * TILE];
            let scales = &mut job.scales[at * TILE..][..TILE];
            let sums = &mut job.sums[at * 2 * TILE..][..2 * TILE];
            for lane in 0..TILE {
                let token = tile * TILE + lane;
                let encoded = if token < tokens {
                    let (x, _) = job.x[token * job.cols + block * BLOCK..][..BLOCK].as_chunks::<BLOCK>();
                    // SAFETY: the caller's promise.
                    unsafe { S::encode(&x[0]) }
                } else {
                    Encoded::ZERO
                };
                for (group, bytes) in encoded.codes.as_chunks::<4>().0.iter().enumerate() {
                    codes[(group * TILE + lane) * 4..][..4].copy_from_slice(bytes);
                }
                scales[lane] = encoded.scale;
                sums[lane] = encoded.sums[0];
                sums[TILE + lane] = encoded.sums[1];
            }
        }
    }
}

struct Encoded {
    codes: [i8; BLOCK],
    scale: f32,
    sums: [f32; 2],
}

impl Encoded {
    const ZERO: Self = Self { codes: [0; BLOCK], scale: 0.0, sums: [0.0; 2] };
}

/// A level's way to encode one block: the same formula at each.
trait Encode: Simd {
    /// # Safety
    /// The level's instructions exist.
    #[inline(always)]
    unsafe fn encode(x: &[f32; BLOCK]) -> Encoded {
        encode(x)
    }
}

impl Encode for Portable {}

#[cfg(target_arch = "x86_64")]
impl Encode for Avx2 {}

#[cfg(target_arch = "x86_64")]
impl Encode for Avx512 {
    #[inline(always)]
    unsafe fn encode(x: &[f32; BLOCK]) -> Encoded {
        use std::arch::x86_64::*;
        // SAFETY: the block is two vectors; AVX-512 F and BW exist by the caller's promise.
        unsafe {
            let x = [_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(BLOCK / 2))];
            let magnitude = |x: __m512| _mm512_castps_si512(_mm512_abs_ps(x));
            let largest = _mm512_reduce_max_epu32(_mm512_max_epu32(magnitude(x[0]), magnitude(x[1])));
            let scale = f32::from_bits(largest) / 127.0;
            if largest >= f32::INFINITY.to_bits() || scale < f32::MIN_POSITIVE {
                return encode_rare(&std::mem::transmute::<[__m512; 2], [f32; BLOCK]>(x));
            }
            let inverse = _mm512_set1_ps(1.0 / scale);
            // The largest quotient is 127, give or take less than half of one.
            let round = |x: __m512| _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(x, inverse)));
            let halves = [round(x[0]), round(x[1])];
            let codes = _mm256_set_m128i(halves[1], halves[0]);
            let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
            let fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            let eights = _mm256_add_epi32(fours, _mm256_shuffle_epi32::<0b01_00_11_10>(fours));
            let sums = _mm256_cvtepi32_ps(_mm256_add_epi32(eights, _mm256_shuffle_epi32::<0b10_11_00_01>(eights)));
            let sums = [_mm256_cvtss_f32(sums), _mm_cvtss_f32(_mm256_extractf128_ps::<1>(sums))];
            Encoded { codes: std::mem::transmute::<__m256i, [i8; BLOCK]>(codes), scale, sums }
        }
    }
}

/// Apart, so that the code around the common case stays small.
#[cold]
#[inline(never)]
fn encode_rare(x: &[f32; BLOCK]) -> Encoded {
    encode(x)
}

#[inline(always)]
fn encode(x: &[f32; BLOCK]) -> Encoded {
    // Compared as integers, which NaN cannot slip through: infinity and NaN have the largest bits.
    let largest = x.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff));
    let scale = f32::from_bits(largest) / 127.0;
    if largest >= f32::INFINITY.to_bits() {
        // An overflow must show in every product.
        return Encoded { scale: f32::NAN, ..Encoded::ZERO };
    }
    if scale == 0.0 {
        return Encoded::ZERO;
    }
    // 1.5 * 2^23: adding it rounds to an integer, which then is in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let (mut rounded, mut codes) = ([0.0f32; BLOCK], [0i8; BLOCK]);
    let mut round = |i: usize, quotient: f32| {
        // A subnormal scale may have been rounded down so far that the quotient exceeds 127.
        let biased = quotient.clamp(-127.0, 127.0) + ROUND;
        codes[i] = biased.to_bits() as i8;
        rounded[i] = biased - ROUND;
    };
    // One division for all, unless the inverse of the scale could be infinite.
    if scale >= f32::MIN_POSITIVE {
        let inverse = 1.0 / scale;
        for (i, x) in x.iter().enumerate() {
            round(i, x * inverse);
        }
    } else {
        for (i, x) in x.iter().enumerate() {
            round(i, x / scale);
        }
    }
    // Integers that f32 can count, so that the order is free: halves folded together.
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            rounded[i] += rounded[i + width];
            rounded[16 + i] += rounded[16 + i + width];
        }
    }
    let sums = [rounded[0], rounded[16]];
    Encoded { codes, scale, sums }
}

//! Turns activations into bytes, which are the input of the integer products.
//!
//! Each 32 numbers of a token have a scale `largest magnitude / 127` in f32, and codes `round(x * (1 / scale))`, with
//! ties to even. The scale and the codes depend only on these 32 numbers, and every level uses the same formula. If one
//! of the numbers is not finite, the scale is NaN, so that every product is NaN too.

use std::ops::Range;

use bytemuck::cast_slice_mut;

use super::header::{SPAN, SPAN_BLOCKS};
use crate::level::Instructions;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{Portable, Simd, dispatch};
use crate::{Level, Pool, Share};

/// The number of columns that share a scale, in activations and at least in all quantized weights.
pub(super) const BLOCK: usize = 32;

/// The number of tokens that are adjacent in the lanes of a vector.
pub(super) const TILE: usize = 16;

/// The maximum number of tokens for which AVX-512 unpacks weights into registers. For more tokens, it is faster to
/// store unpacked weights.
#[cfg(target_arch = "x86_64")]
pub(super) const ROW_TOKENS: usize = 3;

/// Minimum number of tokens for which AMX pays: a tile costs as much for one token as for sixteen, most of it for the
/// scaling after the product, while vectors have a cost for each token. This number was estimated, not measured.
#[cfg(target_arch = "x86_64")]
const TILE_TOKENS_MIN: usize = TILE / 2 + 1;

/// The number of bytes of a cache line, to which the codes are aligned.
const LINE: usize = 64;

/// The multiple to which [`Layout::Rows`] pads a token's columns: whole vectors of four blocks.
const ROW_GRANULE: usize = 4 * BLOCK;

/// The memory layout of codes, scales and sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One token after the other: codes `[token][column]`, scales and minima `[token][block]` and sums
    /// `[token][block][half]`. Each token is padded with zeros to a multiple of 128 columns.
    /// [`Activations::row_blocks`] is the padded number of blocks per token.
    Rows,
    /// One span of columns after the other, so that the codes of all tokens in a span are contiguous: codes
    /// `[span][token][column]`, scales and minima `[span][token][block]` and sums `[span][token][block][half]`. The
    /// missing columns of the last span are unspecified.
    Spans,
    /// Tiles of sixteen tokens side by side: codes `[tile][block][8][token 16][4]`, scales and minima
    /// `[tile][block][token 16]` and sums `[tile][block][half][token 16]`. The missing tokens of the last tile are
    /// zeros.
    Tiles,
}

impl Layout {
    const ALL: [Self; 3] = [Self::Rows, Self::Spans, Self::Tiles];

    /// Returns the layout of activations for products of `tokens` tokens. The layout also determines the kernel.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "one kernel for all"))]
    pub fn of(level: Level, tokens: usize) -> Self {
        match level.instructions() {
            #[cfg(target_arch = "x86_64")]
            Instructions::Amx if tokens >= TILE_TOKENS_MIN => Self::Tiles,
            #[cfg(target_arch = "x86_64")]
            instructions if instructions >= Instructions::Avx512Vnni && tokens > ROW_TOKENS => Self::Spans,
            _ => Self::Rows,
        }
    }

    /// Returns the number of tokens that are never divided among threads.
    fn granule(self) -> usize {
        match self {
            Self::Rows | Self::Spans => 1,
            Self::Tiles => TILE,
        }
    }
}

/// The quantized activations of some tokens, which any number of products can read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Activations<'a> {
    pub layout: Layout,
    pub tokens: usize,
    /// The number of blocks of 32 columns in a row.
    pub blocks: usize,
    pub codes: &'a [i8],
    pub scales: &'a [f32],
    /// The sum of the codes of each half block.
    pub sums: &'a [i32],
    /// The scale of each block times the sum of all its codes, rounded once: what a minimum of weights is multiplied
    /// by.
    pub minima: &'a [f32],
}

impl Activations<'_> {
    /// Returns the number of blocks from the start of one token to the start of the next in [`Layout::Rows`].
    #[inline(always)]
    pub fn row_blocks(&self) -> usize {
        debug_assert_eq!(self.layout, Layout::Rows);
        self.codes.len() / self.tokens.max(1) / BLOCK
    }
}

/// Returns the number of bytes of scratch memory that [`quantize`] needs for `tokens` tokens, in any layout.
///
/// # Panics
/// Panics if the number overflows.
pub(super) fn scratch_bytes(tokens: usize, cols: usize) -> usize {
    Layout::ALL.into_iter().fold(0, |most, layout| most.max(Sizes::of(layout, tokens, cols).total()))
}

/// Quantizes `x` `[tokens, cols]` into `scratch` if the result is `wanted`. Otherwise returns the result that `scratch`
/// already holds.
///
/// # Panics
/// Panics if `cols` is not a multiple of 32, or the scratch memory is smaller than [`scratch_bytes`].
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
    let (codes, rest) = scratch[skipped..][..sizes.total() - LINE].split_at_mut(sizes.codes);
    let (scales, rest) = rest.split_at_mut(sizes.scales);
    let (sums, minima) = rest.split_at_mut(sizes.sums);
    let (codes, scales) = (cast_slice_mut(codes), cast_slice_mut(scales));
    let (sums, minima) = (cast_slice_mut(sums), cast_slice_mut(minima));
    let places = (Share::new(codes), Share::new(scales), Share::new(sums), Share::new(minima));
    let tokens_wanted = if wanted { tokens } else { 0 };
    // One number costs about as much as four multiply-adds.
    pool.split(tokens_wanted, layout.granule(), cols.saturating_mul(4), |share| {
        let (codes, scales, sums, minima) = places;
        let job = Quantising { x, cols, share, codes, scales, sums, minima };
        // SAFETY: shares begin at whole granules, so no two threads get the same token or tile.
        match layout {
            Layout::Rows => dispatch!(level, unsafe rows::<_>(job: Quantising<'_>)),
            Layout::Spans => dispatch!(level, unsafe spans::<_>(job: Quantising<'_>)),
            Layout::Tiles => dispatch!(level, unsafe tiles::<_>(job: Quantising<'_>)),
        }
    });
    Activations { layout, tokens, blocks, codes, scales, sums, minima }
}

/// The number of bytes of each part, in the order in which the parts lie in memory.
struct Sizes {
    codes: usize,
    scales: usize,
    sums: usize,
    minima: usize,
}

impl Sizes {
    fn of(layout: Layout, tokens: usize, cols: usize) -> Self {
        let (tokens, stride) = match layout {
            Layout::Rows => (Some(tokens), cols.checked_next_multiple_of(ROW_GRANULE)),
            Layout::Spans => (Some(tokens), cols.checked_next_multiple_of(SPAN)),
            Layout::Tiles => (tokens.checked_next_multiple_of(TILE), Some(cols)),
        };
        let times = |a: Option<usize>, b: Option<usize>| a?.checked_mul(b?);
        let blocks = times(tokens, stride.map(|stride| stride / BLOCK));
        let part = |bytes: Option<usize>| bytes.expect("activations that exist can be counted");
        Self {
            codes: part(times(tokens, stride)),
            scales: part(times(blocks, Some(size_of::<f32>()))),
            sums: part(times(blocks, Some(2 * size_of::<i32>()))),
            minima: part(times(blocks, Some(size_of::<f32>()))),
        }
    }

    /// Returns the number of bytes of all parts, with room for alignment.
    fn total(&self) -> usize {
        let parts = [self.codes, self.scales, self.sums, self.minima, LINE];
        let total = parts.into_iter().try_fold(0usize, |total, part| total.checked_add(part));
        total.expect("activations that exist can be counted")
    }
}

/// The tokens `share` of `x` `[tokens, cols]`, and the buffers for the results of all tokens.
struct Quantising<'a> {
    x: &'a [f32],
    cols: usize,
    share: Range<usize>,
    codes: Share<'a, i8>,
    scales: Share<'a, f32>,
    sums: Share<'a, i32>,
    minima: Share<'a, f32>,
}

impl<'a> Quantising<'a> {
    fn blocks(&self) -> usize {
        self.cols / BLOCK
    }

    fn tokens(&self) -> usize {
        self.x.len() / self.cols
    }

    /// Returns the blocks of a token.
    fn of_token(&self, token: usize) -> &'a [[f32; BLOCK]] {
        self.x[token * self.cols..][..self.cols].as_chunks::<BLOCK>().0
    }
}

/// Quantizes the share's tokens for [`Layout::Rows`].
///
/// # Safety
/// No other thread has tokens of this share.
#[inline(always)]
unsafe fn rows<S: Encode>(s: S, job: Quantising<'_>) {
    let stride = job.cols.next_multiple_of(ROW_GRANULE);
    let blocks = stride / BLOCK;
    for token in job.share.clone() {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let codes = job.codes.slice(token * stride, stride);
            let scales = job.scales.slice(token * blocks, blocks);
            let sums = job.sums.slice(token * 2 * blocks, 2 * blocks);
            let minima = job.minima.slice(token * blocks, blocks);
            codes[job.cols..].fill(0);
            // The padding is negative zero, so that a sum of -0 stays -0: kernels that skip such blocks give the same
            // bits.
            scales[job.blocks()..].fill(-0.0);
            sums[2 * job.blocks()..].fill(0);
            minima[job.blocks()..].fill(-0.0);
            for (block, x) in job.of_token(token).iter().enumerate() {
                let encoded = s.encode(x);
                codes[block * BLOCK..][..BLOCK].copy_from_slice(&encoded.codes);
                scales[block] = encoded.scale;
                sums[block * 2..][..2].copy_from_slice(&encoded.sums);
                minima[block] = encoded.minimum();
            }
        }
    }
}

/// Quantizes the share's tokens for [`Layout::Spans`].
///
/// # Safety
/// No other thread has tokens of this share.
#[inline(always)]
unsafe fn spans<S: Encode>(s: S, job: Quantising<'_>) {
    for token in job.share.clone() {
        for (span, x) in job.of_token(token).chunks(SPAN_BLOCKS).enumerate() {
            let at = span * job.tokens() + token;
            // SAFETY: guaranteed by the caller.
            unsafe {
                let codes = job.codes.slice(at * SPAN, SPAN);
                let scales = job.scales.slice(at * SPAN_BLOCKS, SPAN_BLOCKS);
                let sums = job.sums.slice(at * 2 * SPAN_BLOCKS, 2 * SPAN_BLOCKS);
                let minima = job.minima.slice(at * SPAN_BLOCKS, SPAN_BLOCKS);
                for (block, x) in x.iter().enumerate() {
                    let encoded = s.encode(x);
                    codes[block * BLOCK..][..BLOCK].copy_from_slice(&encoded.codes);
                    scales[block] = encoded.scale;
                    sums[block * 2..][..2].copy_from_slice(&encoded.sums);
                    minima[block] = encoded.minimum();
                }
            }
        }
    }
}

/// Quantizes the share's tokens for [`Layout::Tiles`].
///
/// # Safety
/// No other thread has tokens of this share, which begins at a whole tile.
#[inline(always)]
unsafe fn tiles<S: Encode>(s: S, job: Quantising<'_>) {
    let blocks = job.blocks();
    for tile in job.share.start / TILE..job.share.end.div_ceil(TILE) {
        for block in 0..blocks {
            let at = tile * blocks + block;
            // SAFETY: guaranteed by the caller.
            unsafe {
                let codes = job.codes.slice(at * BLOCK * TILE, BLOCK * TILE);
                let scales = job.scales.slice(at * TILE, TILE);
                let sums = job.sums.slice(at * 2 * TILE, 2 * TILE);
                let minima = job.minima.slice(at * TILE, TILE);
                for lane in 0..TILE {
                    let token = tile * TILE + lane;
                    let encoded =
                        if token < job.tokens() { s.encode(&job.of_token(token)[block]) } else { Encoded::ZERO };
                    for (group, bytes) in encoded.codes.as_chunks::<4>().0.iter().enumerate() {
                        codes[(group * TILE + lane) * 4..][..4].copy_from_slice(bytes);
                    }
                    scales[lane] = encoded.scale;
                    sums[lane] = encoded.sums[0];
                    sums[TILE + lane] = encoded.sums[1];
                    minima[lane] = encoded.minimum();
                }
            }
        }
    }
}

struct Encoded {
    codes: [i8; BLOCK],
    scale: f32,
    sums: [i32; 2],
}

impl Encoded {
    const ZERO: Self = Self { codes: [0; BLOCK], scale: 0.0, sums: [0; 2] };

    #[inline(always)]
    fn minimum(&self) -> f32 {
        self.scale * (self.sums[0] + self.sums[1]) as f32
    }
}

/// Encodes one block, with the same formula at each level.
trait Encode: Simd {
    #[inline(always)]
    fn encode(self, x: &[f32; BLOCK]) -> Encoded {
        encode(x)
    }
}

impl Encode for Portable {}

#[cfg(target_arch = "x86_64")]
impl Encode for Avx2 {}

#[cfg(target_arch = "x86_64")]
impl Encode for Avx512 {
    #[inline(always)]
    fn encode(self, x: &[f32; BLOCK]) -> Encoded {
        use std::arch::x86_64::*;
        let values = x;
        let [low, high]: &[[f32; BLOCK / 2]; 2] = bytemuck::cast_ref(x);
        let x = [self.load(low), self.load(high)];
        let magnitude = |x: __m512| self._mm512_castps_si512(self._mm512_abs_ps(x));
        let largest = self._mm512_reduce_max_epu32(self._mm512_max_epu32(magnitude(x[0]), magnitude(x[1])));
        let scale = f32::from_bits(largest) / 127.0;
        if largest >= f32::INFINITY.to_bits() || scale < f32::MIN_POSITIVE {
            return encode_rare(values);
        }
        let inverse = self._mm512_set1_ps(1.0 / scale);
        // The largest quotient is 127, up to a rounding error of less than one half.
        let round = |x: __m512| self._mm512_cvtepi32_epi8(self._mm512_cvtps_epi32(self._mm512_mul_ps(x, inverse)));
        let halves = [round(x[0]), round(x[1])];
        let codes = self._mm256_set_m128i(halves[1], halves[0]);
        let pairs = self._mm256_maddubs_epi16(self._mm256_set1_epi8(1), codes);
        let fours = self._mm256_madd_epi16(pairs, self._mm256_set1_epi16(1));
        let eights = self._mm256_add_epi32(fours, self._mm256_shuffle_epi32::<0b01_00_11_10>(fours));
        let sums = self._mm256_add_epi32(eights, self._mm256_shuffle_epi32::<0b10_11_00_01>(eights));
        let sums = [
            self._mm_cvtsi128_si32(self._mm256_castsi256_si128(sums)),
            self._mm_cvtsi128_si32(self._mm256_extracti128_si256::<1>(sums)),
        ];
        Encoded { codes: bytemuck::cast(codes), scale, sums }
    }
}

/// Encodes a block with unusual numbers. This function is not inlined, so that the code of the common case stays small.
#[cold]
#[inline(never)]
fn encode_rare(x: &[f32; BLOCK]) -> Encoded {
    encode(x)
}

#[inline(always)]
fn encode(x: &[f32; BLOCK]) -> Encoded {
    // Integer comparison cannot miss a NaN: infinity and NaN have the largest bits.
    let largest = x.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff));
    let scale = f32::from_bits(largest) / 127.0;
    if largest >= f32::INFINITY.to_bits() {
        // The scale is NaN, as an overflow must show in every product.
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
    // One division serves all numbers, unless the inverse of the scale could be infinite.
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
    // The numbers are small integers, which f32 adds exactly in any order, so halves are folded together.
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            rounded[i] += rounded[i + width];
            rounded[16 + i] += rounded[16 + i + width];
        }
    }
    let sums = [rounded[0] as i32, rounded[16] as i32];
    Encoded { codes, scale, sums }
}

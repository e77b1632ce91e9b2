//! Turns activations into bytes, which are the input of the integer products.
//!
//! Each 32 numbers of a token have a step `largest magnitude / 127` in f32, and codes `round(x * (1 / step))`, with
//! ties to even. Their product is scaled by the step.
//!
//! For types with blocks of 256 columns, whose products are sums of integers over 256 columns, the steps of eight
//! blocks of 32 are `scale * 2^shift` with one scale for all eight, and with a shift for each ([`Steps`]). A single
//! step for 256 numbers would be too large for most of them: models have a few activations that are very large.
//!
//! Steps and codes depend only on these 32 or 256 numbers, and every level uses the same formula. If one of the numbers
//! is not finite, the scale is NaN, so that every product is NaN too.

use std::ops::Range;

use bytemuck::cast_slice_mut;

use super::formats::{Format, pairs};
use super::header::{SPAN, SPAN_BLOCKS};
use crate::level::Instructions;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{Portable, Simd, dispatch};
use crate::{DType, Level, Pool, Share};

/// The number of columns of the smallest group that shares a scale.
pub(super) const BLOCK: usize = 32;

/// The number of adjacent activations that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// 32, for types with a scale for each 32 columns.
    Block,
    /// 256, with steps that are powers of two apart, for types with blocks of 256 columns.
    Span,
}

impl Group {
    /// Returns the group of activations that products with weights of the quantized type `dtype` read.
    pub fn of(dtype: DType) -> Self {
        if dtype.block_len() == SPAN { Self::Span } else { Self::Block }
    }

    /// Returns the number of blocks of 32 in a group.
    fn blocks(self) -> usize {
        match self {
            Self::Block => 1,
            Self::Span => SPAN_BLOCKS,
        }
    }
}

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
    /// One token after the other: codes `[token][column]`, scales, minima and shifts `[token][block]`, pairs
    /// `[token][block / 2]` and sums `[token][block][half]`. Each token is padded with zeros to a multiple of 128
    /// columns. [`Activations::row_blocks`] is the padded number of blocks per token.
    Rows,
    /// One span of columns after the other, so that the codes of all tokens in a span are contiguous: codes
    /// `[span][token][column]`, scales, minima and shifts `[span][token][block]`, pairs `[span][token][block / 2]` and
    /// sums `[span][token][block][half]`. The missing columns of the last span are unspecified.
    Spans,
    /// Tiles of sixteen tokens side by side: codes `[tile][block][8][token 16][4]`, scales, minima and shifts
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
    pub group: Group,
    pub tokens: usize,
    /// The number of blocks of 32 columns in a row.
    pub blocks: usize,
    pub codes: &'a [i8],
    /// The scale of each block. All blocks of a [`Group::Span`] have the same.
    pub scales: &'a [f32],
    /// The number of bits by which a block's integer products are shifted to the left, for [`Group::Span`].
    pub shifts: &'a [i32],
    /// The shifted sums of the codes of two blocks, each in a half of the integer, for [`Group::Span`]. Not for
    /// [`Layout::Tiles`].
    pub pairs: &'a [i32],
    /// The sum of the codes of each half block.
    pub sums: &'a [i32],
    /// The scale of each block times the sum of all its codes, rounded once: what a minimum of weights is multiplied
    /// by. For [`Group::Block`].
    pub minima: &'a [f32],
}

impl Activations<'_> {
    /// Returns the number of blocks from the start of one token to the start of the next in [`Layout::Rows`].
    #[inline(always)]
    pub fn row_blocks(&self) -> usize {
        debug_assert_eq!(self.layout, Layout::Rows);
        self.codes.len() / self.tokens.max(1) / BLOCK
    }

    /// Returns the two shifted sums of codes that pair `pair` of the minima's factors of a span multiplies, each in a
    /// half of the integer: of the halves of a block if these have factors, or else of two blocks. The number `at` is
    /// the index of the span's first block. Not for [`Layout::Tiles`].
    ///
    /// # Panics
    /// Panics if the activations are no [`Group::Span`], are in [`Layout::Tiles`], or do not have this pair.
    #[inline(always)]
    pub fn pair<F: Format>(&self, at: usize, pair: usize) -> i32 {
        let blocks = self.shifts.len().min(2 * self.pairs.len()).min(self.sums.len() / 2);
        assert!(self.group == Group::Span && self.layout != Layout::Tiles);
        assert!(at + SPAN_BLOCKS <= blocks && pair < pairs::<F>());
        // SAFETY: all parts have these blocks.
        unsafe { self.pair_unchecked::<F>(at, pair) }
    }

    /// Returns the same as [`pair`](Self::pair), without checks.
    ///
    /// # Safety
    /// The activations are a [`Group::Span`] and have all blocks of the span, and `pair` is below [`pairs`].
    #[inline(always)]
    pub unsafe fn pair_unchecked<F: Format>(&self, at: usize, pair: usize) -> i32 {
        // SAFETY: guaranteed by the caller.
        unsafe {
            if !F::HALVES {
                return *self.pairs.get_unchecked(at / 2 + pair);
            }
            let sum = |half: usize| *self.sums.get_unchecked((at + pair) * 2 + half);
            let shift = *self.shifts.get_unchecked(at + pair) & 31;
            both(sum(0) << shift, sum(1) << shift)
        }
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
/// Panics if `cols` is not whole groups, or the scratch memory is smaller than [`scratch_bytes`].
#[expect(clippy::too_many_arguments, reason = "where, how and whether to quantize")]
pub(super) fn quantize<'a>(
    pool: &Pool,
    level: Level,
    group: Group,
    layout: Layout,
    x: &[f32],
    cols: usize,
    scratch: &'a mut [u8],
    wanted: bool,
) -> Activations<'a> {
    assert!(cols > 0 && cols.is_multiple_of(group.blocks() * BLOCK) && x.len().is_multiple_of(cols));
    let (tokens, blocks) = (x.len() / cols, cols / BLOCK);
    let sizes = Sizes::of(layout, tokens, cols);
    let skipped = scratch.as_ptr().align_offset(LINE);
    let (codes, rest) = scratch[skipped..][..sizes.total() - LINE].split_at_mut(sizes.codes);
    let (scales, rest) = rest.split_at_mut(sizes.scales);
    let (sums, rest) = rest.split_at_mut(sizes.sums);
    let (minima, pairs) = rest.split_at_mut(sizes.minima);
    let (codes, scales) = (cast_slice_mut(codes), cast_slice_mut(scales));
    let sums = cast_slice_mut(sums);
    // A group needs one or the other.
    let (minima, shifts): (&mut [f32], &mut [i32]) = match group {
        Group::Block => (cast_slice_mut(minima), &mut []),
        Group::Span => (&mut [], cast_slice_mut(minima)),
    };
    let pairs: &mut [i32] = cast_slice_mut(pairs);
    let places = (Share::new(codes), Share::new(scales), Share::new(sums));
    let of_group = (Share::new(minima), Share::new(shifts), Share::new(pairs));
    let tokens_wanted = if wanted { tokens } else { 0 };
    // One number costs about as much as four multiply-adds.
    pool.split(tokens_wanted, layout.granule(), cols.saturating_mul(4), |share| {
        let ((codes, scales, sums), (minima, shifts, pairs)) = (places, of_group);
        let job = Quantising { x, cols, group: group.blocks(), share, codes, scales, sums, minima, shifts, pairs };
        // SAFETY: shares begin at whole granules, so no two threads get the same token or tile.
        match layout {
            Layout::Rows => dispatch!(level, unsafe rows::<_>(job: Quantising<'_>)),
            Layout::Spans => dispatch!(level, unsafe spans::<_>(job: Quantising<'_>)),
            Layout::Tiles => dispatch!(level, unsafe tiles::<_>(job: Quantising<'_>)),
        }
    });
    Activations { layout, group, tokens, blocks, codes, scales, shifts, pairs, sums, minima }
}

/// The number of bytes of each part, in the order in which the parts lie in memory.
struct Sizes {
    codes: usize,
    scales: usize,
    sums: usize,
    /// Minima, or shifts.
    minima: usize,
    pairs: usize,
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
            pairs: part(times(blocks.map(|blocks| blocks.div_ceil(2)), Some(size_of::<i32>()))),
        }
    }

    /// Returns the number of bytes of all parts, with room for alignment.
    fn total(&self) -> usize {
        let parts = [self.codes, self.scales, self.sums, self.minima, self.pairs, LINE];
        let total = parts.into_iter().try_fold(0usize, |total, part| total.checked_add(part));
        total.expect("activations that exist can be counted")
    }
}

/// The tokens `share` of `x` `[tokens, cols]`, and the buffers for the results of all tokens.
struct Quantising<'a> {
    x: &'a [f32],
    cols: usize,
    /// The number of blocks that share a scale.
    group: usize,
    share: Range<usize>,
    codes: Share<'a, i8>,
    scales: Share<'a, f32>,
    sums: Share<'a, i32>,
    minima: Share<'a, f32>,
    shifts: Share<'a, i32>,
    pairs: Share<'a, i32>,
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

    /// Quantizes a group, whose first block is block `at` of the result, for a layout with whole blocks.
    ///
    /// # Safety
    /// No other thread has the tokens of this group.
    #[inline(always)]
    unsafe fn put<S: Encode>(&self, s: S, x: &[[f32; BLOCK]], at: usize) {
        let steps = s.steps(x);
        for (i, x) in x.iter().enumerate() {
            let encoded = s.encode(x, steps.of(i));
            // SAFETY: guaranteed by the caller.
            unsafe {
                self.codes.slice((at + i) * BLOCK, BLOCK).copy_from_slice(&encoded.codes);
                self.scales.slice(at + i, 1)[0] = steps.scale;
                self.sums.slice(2 * (at + i), 2).copy_from_slice(&encoded.sums);
                match self.group {
                    1 => self.minima.slice(at + i, 1)[0] = encoded.minimum(steps.scale),
                    _ => {
                        self.shifts.slice(at + i, 1)[0] = steps.shifts[i];
                        let sum = (encoded.sums[0] + encoded.sums[1]) << steps.shifts[i];
                        let pair = &mut self.pairs.slice((at + i) / 2, 1)[0];
                        *pair = if i % 2 == 0 { both(sum, 0) } else { both(*pair, sum) };
                    }
                }
            }
        }
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
            job.codes.slice(token * stride, stride)[job.cols..].fill(0);
            // The padding is negative zero, so that a sum of -0 stays -0: kernels that skip such blocks give the same
            // bits. Only the smaller group needs padding.
            if job.group == 1 {
                job.scales.slice(token * blocks, blocks)[job.blocks()..].fill(-0.0);
                job.minima.slice(token * blocks, blocks)[job.blocks()..].fill(-0.0);
            }
            job.sums.slice(token * 2 * blocks, 2 * blocks)[2 * job.blocks()..].fill(0);
            for (group, x) in job.of_token(token).chunks(job.group).enumerate() {
                job.put(s, x, token * blocks + group * job.group);
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
                for (group, x) in x.chunks(job.group).enumerate() {
                    job.put(s, x, at * SPAN_BLOCKS + group * job.group);
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
        for first in (0..blocks).step_by(job.group) {
            for lane in 0..TILE {
                let token = tile * TILE + lane;
                let x = if token < job.tokens() { &job.of_token(token)[first..first + job.group] } else { &[] };
                let steps = s.steps(x);
                for i in 0..job.group {
                    let at = tile * blocks + first + i;
                    let encoded = x.get(i).map_or(Encoded::ZERO, |x| s.encode(x, steps.of(i)));
                    // SAFETY: guaranteed by the caller.
                    unsafe {
                        let codes = job.codes.slice(at * BLOCK * TILE, BLOCK * TILE);
                        for (group, bytes) in encoded.codes.as_chunks::<4>().0.iter().enumerate() {
                            codes[(group * TILE + lane) * 4..][..4].copy_from_slice(bytes);
                        }
                        job.scales.slice(at * TILE, TILE)[lane] = steps.scale;
                        let sums = job.sums.slice(at * 2 * TILE, 2 * TILE);
                        (sums[lane], sums[TILE + lane]) = (encoded.sums[0], encoded.sums[1]);
                        match job.group {
                            1 => job.minima.slice(at * TILE, TILE)[lane] = encoded.minimum(steps.scale),
                            _ => job.shifts.slice(at * TILE, TILE)[lane] = steps.shifts[i],
                        }
                    }
                }
            }
        }
    }
}

/// Returns an integer with `low` and `high`, which fit 16 bits, in its halves.
#[inline(always)]
pub(super) fn both(low: i32, high: i32) -> i32 {
    low & 0xffff | high << 16
}

struct Encoded {
    codes: [i8; BLOCK],
    sums: [i32; 2],
}

impl Encoded {
    const ZERO: Self = Self { codes: [0; BLOCK], sums: [0; 2] };

    #[inline(always)]
    fn minimum(&self, scale: f32) -> f32 {
        scale * (self.sums[0] + self.sums[1]) as f32
    }
}

/// The steps of a group of one or eight blocks: `scale * 2^shift` for each.
pub(super) struct Steps {
    scale: f32,
    shifts: [i32; SPAN_BLOCKS],
}

impl Steps {
    /// The largest shift. Products with shifted integers still fit 32 bits, and shifted sums of 32 codes 16 bits.
    const SHIFT_MAX: i32 = 3;

    /// The largest [`Format::WEIGHT_MAX`] with which sums of a span still fit 32 bits.
    const WEIGHT_MAX: i32 = (i32::MAX >> Self::SHIFT_MAX) / (SPAN as i32 * 127);

    /// Checks, when it is evaluated by the compiler, that sums of a span of the type fit 32 bits.
    pub const fn fit<F: Format>() {
        assert!(!F::WHOLE || 0 < F::WEIGHT_MAX && F::WEIGHT_MAX <= Self::WEIGHT_MAX);
    }

    /// Computes the steps of the blocks whose largest magnitudes have the bits `largest`.
    ///
    /// The block with the largest magnitude has the largest step. Each other block has that step, halved up to three
    /// times as long as the block's numbers still fit into codes. For each of the eight blocks, the formula considers
    /// the smallest largest step that is enough for all blocks and is, halved some times, the block's own largest
    /// magnitude by 127. Of these eight, the formula selects the one with the smallest sum of squared steps, because
    /// rounding errors are proportional to steps.
    #[inline(always)]
    fn of_span(largest: [u32; SPAN_BLOCKS]) -> Self {
        const MANTISSA: u32 = (1 << 23) - 1;
        const ONE: u32 = 1.0f32.to_bits();
        let most = largest.iter().fold(0, |most, bits| most.max(*bits));
        let whole = scale_of(most);
        // Outside, the smallest step could be subnormal, or the largest overflow.
        if !(128.0 * f32::MIN_POSITIVE..f32::MAX / 256.0).contains(&whole) {
            return Self { scale: whole, shifts: [0; SPAN_BLOCKS] };
        }
        let (mut best, mut least) = (most, f32::INFINITY);
        for bits in largest {
            // The largest number that the largest step can serve: at least `most`, and below twice that. It is a power
            // of two times the block's own largest number.
            let top =
                (most & !MANTISSA | bits & MANTISSA) + if bits & MANTISSA < most & MANTISSA { 1 << 23 } else { 0 };
            let weights = largest.map(|bits| 1u32 << (2 * (Self::SHIFT_MAX - halvings(top, bits))));
            let weight = weights.iter().sum::<u32>() as f32;
            // Relative to the power of two of `most`.
            let relative = f32::from_bits(top - (most & !MANTISSA) + ONE);
            let cost = weight * (relative * relative);
            (best, least) = if cost < least { (top, cost) } else { (best, least) };
        }
        let scale = scale_of(best) * (1.0 / (1 << Self::SHIFT_MAX) as f32);
        Self { scale, shifts: largest.map(|bits| Self::SHIFT_MAX - halvings(best, bits)) }
    }

    /// Returns the step of block `i`.
    #[inline(always)]
    fn of(&self, i: usize) -> f32 {
        self.scale * (1u32 << self.shifts[i]) as f32
    }
}

/// Returns how often the number with the bits `top` can be halved without falling below the number with the bits
/// `bits`, at most [`Steps::SHIFT_MAX`].
#[inline(always)]
fn halvings(top: u32, bits: u32) -> i32 {
    // The difference of the exponents, less one if the mantissa of `bits` is the larger one.
    ((top - bits.min(top)) >> 23).min(Steps::SHIFT_MAX as u32).cast_signed()
}

/// Encodes blocks, with the same formula at each level.
trait Encode: Simd {
    /// Returns the bits of the largest magnitude of a block.
    #[inline(always)]
    fn largest(self, x: &[f32; BLOCK]) -> u32 {
        // Integer comparison cannot miss a NaN: infinity and NaN have the largest bits.
        x.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff))
    }

    /// Returns the steps of a group. The scale is NaN if one of the numbers is not finite.
    #[inline(always)]
    fn steps(self, x: &[[f32; BLOCK]]) -> Steps {
        match x {
            [] => Steps { scale: 0.0, shifts: [0; SPAN_BLOCKS] },
            [x] => Steps { scale: scale_of(self.largest(x)), shifts: [0; SPAN_BLOCKS] },
            x => {
                // A loop, because the compiler does not inline all closures.
                let mut largest = [0; SPAN_BLOCKS];
                for (largest, x) in largest.iter_mut().zip(x) {
                    *largest = self.largest(x);
                }
                Steps::of_span(largest)
            }
        }
    }

    /// Encodes one block with its step.
    #[inline(always)]
    fn encode(self, x: &[f32; BLOCK], step: f32) -> Encoded {
        encode(x, step)
    }
}

/// Returns the step of numbers, from the bits of the largest magnitude.
#[inline(always)]
fn scale_of(largest: u32) -> f32 {
    // An overflow must show in every product.
    if largest >= f32::INFINITY.to_bits() { f32::NAN } else { f32::from_bits(largest) / 127.0 }
}

impl Encode for Portable {}

#[cfg(target_arch = "x86_64")]
impl Encode for Avx2 {}

#[cfg(target_arch = "x86_64")]
impl Encode for Avx512 {
    #[inline(always)]
    fn largest(self, x: &[f32; BLOCK]) -> u32 {
        let [low, high]: &[[f32; BLOCK / 2]; 2] = bytemuck::cast_ref(x);
        let magnitude = |x: &[f32; BLOCK / 2]| self._mm512_castps_si512(self._mm512_abs_ps(self.load(x)));
        self._mm512_reduce_max_epu32(self._mm512_max_epu32(magnitude(low), magnitude(high)))
    }

    #[inline(always)]
    fn encode(self, x: &[f32; BLOCK], step: f32) -> Encoded {
        if step.is_nan() || step < f32::MIN_POSITIVE {
            return encode_rare(x, step);
        }
        let [low, high]: &[[f32; BLOCK / 2]; 2] = bytemuck::cast_ref(x);
        let inverse = self._mm512_set1_ps(1.0 / step);
        // The largest quotient is 127, up to a rounding error of less than one half.
        let round = |x: &[f32; BLOCK / 2]| {
            self._mm512_cvtepi32_epi8(self._mm512_cvtps_epi32(self._mm512_mul_ps(self.load(x), inverse)))
        };
        let codes = self._mm256_set_m128i(round(high), round(low));
        let pairs = self._mm256_maddubs_epi16(self._mm256_set1_epi8(1), codes);
        let fours = self._mm256_madd_epi16(pairs, self._mm256_set1_epi16(1));
        let eights = self._mm256_add_epi32(fours, self._mm256_shuffle_epi32::<0b01_00_11_10>(fours));
        let sums = self._mm256_add_epi32(eights, self._mm256_shuffle_epi32::<0b10_11_00_01>(eights));
        let sums = [
            self._mm_cvtsi128_si32(self._mm256_castsi256_si128(sums)),
            self._mm_cvtsi128_si32(self._mm256_extracti128_si256::<1>(sums)),
        ];
        Encoded { codes: bytemuck::cast(codes), sums }
    }
}

/// Encodes a block with unusual numbers. This function is not inlined, so that the code of the common case stays small.
#[cold]
#[inline(never)]
fn encode_rare(x: &[f32; BLOCK], step: f32) -> Encoded {
    encode(x, step)
}

#[inline(always)]
fn encode(x: &[f32; BLOCK], step: f32) -> Encoded {
    if step == 0.0 || step.is_nan() {
        return Encoded::ZERO;
    }
    // 1.5 * 2^23: adding it rounds to an integer, which then is in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let (mut rounded, mut codes) = ([0.0f32; BLOCK], [0i8; BLOCK]);
    let mut round = |i: usize, quotient: f32| {
        // A subnormal step may have been rounded down so far that the quotient exceeds 127.
        let biased = quotient.clamp(-127.0, 127.0) + ROUND;
        codes[i] = biased.to_bits() as i8;
        rounded[i] = biased - ROUND;
    };
    // One division serves all numbers, unless the inverse of the step could be infinite.
    if step >= f32::MIN_POSITIVE {
        let inverse = 1.0 / step;
        for (i, x) in x.iter().enumerate() {
            round(i, x * inverse);
        }
    } else {
        for (i, x) in x.iter().enumerate() {
            round(i, x / step);
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
    Encoded { codes, sums }
}

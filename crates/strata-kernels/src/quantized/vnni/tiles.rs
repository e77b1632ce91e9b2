//! Tokens in the lanes: weights are unpacked once for many of them.

use std::arch::x86_64::*;

use super::{GROUPS, Scratch, collect, pad};
use crate::quantized::activations::{BLOCK, TILE};
use crate::quantized::header::{Header, ROWS, SPAN, SPAN_BLOCKS};
use crate::quantized::product::Job;
use crate::quantized::unpack::{GROUP, Unpack};
use crate::transpose::transpose;

/// Tiles of tokens that share the unpacking of weights.
const TILES: usize = 8;

/// The job's rows, for activations in lanes.
///
/// # Safety
/// As for [`super::rows`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(in crate::quantized) unsafe fn tiles<F: Unpack>(job: &Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe { tiles_by::<F, Vnni>(job) }
}

/// What multiplies a span of sixteen rows with tiles of sixteen tokens.
pub(in crate::quantized) trait Multiplier {
    /// Adds a span of sixteen rows, for `T` tiles from `tile` on, to their sums so far.
    ///
    /// # Safety
    /// `sums` has `T` tiles of `[row][token]`; otherwise as for [`tiles`], with the instructions of the multiplier.
    unsafe fn add_span<F: Unpack, const T: usize>(
        job: &Job<'_>,
        panel: &Panel<'_>,
        tile: usize,
        sums: *mut [[f32; TILE]; ROWS],
    );
}

/// Dot products of bytes by vectors.
struct Vnni;

impl Multiplier for Vnni {
    #[inline(always)]
    unsafe fn add_span<F: Unpack, const T: usize>(
        job: &Job<'_>,
        panel: &Panel<'_>,
        tile: usize,
        sums: *mut [[f32; TILE]; ROWS],
    ) {
        // SAFETY: the caller's promise.
        unsafe { tile_panel::<F, T>(job, panel, tile, sums) }
    }
}

/// The job's rows, multiplied by `M`.
///
/// # Safety
/// As for [`tiles`], with the instructions of `M`.
#[inline(always)]
pub(in crate::quantized) unsafe fn tiles_by<F: Unpack, M: Multiplier>(job: &Job<'_>) {
    let mut scratch = Scratch::NEW;
    let tiles = job.x.tokens.div_ceil(TILE);
    let mut codes = Codes([[0; SPAN]; ROWS]);
    for tile in (0..tiles).step_by(TILES) {
        let tile_end = tiles.min(tile + TILES);
        for first in (job.first..job.end).step_by(ROWS) {
            let count = ROWS.min(job.end - first);
            let mut next = job.w.as_ptr().wrapping_add((first + ROWS) * job.row_bytes);
            let mut sums = [[[0.0f32; TILE]; ROWS]; TILES];
            for span in 0..job.x.blocks.div_ceil(SPAN_BLOCKS) {
                // SAFETY: the caller's promise.
                unsafe {
                    let mut spans = [std::ptr::null(); ROWS];
                    collect::<F>(job, first, count, span, &mut spans, &mut scratch);
                    let blocks = SPAN_BLOCKS.min(job.x.blocks - span * SPAN_BLOCKS);
                    for group in 0..blocks.div_ceil(GROUP) {
                        let (mut at, left) = (group, blocks - group * GROUP);
                        if left < GROUP {
                            pad::<F>(&mut spans, group, left, &mut scratch.padded);
                            at = 0;
                        }
                        for (row, span) in spans.into_iter().enumerate() {
                            for line in 0..(F::SPAN_BYTES / GROUPS).div_ceil(64) {
                                _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(64 * line).cast());
                            }
                            next = next.wrapping_add(F::SPAN_BYTES / GROUPS);
                            unpack_group::<F>(span, at, codes.0[row].as_mut_ptr().add(group * GROUP * BLOCK));
                        }
                    }
                    let panel = Panel { header: &scratch.header, codes: &codes, span, blocks };
                    let mut t = tile;
                    while t < tile_end {
                        let sums = sums.as_mut_ptr().add(t - tile);
                        if t + 2 <= tile_end {
                            M::add_span::<F, 2>(job, &panel, t, sums);
                            t += 2;
                        } else {
                            M::add_span::<F, 1>(job, &panel, t, sums);
                            t += 1;
                        }
                    }
                }
            }
            for t in tile..tile_end {
                let lanes = TILE.min(job.x.tokens - t * TILE);
                if count == ROWS && lanes == TILE {
                    // SAFETY: the caller's promise; the sums of a tile are a square, as their place is.
                    unsafe {
                        let to = job.out.at(t * TILE, first);
                        transpose(sums[t - tile].as_ptr().cast(), TILE, to, job.out.stride);
                    }
                    continue;
                }
                for lane in 0..lanes {
                    for row in 0..count {
                        // SAFETY: the caller's promise.
                        unsafe { job.store(t * TILE + lane, first + row, sums[t - tile][row][lane]) };
                    }
                }
            }
        }
    }
}

/// Codes of a span of sixteen rows, `[row][column]`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(in crate::quantized) struct Codes(pub [[u8; SPAN]; ROWS]);

/// A span of sixteen rows, unpacked.
pub(in crate::quantized) struct Panel<'a> {
    pub header: &'a Header,
    pub codes: &'a Codes,
    /// Number of the span.
    pub span: usize,
    /// Blocks in it.
    pub blocks: usize,
}

/// The codes of group `group` of a span, in the order of the columns.
///
/// # Safety
/// As for [`Unpack::unpack4`], and `to` has room for the codes of four blocks.
#[inline(always)]
unsafe fn unpack_group<F: Unpack>(span: *const u8, group: usize, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let [first, last] = natural(F::unpack4(span, group));
        _mm512_storeu_si512(to.cast(), first);
        _mm512_storeu_si512(to.add(64).cast(), last);
    }
}

/// First and last halves of four blocks, as they are unpacked, in the order of the columns.
///
/// # Safety
/// AVX-512 F exists.
#[inline(always)]
unsafe fn natural([first, last]: [__m512i; 2]) -> [__m512i; 2] {
    // SAFETY: arithmetic on registers.
    unsafe {
        [
            _mm512_permutex2var_epi64(first, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), last),
            _mm512_permutex2var_epi64(first, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), last),
        ]
    }
}

/// A span of sixteen rows for `T` tiles from `tile` on, whose sums so far are at `sums`.
///
/// # Safety
/// `sums` has `T` tiles; otherwise as for [`super::rows`].
#[inline(always)]
unsafe fn tile_panel<F: Unpack, const T: usize>(
    job: &Job<'_>,
    panel: &Panel<'_>,
    tile: usize,
    sums: *mut [[f32; TILE]; ROWS],
) {
    const OCTET: usize = 8;
    for octet in 0..ROWS / OCTET {
        for block in 0..panel.blocks {
            // SAFETY: the caller's promise; activations have whole tiles.
            unsafe {
                let mut codes = [std::ptr::null::<u8>(); T];
                let mut scales = [_mm512_setzero_ps(); T];
                let mut halves = [[_mm512_setzero_ps(); 2]; T];
                for t in 0..T {
                    let at = (tile + t) * job.x.blocks + panel.span * SPAN_BLOCKS + block;
                    codes[t] = job.x.codes.as_ptr().add(at * BLOCK * TILE).cast();
                    scales[t] = _mm512_loadu_ps(job.x.scales.as_ptr().add(at * TILE));
                    halves[t][0] = _mm512_loadu_ps(job.x.sums.as_ptr().add(at * 2 * TILE));
                    halves[t][1] = _mm512_loadu_ps(job.x.sums.as_ptr().add((at * 2 + 1) * TILE));
                }
                let weights = panel.codes.0.as_ptr().add(octet * OCTET).cast::<u8>().add(block * BLOCK);
                let mut dots = [[_mm512_setzero_ps(); T]; OCTET];
                if F::HALVES {
                    let mut starts = [[_mm512_setzero_si512(); T]; 2];
                    for t in 0..T {
                        starts[0][t] = start::<F>(halves[t][0]);
                        starts[1][t] = start::<F>(halves[t][1]);
                    }
                    let first = block_dots::<T, OCTET>(weights, codes, 0, 4, starts[0]);
                    let factors = &panel.header.halves[block];
                    for row in 0..OCTET {
                        let factor = _mm512_set1_ps(factors[0][octet * OCTET + row]);
                        for t in 0..T {
                            dots[row][t] = _mm512_mul_ps(_mm512_cvtepi32_ps(first[row][t]), factor);
                        }
                    }
                    let last = block_dots::<T, OCTET>(weights, codes, 4, 8, starts[1]);
                    for row in 0..OCTET {
                        let factor = _mm512_set1_ps(factors[1][octet * OCTET + row]);
                        for t in 0..T {
                            dots[row][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(last[row][t]), factor, dots[row][t]);
                        }
                    }
                } else {
                    let mut starts = [_mm512_setzero_si512(); T];
                    for t in 0..T {
                        starts[t] = start::<F>(_mm512_add_ps(halves[t][0], halves[t][1]));
                    }
                    let both = block_dots::<T, OCTET>(weights, codes, 0, 8, starts);
                    for row in 0..OCTET {
                        for t in 0..T {
                            dots[row][t] = _mm512_cvtepi32_ps(both[row][t]);
                        }
                    }
                }
                for row in 0..OCTET {
                    let lane = octet * OCTET + row;
                    let factor = _mm512_set1_ps(panel.header.scales[block][lane]);
                    for t in 0..T {
                        let sums = (*sums.add(t))[lane].as_mut_ptr();
                        let scale = _mm512_mul_ps(factor, scales[t]);
                        let mut acc = _mm512_fmadd_ps(dots[row][t], scale, _mm512_loadu_ps(sums));
                        if F::MINIMA {
                            let minimum = if F::HALVES {
                                let factors = &panel.header.half_minima[block];
                                let [f0, f1] = [_mm512_set1_ps(factors[0][lane]), _mm512_set1_ps(factors[1][lane])];
                                _mm512_fmadd_ps(f1, halves[t][1], _mm512_mul_ps(f0, halves[t][0]))
                            } else {
                                _mm512_add_ps(halves[t][0], halves[t][1])
                            };
                            let least = _mm512_set1_ps(panel.header.minima[block][lane]);
                            acc = _mm512_fnmadd_ps(least, _mm512_mul_ps(scales[t], minimum), acc);
                        }
                        _mm512_storeu_ps(sums, acc);
                    }
                }
            }
        }
    }
}

/// What dot products start from, to make up for the offset of the weights' codes.
///
/// # Safety
/// AVX-512 F exists.
#[inline(always)]
pub(in crate::quantized) unsafe fn start<F: Unpack>(sum: __m512) -> __m512i {
    // SAFETY: arithmetic on registers.
    unsafe {
        match F::OFFSET {
            0 => _mm512_setzero_si512(),
            offset => _mm512_cvttps_epi32(_mm512_mul_ps(sum, _mm512_set1_ps(-f32::from(offset)))),
        }
    }
}

/// The integer dot products of `R` rows and `T` tiles of sixteen tokens, over groups of four columns `first .. end` of a
/// block of 32.
///
/// # Safety
/// Weights are `[row][SPAN]` from the block on, codes `[group of 4][token 16][4]`; AVX-512 VNNI exists.
#[inline(always)]
unsafe fn block_dots<const T: usize, const R: usize>(
    weights: *const u8,
    codes: [*const u8; T],
    first: usize,
    end: usize,
    starts: [__m512i; T],
) -> [[__m512i; T]; R] {
    let mut dots = [starts; R];
    // SAFETY: the caller's promise.
    unsafe {
        for group in first..end {
            let mut activations = [_mm512_setzero_si512(); T];
            for t in 0..T {
                activations[t] = _mm512_loadu_si512(codes[t].add(group * 4 * TILE).cast());
            }
            for row in 0..R {
                let four = _mm512_set1_epi32(weights.add(row * SPAN + group * 4).cast::<i32>().read_unaligned());
                for t in 0..T {
                    dots[row][t] = _mm512_dpbusd_epi32(dots[row][t], four, activations[t]);
                }
            }
        }
    }
    dots
}

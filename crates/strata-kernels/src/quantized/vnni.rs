//! Products with AVX-512 VNNI: many rows side by side for a few tokens, many tokens side by side otherwise.

use std::arch::x86_64::*;

use super::activations::{BLOCK, TILE};
use super::header::{Fields, Header, Lanes, ROWS, SPAN, SPAN_BLOCKS};
use super::product::Job;
use super::unpack::{GROUP, Unpack};
use crate::simd::Avx512;

/// Most tokens that are worth the kernel with rows in the lanes.
pub(super) const ROW_TOKENS: usize = 4;

/// Tiles of tokens that share the unpacking of weights.
const TILES: usize = 8;

/// Groups of a span.
const GROUPS: usize = SPAN_BLOCKS / GROUP;

/// The job's rows, for activations in rows.
///
/// # Safety
/// As for [`super::product::rows`]; AVX-512 F, BW, DQ, VL and VNNI exist.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn rows<F: Unpack>(job: &Job<'_>) {
    let (mut fields, mut header) = (Fields::ZERO, Header::ZERO);
    for first in (job.first..job.end).step_by(ROWS) {
        let mut token = 0;
        while token < job.x.tokens {
            // SAFETY: the caller's promise.
            unsafe {
                match job.x.tokens - token {
                    1 => token += rows_panel::<F, 1>(job, first, token, &mut fields, &mut header),
                    2 => token += rows_panel::<F, 2>(job, first, token, &mut fields, &mut header),
                    3 => token += rows_panel::<F, 3>(job, first, token, &mut fields, &mut header),
                    _ => token += rows_panel::<F, 4>(job, first, token, &mut fields, &mut header),
                }
            }
        }
    }
}

/// Sixteen rows from `first` on (the last one again and again where there are fewer), for `T` tokens; returns `T`.
///
/// # Safety
/// As for [`rows`].
#[inline(always)]
unsafe fn rows_panel<F: Unpack, const T: usize>(
    job: &Job<'_>,
    first: usize,
    token: usize,
    fields: &mut Fields,
    header: &mut Header,
) -> usize {
    let x = &job.x;
    let count = ROWS.min(job.end - first);
    let stride = x.codes.len() / x.tokens;
    let mut next = job.w.as_ptr().wrapping_add((first + ROWS) * job.row_bytes);
    // SAFETY: AVX-512 exists by the caller's promise; what is read of weights and activations is said at each place.
    unsafe {
        let mut acc = [_mm512_setzero_ps(); T];
        for span in 0..x.blocks.div_ceil(SPAN_BLOCKS) {
            let mut spans = [std::ptr::null(); ROWS];
            collect::<F>(job, first, count, span, &mut spans, fields, header);
            for group in 0..GROUPS.min((x.blocks - span * SPAN_BLOCKS).div_ceil(GROUP)) {
                let block = span * SPAN_BLOCKS + group * GROUP;
                let blocks = GROUP.min(x.blocks - block);
                let mut padded = [0u8; ROWS * MAX_GROUP_BYTES];
                let mut at = group;
                if blocks < GROUP {
                    // Too few blocks for a whole load: those there are, with zeros behind.
                    for (span, padded) in spans.iter_mut().zip(padded.chunks_exact_mut(MAX_GROUP_BYTES)) {
                        let from = span.add(group * F::GROUP_BYTES);
                        std::ptr::copy_nonoverlapping(from, padded.as_mut_ptr(), blocks * F::BYTES);
                        *span = padded.as_ptr();
                    }
                    at = 0;
                }
                // The codes of a token are padded to whole groups.
                let codes = |t: usize| x.codes.as_ptr().add((token + t) * stride + block * BLOCK).cast::<__m512i>();
                let mut activations = [[_mm512_setzero_si512(); 2]; T];
                let mut starts = [[_mm512_setzero_si512(); 2]; T];
                for t in 0..T {
                    let natural = [_mm512_loadu_si512(codes(t)), _mm512_loadu_si512(codes(t).add(1))];
                    activations[t] = halves_apart(natural);
                    starts[t] = offsets::<F>(activations[t]);
                }
                let mut quads = [[[_mm512_setzero_si512(); 4]; 2]; T];
                for quad in 0..4 {
                    for line in 0..(4 * F::SPAN_BYTES / GROUPS).div_ceil(64) {
                        _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(64 * line).cast());
                    }
                    next = next.wrapping_add(4 * F::SPAN_BYTES / GROUPS);
                    let mut parts = [[[_mm512_setzero_si512(); 4]; 2]; T];
                    for row in 0..4 {
                        let weights = F::unpack4(spans[quad * 4 + row], at);
                        for t in 0..T {
                            let [part0, part1] = dots::<F>(weights, activations[t], starts[t]);
                            parts[t][0][row] = part0;
                            parts[t][1][row] = part1;
                        }
                    }
                    for t in 0..T {
                        quads[t][0][quad] = sum_quads(parts[t][0]);
                        if F::HALVES {
                            quads[t][1][quad] = sum_quads(parts[t][1]);
                        }
                    }
                }
                for t in 0..T {
                    let dots = [blocks_apart(quads[t][0]), blocks_apart(quads[t][1])];
                    for i in 0..blocks {
                        let at = (token + t) * x.blocks + block + i;
                        let sums = [*x.sums.get_unchecked(at * 2), *x.sums.get_unchecked(at * 2 + 1)];
                        let scale = *x.scales.get_unchecked(at);
                        let dots = [dots[0][i], dots[1][i]];
                        acc[t] = step::<F>(header, group * GROUP + i, dots, scale, sums, acc[t]);
                    }
                }
            }
        }
        for t in 0..T {
            let out = job.out.add((token + t) * job.rows + first);
            _mm512_mask_storeu_ps(out, (u32::MAX >> (32 - count)) as u16, acc[t]);
        }
    }
    T
}

/// Bytes of four blocks of the largest type with blocks of 32, which is Q8_0.
const MAX_GROUP_BYTES: usize = GROUP * 34;

/// Header and addresses of a span of sixteen rows.
///
/// # Safety
/// As for [`rows`].
#[inline(always)]
unsafe fn collect<F: Unpack>(
    job: &Job<'_>,
    first: usize,
    count: usize,
    span: usize,
    spans: &mut [*const u8; ROWS],
    fields: &mut Fields,
    header: &mut Header,
) {
    for (row, address) in spans.iter_mut().enumerate() {
        let bytes = job.span::<F>(first + row.min(count - 1), span);
        *address = bytes.as_ptr();
        F::collect(bytes, row, fields);
    }
    // SAFETY: the caller's promise.
    unsafe { F::finish::<Avx512>(fields, header) };
}

/// From 128 codes in their natural order: the first halves of four blocks, and the last ones.
///
/// # Safety
/// AVX-512 F exists.
#[inline(always)]
unsafe fn halves_apart(natural: [__m512i; 2]) -> [__m512i; 2] {
    // SAFETY: arithmetic on registers.
    unsafe {
        [_mm512_shuffle_i32x4::<0x88>(natural[0], natural[1]), _mm512_shuffle_i32x4::<0xdd>(natural[0], natural[1])]
    }
}

/// The inverse of [`halves_apart`].
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

/// What sums of four products start from, to make up for the offset of the weights' codes.
///
/// # Safety
/// AVX-512 VNNI exists.
#[inline(always)]
unsafe fn offsets<F: Unpack>(activations: [__m512i; 2]) -> [__m512i; 2] {
    // SAFETY: arithmetic on registers.
    unsafe {
        let zero = _mm512_setzero_si512();
        if F::OFFSET == 0 {
            return [zero; 2];
        }
        let offset = _mm512_set1_epi8(F::OFFSET as i8);
        let [first, last] = activations.map(|codes| _mm512_dpbusd_epi32(zero, offset, codes));
        if F::HALVES {
            [_mm512_sub_epi32(zero, first), _mm512_sub_epi32(zero, last)]
        } else {
            [_mm512_sub_epi32(zero, _mm512_add_epi32(first, last)), zero]
        }
    }
}

/// Sums of four products of first and last halves, or of both together where they share a factor.
///
/// # Safety
/// AVX-512 VNNI exists.
#[inline(always)]
unsafe fn dots<F: Unpack>(weights: [__m512i; 2], activations: [__m512i; 2], starts: [__m512i; 2]) -> [__m512i; 2] {
    // SAFETY: arithmetic on registers.
    unsafe {
        let first = _mm512_dpbusd_epi32(starts[0], weights[0], activations[0]);
        if F::HALVES {
            [first, _mm512_dpbusd_epi32(starts[1], weights[1], activations[1])]
        } else {
            [_mm512_dpbusd_epi32(first, weights[1], activations[1]), starts[1]]
        }
    }
}

/// Adds up each 128 bits of four vectors: lane `4 b + r` of the result is the sum of lanes `4 b .. 4 b + 4` of vector `r`.
///
/// # Safety
/// AVX-512 F exists.
#[inline(always)]
unsafe fn sum_quads([a, b, c, d]: [__m512i; 4]) -> __m512i {
    // SAFETY: arithmetic on registers.
    unsafe {
        let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
    }
}

/// Transposes 4 x 4 lanes of 128 bits: from four rows of four blocks to one vector of sixteen rows a block.
///
/// # Safety
/// AVX-512 F exists.
#[inline(always)]
unsafe fn blocks_apart([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: arithmetic on registers.
    unsafe {
        let (ab, cd) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0x44>(c, d));
        let (ab_high, cd_high) = (_mm512_shuffle_i32x4::<0xee>(a, b), _mm512_shuffle_i32x4::<0xee>(c, d));
        [
            _mm512_shuffle_i32x4::<0x88>(ab, cd),
            _mm512_shuffle_i32x4::<0xdd>(ab, cd),
            _mm512_shuffle_i32x4::<0x88>(ab_high, cd_high),
            _mm512_shuffle_i32x4::<0xdd>(ab_high, cd_high),
        ]
    }
}

/// One block of sixteen rows and one token.
///
/// # Safety
/// AVX-512 F exists.
#[inline(always)]
unsafe fn step<F: Unpack>(
    header: &Header,
    block: usize,
    dots: [__m512i; 2],
    scale: f32,
    sums: [f32; 2],
    acc: __m512,
) -> __m512 {
    // SAFETY: `Lanes` are whole vectors.
    unsafe {
        let load = |lanes: &Lanes| _mm512_loadu_ps(lanes.as_ptr());
        let dot = if F::HALVES {
            // Integers that f32 can count: nothing is rounded here.
            let [f0, f1] = [load(&header.halves[block][0]), load(&header.halves[block][1])];
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[1]), f1, _mm512_mul_ps(_mm512_cvtepi32_ps(dots[0]), f0))
        } else {
            _mm512_cvtepi32_ps(dots[0])
        };
        let acc = _mm512_fmadd_ps(dot, _mm512_mul_ps(load(&header.scales[block]), _mm512_set1_ps(scale)), acc);
        if !F::MINIMA {
            return acc;
        }
        let minimum = if F::HALVES {
            let [f0, f1] = [load(&header.half_minima[block][0]), load(&header.half_minima[block][1])];
            let first = _mm512_mul_ps(f0, _mm512_set1_ps(sums[0]));
            _mm512_mul_ps(_mm512_set1_ps(scale), _mm512_fmadd_ps(f1, _mm512_set1_ps(sums[1]), first))
        } else {
            _mm512_set1_ps(scale * (sums[0] + sums[1]))
        };
        _mm512_fnmadd_ps(load(&header.minima[block]), minimum, acc)
    }
}

/// The job's rows, for activations in lanes.
///
/// # Safety
/// As for [`rows`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn lanes<F: Unpack>(job: &Job<'_>) {
    let (mut fields, mut header) = (Fields::ZERO, Header::ZERO);
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
                    collect::<F>(job, first, count, span, &mut spans, &mut fields, &mut header);
                    for line in 0..(ROWS * F::SPAN_BYTES).div_ceil(64) {
                        _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(64 * line).cast());
                    }
                    next = next.wrapping_add(ROWS * F::SPAN_BYTES);
                    let blocks = SPAN_BLOCKS.min(job.x.blocks - span * SPAN_BLOCKS);
                    for (row, address) in spans.into_iter().enumerate() {
                        unpack_span::<F>(address, blocks, &mut codes.0[row]);
                    }
                    let panel = Panel { header: &header, codes: &codes, span, blocks };
                    let mut t = tile;
                    while t < tile_end {
                        let sums = sums.as_mut_ptr().add(t - tile);
                        if t + 2 <= tile_end {
                            lanes_panel::<F, 2>(job, &panel, t, sums);
                            t += 2;
                        } else {
                            lanes_panel::<F, 1>(job, &panel, t, sums);
                            t += 1;
                        }
                    }
                }
            }
            for t in tile..tile_end {
                for lane in 0..TILE.min(job.x.tokens - t * TILE) {
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
struct Codes([[u8; SPAN]; ROWS]);

/// A span of sixteen rows, unpacked.
struct Panel<'a> {
    header: &'a Header,
    codes: &'a Codes,
    /// Number of the span.
    span: usize,
    /// Blocks in it.
    blocks: usize,
}

/// The codes of a span in the order of the columns.
///
/// # Safety
/// The span has so many blocks; the instructions exist.
#[inline(always)]
unsafe fn unpack_span<F: Unpack>(span: *const u8, blocks: usize, codes: &mut [u8; SPAN]) {
    for group in 0..blocks.div_ceil(GROUP) {
        let left = blocks - group * GROUP;
        let mut padded = [0u8; MAX_GROUP_BYTES];
        // SAFETY: a group that is not whole is copied, with zeros behind; `codes` has room for two vectors a group.
        unsafe {
            let apart = if left < GROUP {
                let from = span.add(group * F::GROUP_BYTES);
                std::ptr::copy_nonoverlapping(from, padded.as_mut_ptr(), left * F::BYTES);
                F::unpack4(padded.as_ptr(), 0)
            } else {
                F::unpack4(span, group)
            };
            let to = codes.as_mut_ptr().add(group * GROUP * BLOCK).cast::<__m512i>();
            let [first, last] = natural(apart);
            _mm512_storeu_si512(to, first);
            _mm512_storeu_si512(to.add(1), last);
        }
    }
}

/// A span of sixteen rows for `T` tiles from `tile` on, whose sums so far are at `sums`.
///
/// # Safety
/// `sums` has `T` tiles; otherwise as for [`rows`].
#[inline(always)]
unsafe fn lanes_panel<F: Unpack, const T: usize>(
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
unsafe fn start<F: Unpack>(sum: __m512) -> __m512i {
    // SAFETY: arithmetic on registers.
    unsafe { _mm512_cvttps_epi32(_mm512_mul_ps(sum, _mm512_set1_ps(-f32::from(F::OFFSET)))) }
}

/// The integer dot products of `R` rows and `T` tiles of sixteen tokens, over groups of four columns `first .. end` of a
/// block of 32: the place of a matrix unit, if there is one.
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

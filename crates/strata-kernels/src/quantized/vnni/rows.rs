//! Sixteen rows, four blocks of each at a time, for up to three tokens. Made for weights that come from memory once and
//! are used for one token.

use std::arch::asm;
use std::arch::x86_64::*;

use super::{ROW_TOKENS, Small, load, scaled_minimum};
use crate::quantized::activations::{BLOCK, Layout};
use crate::quantized::collect::GroupFields;
use crate::quantized::header::{GROUP, GROUPS, Header, ROWS, SPAN_BLOCKS};
use crate::quantized::job::Job;
use crate::quantized::spans::Spans;
use crate::quantized::unpack::Unpack;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The job's rows, for activations in rows, of [`ROW_TOKENS`] at most.
///
/// # Safety
/// As for [`crate::quantized::product::rows`]; AVX-512 F, BW, DQ, VL and VNNI exist.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(in crate::quantized) unsafe fn rows<F: Unpack>(job: &Job<'_>) {
    debug_assert_eq!(job.x.layout, Layout::Rows);
    // SAFETY: the caller's promise.
    unsafe {
        match job.x.tokens {
            0 => {}
            1 => rows_for::<F, 1>(job),
            2 => rows_for::<F, 2>(job),
            ROW_TOKENS => rows_for::<F, ROW_TOKENS>(job),
            more => unreachable!("{more} tokens do not lie in rows"),
        }
    }
}

/// The job's rows, for `T` tokens.
///
/// # Safety
/// As for [`rows`]; there are so many tokens.
#[inline(always)]
unsafe fn rows_for<F: Unpack, const T: usize>(job: &Job<'_>) {
    let mut small = Small::NEW;
    for first in (job.first..job.end).step_by(ROWS) {
        // SAFETY: the caller's promise.
        unsafe { sixteen_rows::<F, T>(job, first, &mut small) };
    }
}

/// Sixteen rows from `first` on, or as many as there are, for `T` tokens.
///
/// # Safety
/// As for [`rows_for`].
#[inline(always)]
unsafe fn sixteen_rows<F: Unpack, const T: usize>(job: &Job<'_>, first: usize, small: &mut Small) {
    let x = &job.x;
    let row_blocks = x.row_blocks();
    // What is asked for: the bytes of the next sixteen rows in their order.
    let mut next = job.w.as_ptr().wrapping_add((first + ROWS) * job.row_bytes);
    // SAFETY: AVX-512 exists by the caller's promise; spans are whole, activations whole groups; the output has these
    // rows.
    unsafe {
        let mut acc = [_mm512_setzero_ps(); T];
        for span in 0..x.blocks.div_ceil(SPAN_BLOCKS) {
            let spans =
                if F::IN_BLOCKS { small.spans::<F>(job, first, span) } else { small.collect::<F>(job, first, span) };
            for group in 0..GROUPS.min((x.blocks - span * SPAN_BLOCKS).div_ceil(GROUP)) {
                let block = span * SPAN_BLOCKS + group * GROUP;
                let mut activations = [[_mm512_setzero_si512(); 2]; T];
                let mut starts = [[_mm512_setzero_si512(); 2]; T];
                for t in 0..T {
                    let codes = x.codes.as_ptr().add((t * row_blocks + block) * BLOCK).cast::<__m512i>();
                    activations[t] = halves_apart([_mm512_loadu_si512(codes), _mm512_loadu_si512(codes.add(1))]);
                    starts[t] = offsets::<F>(activations[t]);
                }
                let mut quads = [[[_mm512_setzero_si512(); 4]; 2]; T];
                let mut fields = GroupFields::none();
                for quad in 0..4 {
                    let spans = spans.from(4 * quad);
                    let parts = four_rows::<F, T>(spans, group, next, &activations, &starts);
                    fields.take::<F>(spans, group, quad);
                    next = next.wrapping_add(4 * F::SPAN_BYTES / GROUPS);
                    for t in 0..T {
                        quads[t][0][quad] = sum_quads(parts[t][0]);
                        if F::HALVES {
                            quads[t][1][quad] = sum_quads(parts[t][1]);
                        }
                    }
                }
                fields.put::<F>(group, &mut small.header);
                for t in 0..T {
                    let dots = [blocks_apart(quads[t][0]), blocks_apart(quads[t][1])];
                    for i in 0..GROUP {
                        let at = t * row_blocks + block + i;
                        let sums = [*x.sums.get_unchecked(at * 2), *x.sums.get_unchecked(at * 2 + 1)];
                        let scale = *x.scales.get_unchecked(at);
                        let dots = [dots[0][i], dots[1][i]];
                        acc[t] = step::<F>(&small.header, group * GROUP + i, dots, scale, sums, acc[t]);
                    }
                }
            }
        }
        let mask = u16::MAX >> (ROWS - ROWS.min(job.end - first));
        for t in 0..T {
            _mm512_mask_storeu_ps(job.out.at(t, first), mask, acc[t]);
        }
    }
}

/// Sums of four products of group `group` of the first four rows of `spans`, `[token][half][row]`; and asks for the
/// lines of as many bytes from `next` on.
///
/// # Safety
/// The spans are whole; AVX-512 VNNI exists.
#[inline(always)]
unsafe fn four_rows<F: Unpack, const T: usize>(
    spans: Spans,
    group: usize,
    next: *const u8,
    activations: &[[__m512i; 2]; T],
    starts: &[[__m512i; 2]; T],
) -> [[[__m512i; 4]; 2]; T] {
    let lines = const { (4 * F::SPAN_BYTES / GROUPS).div_ceil(LINE) };
    // SAFETY: the caller's promise.
    unsafe {
        let mut parts = [[[_mm512_setzero_si512(); 4]; 2]; T];
        for row in 0..4 {
            for line in row * lines / 4..(row + 1) * lines / 4 {
                ask(next.wrapping_add(line * LINE));
            }
            let weights = F::unpack4(spans.row(row), group);
            for t in 0..T {
                let [part0, part1] = dots::<F>(weights, activations[t], starts[t]);
                parts[t][0][row] = part0;
                parts[t][1][row] = part1;
            }
        }
        parts
    }
}

/// Asks for the cache line at `at`, which need not be readable. Written so that a compiler keeps it between the loads
/// around it: with the intrinsic, the weights of all rows are loaded first, for which there are not registers enough,
/// and all lines are asked for at once, of which a processor forgets some.
#[inline(always)]
fn ask(at: *const u8) {
    // SAFETY: every x86-64 processor has the instruction, and it reads nothing. It does not say so (`nomem`): that is
    // what keeps it in its place.
    unsafe { asm!("prefetcht0 [{}]", in(reg) at, options(nostack, preserves_flags)) };
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

/// Adds up each 128 bits of four vectors: lane `4 b + r` of the result is the sum of lanes `4 b .. 4 b + 4` of vector
/// `r`.
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
        _mm512_fnmadd_ps(load(&header.minima[block]), scaled_minimum::<F>(header, block, scale, sums), acc)
    }
}

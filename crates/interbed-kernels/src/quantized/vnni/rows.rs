//! Computes products of sixteen rows, four blocks of each at a time, for up to three tokens. This suits weights that
//! come from memory and are used once.

use std::arch::asm;
use std::arch::x86_64::*;

use super::{Small, add_whole};
use crate::quantized::activations::{Activations, BLOCK, Layout, ROW_TOKENS};
use crate::quantized::collect::GroupFields;
use crate::quantized::header::{GROUP, GROUPS, Header, ROWS, SPAN_BLOCKS};
use crate::quantized::job::ProductRows;
use crate::quantized::spans::{Quad, Spans};
use crate::quantized::unpack::Unpack;
use crate::simd::{Avx512, Simd, Vnni};

/// The number of bytes of a cache line.
const LINE: usize = 64;

/// Computes the job's rows, for activations in [`Layout::Rows`] with at most [`ROW_TOKENS`] tokens.
///
/// # Safety
/// The conditions of [`crate::quantized::product::rows`] hold.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(in crate::quantized) unsafe fn rows<F: Unpack>(s: Vnni, job: &ProductRows<'_>) {
    debug_assert_eq!(job.x.layout, Layout::Rows);
    // SAFETY: guaranteed by the caller.
    unsafe {
        match job.x.tokens {
            0 => {}
            1 => rows_for::<F, 1>(s, job),
            2 => rows_for::<F, 2>(s, job),
            ROW_TOKENS => rows_for::<F, ROW_TOKENS>(s, job),
            more => unreachable!("{more} tokens do not lie in rows"),
        }
    }
}

/// Computes the job's rows for `T` tokens.
///
/// # Safety
/// The conditions of [`rows`] hold; there are `T` tokens.
#[inline(always)]
unsafe fn rows_for<F: Unpack, const T: usize>(s: Vnni, job: &ProductRows<'_>) {
    let mut small = Small::NEW;
    for first in (job.first..job.end).step_by(ROWS) {
        // SAFETY: guaranteed by the caller.
        unsafe { sixteen_rows::<F, T>(s, job, first, &mut small) };
    }
}

/// Computes up to sixteen rows from `first` on for `T` tokens.
///
/// # Safety
/// The conditions of [`rows_for`] hold.
#[inline(always)]
unsafe fn sixteen_rows<F: Unpack, const T: usize>(s: Vnni, job: &ProductRows<'_>, first: usize, small: &mut Small) {
    let x = &job.x;
    let row_blocks = x.row_blocks();
    // Address to prefetch next: the bytes of the next sixteen rows in memory order.
    let mut next = job.w.as_ptr().wrapping_add((first + ROWS) * job.row_bytes);
    // SAFETY: the caller guarantees that activations are whole groups and that the output has these rows; the token
    // proves the instructions.
    unsafe {
        let mut acc = [s._mm512_setzero_ps(); T];
        for span in 0..x.blocks.div_ceil(SPAN_BLOCKS) {
            let (spans, header) = match F::IN_BLOCKS {
                true => (Spans::<F>::of(job, first, span, &mut small.ragged), &mut small.header),
                false => small.collect(*s, job, first, span),
            };
            let mut integers = [s._mm512_setzero_si512(); T];
            for group in 0..GROUPS.min((x.blocks - span * SPAN_BLOCKS).div_ceil(GROUP)) {
                let block = span * SPAN_BLOCKS + group * GROUP;
                let mut activations = [[s._mm512_setzero_si512(); 2]; T];
                let mut starts = [[s._mm512_setzero_si512(); 2]; T];
                for t in 0..T {
                    let codes = &*x.codes.as_ptr().add((t * row_blocks + block) * BLOCK).cast::<[[i8; LINE]; 2]>();
                    activations[t] = halves_apart(*s, [s.load512(&codes[0]), s.load512(&codes[1])]);
                    starts[t] = offsets::<F>(s, activations[t]);
                }
                let mut quads = [[[s._mm512_setzero_si512(); 4]; 2]; T];
                let mut fields = GroupFields::none(*s);
                for quad in 0..4 {
                    let spans = spans.quad(quad);
                    let parts = four_rows::<F, T>(s, spans, group, next, &activations, &starts);
                    fields.take(*s, spans, group, quad);
                    next = next.wrapping_add(4 * F::SPAN_BYTES / GROUPS);
                    for t in 0..T {
                        quads[t][0][quad] = sum_quads(*s, parts[t][0]);
                        if F::HALVES {
                            quads[t][1][quad] = sum_quads(*s, parts[t][1]);
                        }
                    }
                }
                fields.put::<F>(*s, group, header);
                for t in 0..T {
                    let dots = [blocks_apart(*s, quads[t][0]), blocks_apart(*s, quads[t][1])];
                    for i in 0..GROUP {
                        let of_span = group * GROUP + i;
                        let at = t * row_blocks + block + i;
                        if F::WHOLE {
                            let (dots, shift) = ([dots[0][i], dots[1][i]], *x.shifts.get_unchecked(at));
                            integers[t] = factored::<F>(*s, header, of_span, dots, shift, integers[t]);
                        } else {
                            acc[t] = step::<F>(*s, header, of_span, dots[0][i], x, at, acc[t]);
                        }
                    }
                }
            }
            if F::WHOLE {
                for t in 0..T {
                    let at = t * row_blocks + span * SPAN_BLOCKS;
                    acc[t] = add_whole::<F>(s, header, x, at, integers[t], acc[t]);
                }
            }
        }
        let mask = u16::MAX >> (ROWS - ROWS.min(job.end - first));
        for t in 0..T {
            _mm512_mask_storeu_ps(job.out.at(t, first), mask, acc[t]);
        }
    }
}

/// Computes sums of four products of group `group` of the four rows of `spans`, `[token][half][row]`, and prefetches
/// the cache lines of as many bytes from `next` on.
#[inline(always)]
fn four_rows<F: Unpack, const T: usize>(
    s: Vnni,
    spans: Quad<'_, F>,
    group: usize,
    next: *const u8,
    activations: &[[__m512i; 2]; T],
    starts: &[[__m512i; 2]; T],
) -> [[[__m512i; 4]; 2]; T] {
    let mut parts = [[[s._mm512_setzero_si512(); 4]; 2]; T];
    // Written out, because the compiler does not unroll a loop of types with tables.
    one_row::<F, T, 0>(s, spans, group, next, activations, starts, &mut parts);
    one_row::<F, T, 1>(s, spans, group, next, activations, starts, &mut parts);
    one_row::<F, T, 2>(s, spans, group, next, activations, starts, &mut parts);
    one_row::<F, T, 3>(s, spans, group, next, activations, starts, &mut parts);
    parts
}

/// Computes the sums of row `ROW` of [`four_rows`], and a fourth of the prefetches.
#[inline(always)]
fn one_row<F: Unpack, const T: usize, const ROW: usize>(
    s: Vnni,
    spans: Quad<'_, F>,
    group: usize,
    next: *const u8,
    activations: &[[__m512i; 2]; T],
    starts: &[[__m512i; 2]; T],
    parts: &mut [[[__m512i; 4]; 2]; T],
) {
    let lines = const { (4 * F::SPAN_BYTES / GROUPS).div_ceil(LINE) };
    for line in ROW * lines / 4..(ROW + 1) * lines / 4 {
        ask(next.wrapping_add(line * LINE));
    }
    let weights = F::unpack4(*s, spans.row(ROW), group);
    for t in 0..T {
        let [first, last] = dots::<F>(s, weights, activations[t], starts[t]);
        parts[t][0][ROW] = first;
        parts[t][1][ROW] = last;
    }
}

/// Prefetches the cache line at `at`, which need not be readable, like `prefetch_second`.
///
/// The function is written in assembly, so that the compiler keeps the prefetch between the loads around it. With the
/// intrinsic, the compiler loads the weights of all rows first, for which there are not enough registers. All
/// prefetches then come at once, and a processor drops some of them.
#[inline(always)]
fn ask(at: *const u8) {
    // SAFETY: every x86-64 processor has the instruction, and it reads nothing. It is not declared `nomem`: that keeps
    // it in its place.
    unsafe { asm!("prefetcht1 [{}]", in(reg) at, options(nostack, preserves_flags)) };
}

/// Splits 128 codes in their natural order into the first halves of four blocks and the last halves.
#[inline(always)]
fn halves_apart(s: Avx512, natural: [__m512i; 2]) -> [__m512i; 2] {
    [s._mm512_shuffle_i32x4::<0x88>(natural[0], natural[1]), s._mm512_shuffle_i32x4::<0xdd>(natural[0], natural[1])]
}

/// Returns the initial values of sums of four products, which compensate for the offset of the weights' codes.
#[inline(always)]
fn offsets<F: Unpack>(s: Vnni, activations: [__m512i; 2]) -> [__m512i; 2] {
    let zero = s._mm512_setzero_si512();
    if F::OFFSET == 0 {
        return [zero; 2];
    }
    let offset = s._mm512_set1_epi8(F::OFFSET as i8);
    let [first, last] = activations.map(|codes| s._mm512_dpbusd_epi32(zero, offset, codes));
    if F::HALVES {
        [s._mm512_sub_epi32(zero, first), s._mm512_sub_epi32(zero, last)]
    } else {
        [s._mm512_sub_epi32(zero, s._mm512_add_epi32(first, last)), zero]
    }
}

/// Computes sums of four products of first and last halves, or of both together if they share a factor.
#[inline(always)]
fn dots<F: Unpack>(s: Vnni, weights: [__m512i; 2], activations: [__m512i; 2], starts: [__m512i; 2]) -> [__m512i; 2] {
    let first = s._mm512_dpbusd_epi32(starts[0], weights[0], activations[0]);
    if F::HALVES {
        [first, s._mm512_dpbusd_epi32(starts[1], weights[1], activations[1])]
    } else {
        [s._mm512_dpbusd_epi32(first, weights[1], activations[1]), starts[1]]
    }
}

/// Adds up each 128 bits of four vectors: lane `4 b + r` of the result is the sum of lanes `4 b .. 4 b + 4` of vector
/// `r`.
#[inline(always)]
fn sum_quads(s: Avx512, [a, b, c, d]: [__m512i; 4]) -> __m512i {
    let ab = s._mm512_add_epi32(s._mm512_unpacklo_epi32(a, b), s._mm512_unpackhi_epi32(a, b));
    let cd = s._mm512_add_epi32(s._mm512_unpacklo_epi32(c, d), s._mm512_unpackhi_epi32(c, d));
    s._mm512_add_epi32(s._mm512_unpacklo_epi64(ab, cd), s._mm512_unpackhi_epi64(ab, cd))
}

/// Transposes 4 x 4 lanes of 128 bits: from four rows of four blocks to one vector of sixteen rows per block.
#[inline(always)]
fn blocks_apart(s: Avx512, [a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab, cd) = (s._mm512_shuffle_i32x4::<0x44>(a, b), s._mm512_shuffle_i32x4::<0x44>(c, d));
    let (ab_high, cd_high) = (s._mm512_shuffle_i32x4::<0xee>(a, b), s._mm512_shuffle_i32x4::<0xee>(c, d));
    [
        s._mm512_shuffle_i32x4::<0x88>(ab, cd),
        s._mm512_shuffle_i32x4::<0xdd>(ab, cd),
        s._mm512_shuffle_i32x4::<0x88>(ab_high, cd_high),
        s._mm512_shuffle_i32x4::<0xdd>(ab_high, cd_high),
    ]
}

/// Adds one block of sixteen rows and one token to the integer sums, for a type whose blocks are whole spans.
#[inline(always)]
fn factored<F: Unpack>(
    s: Avx512,
    header: &Header,
    block: usize,
    dots: [__m512i; 2],
    shift: i32,
    sums: __m512i,
) -> __m512i {
    let factors = &header.factors[block];
    let mut dot = s._mm512_mullo_epi32(dots[0], s.load512(&factors[0]));
    if F::HALVES {
        dot = s._mm512_add_epi32(dot, s._mm512_mullo_epi32(dots[1], s.load512(&factors[1])));
    }
    s._mm512_add_epi32(sums, s._mm512_sllv_epi32(dot, s._mm512_set1_epi32(shift)))
}

/// Adds one block of sixteen rows and one token to the sums. The number `at` is the block's index among all blocks of
/// the activations.
///
/// # Safety
/// The activations have this block.
#[inline(always)]
unsafe fn step<F: Unpack>(
    s: Avx512,
    header: &Header,
    block: usize,
    dots: __m512i,
    x: &Activations<'_>,
    at: usize,
    acc: __m512,
) -> __m512 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let scale = s._mm512_set1_ps(*x.scales.get_unchecked(at));
        let scale = s._mm512_mul_ps(s.load(&header.scales[block]), scale);
        let acc = s._mm512_fmadd_ps(s._mm512_cvtepi32_ps(dots), scale, acc);
        if !F::MINIMA {
            return acc;
        }
        s._mm512_fnmadd_ps(s.load(&header.minima[block]), s._mm512_set1_ps(*x.minima.get_unchecked(at)), acc)
    }
}

//! Products with AVX2: eight rows in the lanes of a vector, so that no sum crosses lanes.

use std::arch::x86_64::*;
use std::ops::Range;

use super::activations::BLOCK;
use super::header::{Fields, Header, ROWS, SPAN_BLOCKS};
use super::job::ProductRows;
use super::octet::{OCTET, Octet, WORDS, turned};
use super::spans::{Ragged, Spans};
use super::unpack::Unpack;
use crate::simd::{Avx2, prefetch_second};

/// The number of tokens that share the unpacking of rows.
const TOKENS: usize = 16;

/// The number of octets (eight rows) in a panel.
const OCTETS: usize = ROWS / OCTET;

/// Computes the job's rows, for activations in [`Layout::Rows`](super::activations::Layout::Rows).
///
/// # Safety
/// The conditions of [`super::product::rows`] hold.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn rows<F: Unpack>(s: Avx2, job: &ProductRows<'_>) {
    let mut room = Room { fields: Fields::ZERO, header: Header::ZERO, ragged: Ragged::NEW };
    for first in (job.first..job.end).step_by(ROWS) {
        for token in (0..job.x.tokens).step_by(TOKENS) {
            let tokens = TOKENS.min(job.x.tokens - token);
            // SAFETY: guaranteed by the caller.
            unsafe {
                // The sums of a single token stay in registers.
                match tokens {
                    1 => panel::<F, 1>(s, job, first, token..token + 1, &mut room),
                    _ => panel::<F, TOKENS>(s, job, first, token..token + tokens, &mut room),
                }
            }
        }
    }
}

/// The buffers into which panels write.
struct Room {
    fields: Fields,
    header: Header,
    ragged: Ragged,
}

/// Computes sixteen rows from `first` on for up to `T` tokens. If there are fewer rows, the last one is repeated.
///
/// # Safety
/// The conditions of [`rows`] hold.
#[inline(always)]
unsafe fn panel<F: Octet, const T: usize>(
    s: Avx2,
    job: &ProductRows<'_>,
    first: usize,
    tokens: Range<usize>,
    room: &mut Room,
) {
    let x = &job.x;
    let count = ROWS.min(job.end - first);
    let mut sums = [[s._mm256_castsi256_ps(s._mm256_setzero_si256()); T]; OCTETS];
    for span in 0..x.blocks.div_ceil(SPAN_BLOCKS) {
        let spans = Spans::<F>::of(job, first, span, &mut room.ragged);
        F::collect_octets(s, spans, &mut room.fields);
        F::finish(s, &room.fields, &mut room.header);
        let blocks = SPAN_BLOCKS.min(x.blocks - span * SPAN_BLOCKS);
        for octet in 0..count.div_ceil(OCTET) {
            let mut of_octet = sums[octet];
            for set in 0..blocks.div_ceil(F::SHARED) {
                ask::<F>(job, first, span, octet * (SPAN_BLOCKS / F::SHARED) + set);
                let bytes = turned(s, spans, octet * OCTET, set);
                for shared in 0..F::SHARED {
                    let mut codes = bytes;
                    for word in 0..WORDS {
                        codes[word] = F::codes(s, bytes[word], shared);
                    }
                    let block = set * F::SHARED + shared;
                    let column = span * SPAN_BLOCKS + block;
                    for (acc, token) in of_octet.iter_mut().zip(tokens.clone()) {
                        let at = token * x.row_blocks() + column;
                        let activations: &[i8; BLOCK] = x.codes[at * BLOCK..][..BLOCK].try_into().expect("a block");
                        let small = (x.scales[at], x.minima[at], [x.sums[at * 2], x.sums[at * 2 + 1]]);
                        *acc = step::<F>(s, &room.header, block, octet, &codes, activations, small, *acc);
                    }
                }
            }
            sums[octet] = of_octet;
        }
    }
    for (t, token) in tokens.enumerate() {
        for octet in 0..OCTETS {
            let mut lanes = [0.0f32; OCTET];
            s.store256(s._mm256_castps_si256(sums[octet][t]), &mut lanes);
            for (row, &sum) in (octet * OCTET..count).zip(&lanes) {
                // SAFETY: guaranteed by the caller.
                unsafe { job.store(token, first + row, sum) };
            }
        }
    }
}

/// Prefetches part `part` of the bytes that the next sixteen rows have in place of these rows' span. The prefetches go
/// from one end to the other, which memory delivers faster than the pieces in the order of use. Each prefetch asks for
/// little, because a core can track few lines in flight and other loads wait for those lines.
#[inline(always)]
fn ask<F: Octet>(job: &ProductRows<'_>, first: usize, span: usize, part: usize) {
    const LINE: usize = 64;
    let bytes = const { ROWS * F::SPAN_BYTES / (OCTETS * SPAN_BLOCKS / F::SHARED) };
    let from = (first + ROWS) * job.row_bytes + span * ROWS * F::SPAN_BYTES + part * bytes;
    for at in (0..bytes).step_by(LINE) {
        prefetch_second(job.w.as_ptr().wrapping_add(from + at));
    }
}

#[inline(always)]
fn load(s: Avx2, lanes: &[f32; OCTET]) -> __m256 {
    s._mm256_castsi256_ps(s.load256(lanes))
}

/// Adds one block of eight rows and one token to a sum.
#[expect(clippy::too_many_arguments, reason = "a kernel with this many operands")]
#[inline(always)]
fn step<F: Octet>(
    s: Avx2,
    header: &Header,
    block: usize,
    octet: usize,
    codes: &[__m256i; WORDS],
    activations: &[i8; BLOCK],
    (scale, minimum, sums): (f32, f32, [i32; 2]),
    acc: __m256,
) -> __m256 {
    let block = block % SPAN_BLOCKS;
    let [half0, half1] = dots::<F>(s, codes, activations);
    let lanes = |lanes: &[f32; ROWS]| load(s, &lanes.as_chunks::<OCTET>().0[octet % OCTETS]);
    // These are integers that f32 represents exactly: nothing is rounded until `dot` is multiplied by the scales.
    let offset = if F::OFFSET == 128 { 0 } else { i32::from(F::OFFSET) };
    let integers =
        |dot: __m256i, sum: i32| s._mm256_cvtepi32_ps(s._mm256_sub_epi32(dot, s._mm256_set1_epi32(offset * sum)));
    let dot = if F::HALVES {
        let (half0, half1) = (integers(half0, sums[0]), integers(half1, sums[1]));
        let factors = &header.halves[block];
        let (f0, f1) = (lanes(&factors[0]), lanes(&factors[1]));
        s._mm256_fmadd_ps(half1, f1, s._mm256_mul_ps(half0, f0))
    } else {
        integers(half0, sums[0] + sums[1])
    };
    let scales = s._mm256_mul_ps(lanes(&header.scales[block]), s._mm256_set1_ps(scale));
    let acc = s._mm256_fmadd_ps(dot, scales, acc);
    if !F::MINIMA {
        return acc;
    }
    let minimum = if F::HALVES {
        let factors = &header.half_minima[block];
        let (f0, f1) = (lanes(&factors[0]), lanes(&factors[1]));
        let sums = sums.map(|sum| s._mm256_set1_ps(sum as f32));
        let minimum = s._mm256_fmadd_ps(f1, sums[1], s._mm256_mul_ps(f0, sums[0]));
        s._mm256_mul_ps(s._mm256_set1_ps(scale), minimum)
    } else {
        s._mm256_set1_ps(minimum)
    };
    s._mm256_fnmadd_ps(lanes(&header.minima[block]), minimum, acc)
}

/// Computes the dot products of eight rows' codes with a block: of each half block, or of the whole block in the first
/// vector if the type has no factors for halves.
#[inline(always)]
fn dots<F: Octet>(s: Avx2, codes: &[__m256i; WORDS], activations: &[i8; BLOCK]) -> [__m256i; 2] {
    let ones = s._mm256_set1_epi16(1);
    let four = |word: usize| {
        let [a, b, c, d] = activations.as_chunks::<4>().0[word].map(i8::cast_unsigned);
        s._mm256_set1_epi32(i32::from_le_bytes([a, b, c, d]))
    };
    let mut halves = [s._mm256_setzero_si256(); 2];
    for first in (0..WORDS).step_by(F::ADDED) {
        let mut pairs = products::<F>(s, codes[first], four(first));
        for word in first + 1..first + F::ADDED {
            pairs = s._mm256_add_epi16(pairs, products::<F>(s, codes[word], four(word)));
        }
        let half = if F::HALVES { 2 * first / WORDS } else { 0 };
        halves[half] = s._mm256_add_epi32(halves[half], s._mm256_madd_epi16(pairs, ones));
    }
    halves
}

/// Multiplies bytes and adds up neighbouring products, in 16 bits.
#[inline(always)]
fn products<F: Octet>(s: Avx2, codes: __m256i, activations: __m256i) -> __m256i {
    // The sums must fit 16 bits, or they would saturate. Codes of up to 6 bits do: 2 * 63 * 127. Signed bytes do too,
    // with the sign moved to the activations, which are never -128: 2 * 128 * 127.
    if F::OFFSET == 128 {
        let codes = s._mm256_xor_si256(codes, s._mm256_set1_epi8(-128));
        s._mm256_maddubs_epi16(s._mm256_abs_epi8(codes), s._mm256_sign_epi8(activations, codes))
    } else {
        s._mm256_maddubs_epi16(codes, activations)
    }
}

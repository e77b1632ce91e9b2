//! Products with AVX2: eight rows in the lanes of a vector, so that no sum crosses lanes.

use std::arch::x86_64::*;
use std::ops::Range;

use super::activations::{Activations, BLOCK, both};
use super::formats::pairs;
use super::header::{Factors, Fields, Header, ROWS, SPAN_BLOCKS};
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
            let mut integers = [s._mm256_setzero_si256(); T];
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
                    for (t, token) in tokens.clone().enumerate() {
                        let at = token * x.row_blocks() + column;
                        if F::WHOLE {
                            integers[t] = factored::<F>(s, &room.header, block, octet, &codes, x, at, integers[t]);
                        } else {
                            of_octet[t] = step::<F>(s, &room.header, block, octet, &codes, x, at, of_octet[t]);
                        }
                    }
                }
            }
            if F::WHOLE {
                for (t, token) in tokens.clone().enumerate() {
                    let at = token * x.row_blocks() + span * SPAN_BLOCKS;
                    of_octet[t] = add_whole::<F>(s, &room.header, octet, x, at, integers[t], of_octet[t]);
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
fn load(s: Avx2, lanes: &[f32; ROWS], octet: usize) -> __m256 {
    s._mm256_castsi256_ps(s.load256(&lanes.as_chunks::<OCTET>().0[octet % OCTETS]))
}

#[inline(always)]
fn load_factors(s: Avx2, lanes: &Factors, octet: usize) -> __m256i {
    s.load256(&lanes.as_chunks::<OCTET>().0[octet % OCTETS])
}

/// The number that each code exceeds its integer by, for products of codes as they are.
const fn offset<F: Octet>() -> i32 {
    if F::OFFSET == 128 { 0 } else { F::OFFSET as i32 }
}

/// Adds one block of eight rows and one token to a sum. The number `at` is the block's index among all blocks of the
/// activations.
#[expect(clippy::too_many_arguments, reason = "a kernel with this many operands")]
#[inline(always)]
fn step<F: Octet>(
    s: Avx2,
    header: &Header,
    block: usize,
    octet: usize,
    codes: &[__m256i; WORDS],
    x: &Activations<'_>,
    at: usize,
    acc: __m256,
) -> __m256 {
    let block = block % SPAN_BLOCKS;
    // This is an integer that f32 represents exactly: nothing is rounded until `dot` is multiplied by the scales.
    let dot = dots::<F>(s, codes, block_of(x, at), [s._mm256_set1_epi16(1); 2]);
    let start = s._mm256_set1_epi32(offset::<F>() * (x.sums[at * 2] + x.sums[at * 2 + 1]));
    let dot = s._mm256_cvtepi32_ps(s._mm256_sub_epi32(dot, start));
    let scales = s._mm256_mul_ps(load(s, &header.scales[block], octet), s._mm256_set1_ps(x.scales[at]));
    let acc = s._mm256_fmadd_ps(dot, scales, acc);
    if !F::MINIMA {
        return acc;
    }
    s._mm256_fnmadd_ps(load(s, &header.minima[block], octet), s._mm256_set1_ps(x.minima[at]), acc)
}

/// Adds one block of eight rows and one token to an integer sum, for a type whose blocks are whole spans. The number
/// `at` is the block's index among all blocks of the activations.
#[expect(clippy::too_many_arguments, reason = "a kernel with this many operands")]
#[inline(always)]
fn factored<F: Octet>(
    s: Avx2,
    header: &Header,
    block: usize,
    octet: usize,
    codes: &[__m256i; WORDS],
    x: &Activations<'_>,
    at: usize,
    sum: __m256i,
) -> __m256i {
    let factors = &header.factors[block % SPAN_BLOCKS];
    let first = load_factors(s, &factors[0], octet);
    let last = if F::HALVES { load_factors(s, &factors[1], octet) } else { first };
    // The factors fit 16 bits.
    let pair = |low: __m256i, high: __m256i| {
        let low = s._mm256_and_si256(low, s._mm256_set1_epi32(0xffff));
        s._mm256_or_si256(low, s._mm256_slli_epi32::<16>(high))
    };
    let mut dot = dots::<F>(s, codes, block_of(x, at), [pair(first, first), pair(last, last)]);
    if offset::<F>() != 0 {
        let sums = s._mm256_set1_epi32(both(x.sums[at * 2], x.sums[at * 2 + 1]));
        let excess = s._mm256_madd_epi16(pair(first, last), sums);
        dot = s._mm256_sub_epi32(dot, s._mm256_mullo_epi32(excess, s._mm256_set1_epi32(offset::<F>())));
    }
    s._mm256_add_epi32(sum, s._mm256_sllv_epi32(dot, s._mm256_set1_epi32(x.shifts[at])))
}

/// Adds the integer sum of a span of eight rows and one token to a sum. The number `at` is the index of the span's
/// first block among all blocks of the activations.
#[inline(always)]
fn add_whole<F: Octet>(
    s: Avx2,
    header: &Header,
    octet: usize,
    x: &Activations<'_>,
    at: usize,
    sum: __m256i,
    acc: __m256,
) -> __m256 {
    let mut part = s._mm256_mul_ps(load(s, &header.scales[0], octet), s._mm256_cvtepi32_ps(sum));
    if F::MINIMA {
        let mut minimum = s._mm256_setzero_si256();
        for pair in 0..pairs::<F>() {
            let sums = s._mm256_set1_epi32(x.pair::<F>(at, pair));
            let products = s._mm256_madd_epi16(load_factors(s, &header.minimum_factors[pair], octet), sums);
            minimum = s._mm256_add_epi32(minimum, products);
        }
        let minima = load(s, &header.minima[0], octet);
        part = s._mm256_fnmadd_ps(minima, s._mm256_cvtepi32_ps(minimum), part);
    }
    s._mm256_fmadd_ps(part, s._mm256_set1_ps(x.scales[at]), acc)
}

/// Returns the codes of block `at` of the activations.
#[inline(always)]
fn block_of<'a>(x: &Activations<'a>, at: usize) -> &'a [i8; BLOCK] {
    x.codes[at * BLOCK..][..BLOCK].try_into().expect("a block")
}

/// Computes the dot products of eight rows' codes with a block. The sums of two products of either half block are
/// multiplied by the 16-bit `factors` of that half. If the type has no factors for halves, both must be the same.
#[inline(always)]
fn dots<F: Octet>(s: Avx2, codes: &[__m256i; WORDS], activations: &[i8; BLOCK], factors: [__m256i; 2]) -> __m256i {
    let four = |word: usize| {
        let [a, b, c, d] = activations.as_chunks::<4>().0[word].map(i8::cast_unsigned);
        s._mm256_set1_epi32(i32::from_le_bytes([a, b, c, d]))
    };
    let mut dots = s._mm256_setzero_si256();
    for first in (0..WORDS).step_by(F::ADDED) {
        let mut pairs = products::<F>(s, codes[first], four(first));
        for word in first + 1..first + F::ADDED {
            pairs = s._mm256_add_epi16(pairs, products::<F>(s, codes[word], four(word)));
        }
        dots = s._mm256_add_epi32(dots, s._mm256_madd_epi16(pairs, factors[2 * first / WORDS]));
    }
    dots
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

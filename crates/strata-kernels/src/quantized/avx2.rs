//! Products with AVX2: rows of eight, one block of 32 columns at a time.

use std::arch::x86_64::*;

use super::activations::BLOCK;
use super::header::{Fields, Header, ROWS, SPAN_BLOCKS};
use super::job::ProductRows;
use super::unpack::Unpack;
use crate::simd::{Avx2, prefetch_second};

/// Tokens that share the unpacking of rows.
const TOKENS: usize = 16;

/// Rows whose dot products share a reduction.
const OCTET: usize = 8;

/// The job's rows, for activations in rows.
///
/// # Safety
/// As for [`super::product::rows`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn rows<F: Unpack>(s: Avx2, job: &ProductRows<'_>) {
    let (mut fields, mut header) = (Fields::ZERO, Header::ZERO);
    for first in (job.first..job.end).step_by(ROWS) {
        for token in (0..job.x.tokens).step_by(TOKENS) {
            let tokens = TOKENS.min(job.x.tokens - token);
            // SAFETY: the caller's promise.
            unsafe { panel::<F>(s, job, first, token, tokens, &mut fields, &mut header) };
        }
    }
}

/// Sixteen rows from `first` on, for some tokens. If there are fewer rows, the last one is repeated.
///
/// # Safety
/// As for [`rows`].
#[inline(always)]
unsafe fn panel<F: Unpack>(
    s: Avx2,
    job: &ProductRows<'_>,
    first: usize,
    token: usize,
    tokens: usize,
    fields: &mut Fields,
    header: &mut Header,
) {
    let x = &job.x;
    let row_blocks = x.row_blocks();
    let count = ROWS.min(job.end - first);
    let mut sums = [[[0.0f32; OCTET]; ROWS / OCTET]; TOKENS];
    for span in 0..x.blocks.div_ceil(SPAN_BLOCKS) {
        for row in 0..count {
            F::collect(job.span::<F>(first + row, span), row, fields);
        }
        F::finish(s, fields, header);
        for octet in 0..count.div_ceil(OCTET) {
            let mut spans: [&[u8]; OCTET] = [&[]; OCTET];
            for (row, bytes) in spans.iter_mut().enumerate() {
                let row = first + (octet * OCTET + row).min(count - 1);
                *bytes = job.span::<F>(row, span);
                ask(bytes, ROWS * job.row_bytes);
            }
            for block in 0..SPAN_BLOCKS.min(x.blocks - span * SPAN_BLOCKS) {
                let mut weights = [s._mm256_setzero_si256(); OCTET];
                for (weights, span) in weights.iter_mut().zip(spans) {
                    *weights = F::unpack1(s, span, block);
                }
                for t in 0..tokens {
                    let column = span * SPAN_BLOCKS + block;
                    let at = (token + t) * row_blocks + column;
                    let codes: &[i8; BLOCK] = x.codes[at * BLOCK..][..BLOCK].try_into().expect("a whole block");
                    let sums = &mut sums[t][octet];
                    let activations = (x.scales[at], x.sums[at * 2], x.sums[at * 2 + 1]);
                    let acc = step::<F>(s, header, block, octet, &weights, codes, activations, load(s, sums));
                    s.store256(s._mm256_castps_si256(acc), sums);
                }
            }
        }
    }
    for t in 0..tokens {
        for row in 0..count {
            // SAFETY: the caller's promise.
            unsafe { job.store(token + t, first + row, sums[t][row / OCTET][row % OCTET]) };
        }
    }
}

#[inline(always)]
fn load(s: Avx2, lanes: &[f32; OCTET]) -> __m256 {
    s._mm256_castsi256_ps(s.load256(lanes))
}

/// Asks for the lines of `bytes`, so much farther on.
#[inline(always)]
fn ask(bytes: &[u8], farther: usize) {
    for at in (0..bytes.len()).step_by(64) {
        prefetch_second(bytes.as_ptr().wrapping_add(farther + at));
    }
}

/// One block of eight rows and one token.
#[expect(clippy::too_many_arguments, reason = "a kernel with this many operands")]
#[inline(always)]
fn step<F: Unpack>(
    s: Avx2,
    header: &Header,
    block: usize,
    octet: usize,
    weights: &[__m256i; OCTET],
    codes: &[i8; BLOCK],
    (scale, sum0, sum1): (f32, f32, f32),
    acc: __m256,
) -> __m256 {
    let codes = s.load256(codes);
    let mut parts = [s._mm256_setzero_si256(); OCTET];
    for (part, weights) in parts.iter_mut().zip(weights) {
        *part = products::<F>(s, *weights, codes);
    }
    // Neighbours are added within 128 bits: then lanes 0 .. 4 have the first half block's sums, lanes 4 .. 8 the
    // last one's.
    let low = s._mm256_hadd_epi32(s._mm256_hadd_epi32(parts[0], parts[1]), s._mm256_hadd_epi32(parts[2], parts[3]));
    let high = s._mm256_hadd_epi32(s._mm256_hadd_epi32(parts[4], parts[5]), s._mm256_hadd_epi32(parts[6], parts[7]));
    let half0 = s._mm256_permute2x128_si256::<0x20>(low, high);
    let half1 = s._mm256_permute2x128_si256::<0x31>(low, high);
    let lanes = |lanes: &[f32; ROWS]| load(s, &lanes.as_chunks::<OCTET>().0[octet % (ROWS / OCTET)]);
    // Sums of integers that f32 can count: nothing is rounded until `dot` meets the scales.
    let offset = if F::OFFSET == 128 { 0.0 } else { f32::from(F::OFFSET) };
    let dot = if F::HALVES {
        let half0 = s._mm256_sub_ps(s._mm256_cvtepi32_ps(half0), s._mm256_set1_ps(offset * sum0));
        let half1 = s._mm256_sub_ps(s._mm256_cvtepi32_ps(half1), s._mm256_set1_ps(offset * sum1));
        let factors = &header.halves[block];
        let (f0, f1) = (lanes(&factors[0]), lanes(&factors[1]));
        s._mm256_fmadd_ps(half1, f1, s._mm256_mul_ps(half0, f0))
    } else {
        let dot = s._mm256_cvtepi32_ps(s._mm256_add_epi32(half0, half1));
        s._mm256_sub_ps(dot, s._mm256_set1_ps(offset * (sum0 + sum1)))
    };
    let scales = s._mm256_mul_ps(lanes(&header.scales[block]), s._mm256_set1_ps(scale));
    let acc = s._mm256_fmadd_ps(dot, scales, acc);
    if !F::MINIMA {
        return acc;
    }
    let minimum = if F::HALVES {
        let factors = &header.half_minima[block];
        let (f0, f1) = (lanes(&factors[0]), lanes(&factors[1]));
        let minimum = s._mm256_fmadd_ps(f1, s._mm256_set1_ps(sum1), s._mm256_mul_ps(f0, s._mm256_set1_ps(sum0)));
        s._mm256_mul_ps(s._mm256_set1_ps(scale), minimum)
    } else {
        s._mm256_set1_ps(scale * (sum0 + sum1))
    };
    s._mm256_fnmadd_ps(lanes(&header.minima[block]), minimum, acc)
}

/// Sums of four products each: lanes 0 .. 4 of the first half block, 4 .. 8 of the last.
#[inline(always)]
fn products<F: Unpack>(s: Avx2, weights: __m256i, codes: __m256i) -> __m256i {
    let ones = s._mm256_set1_epi16(1);
    // Pairs must fit 16 bits, or they would saturate. Codes of up to 6 bits do: 2 * 63 * 127. Signed bytes do too,
    // with the sign moved to the activations, which never are -128: 2 * 128 * 127.
    let pairs = if F::OFFSET == 128 {
        let weights = s._mm256_xor_si256(weights, s._mm256_set1_epi8(-128));
        s._mm256_maddubs_epi16(s._mm256_abs_epi8(weights), s._mm256_sign_epi8(codes, weights))
    } else {
        s._mm256_maddubs_epi16(weights, codes)
    };
    s._mm256_madd_epi16(pairs, ones)
}

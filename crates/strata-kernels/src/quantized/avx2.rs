//! Products with AVX2: rows of eight, one block of 32 columns at a time.

use std::arch::x86_64::*;

use super::activations::BLOCK;
use super::header::{Fields, Header, ROWS, SPAN_BLOCKS};
use super::job::Job;
use super::unpack::Unpack;
use crate::simd::Avx2;

/// Tokens that share the unpacking of rows.
const TOKENS: usize = 16;

/// Rows whose dot products share a reduction.
const OCTET: usize = 8;

/// The job's rows, for activations in rows.
///
/// # Safety
/// As for [`super::product::rows`]; AVX2 and FMA exist.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn rows<F: Unpack>(job: &Job<'_>) {
    let (mut fields, mut header) = (Fields::ZERO, Header::ZERO);
    for first in (job.first..job.end).step_by(ROWS) {
        for token in (0..job.x.tokens).step_by(TOKENS) {
            let tokens = TOKENS.min(job.x.tokens - token);
            // SAFETY: the caller's promise.
            unsafe { panel::<F>(job, first, token, tokens, &mut fields, &mut header) };
        }
    }
}

/// Sixteen rows from `first` on (the last one again and again where there are fewer), for some tokens.
///
/// # Safety
/// As for [`rows`].
#[inline(always)]
unsafe fn panel<F: Unpack>(
    job: &Job<'_>,
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
        // SAFETY: the caller's promise.
        unsafe { F::finish::<Avx2>(fields, header) };
        for octet in 0..count.div_ceil(OCTET) {
            let mut spans: [&[u8]; OCTET] = [&[]; OCTET];
            for (row, bytes) in spans.iter_mut().enumerate() {
                let row = first + (octet * OCTET + row).min(count - 1);
                *bytes = job.span::<F>(row, span);
                prefetch(bytes, ROWS * job.row_bytes);
            }
            for block in 0..SPAN_BLOCKS.min(x.blocks - span * SPAN_BLOCKS) {
                // SAFETY: AVX2 exists by the caller's promise.
                let mut weights = unsafe { [_mm256_setzero_si256(); OCTET] };
                for (weights, span) in weights.iter_mut().zip(spans) {
                    // SAFETY: as above.
                    *weights = unsafe { F::unpack1(span, block) };
                }
                for t in 0..tokens {
                    let column = span * SPAN_BLOCKS + block;
                    let at = (token + t) * row_blocks + column;
                    let codes = &x.codes[at * BLOCK..][..BLOCK];
                    let sums = &mut sums[t][octet];
                    // SAFETY: AVX2 exists by the caller's promise; each pointer is to a whole array.
                    unsafe {
                        let acc = _mm256_loadu_ps(sums.as_ptr());
                        let activations = (x.scales[at], x.sums[at * 2], x.sums[at * 2 + 1]);
                        let acc = step::<F>(header, block, octet, &weights, codes, activations, acc);
                        _mm256_storeu_ps(sums.as_mut_ptr(), acc);
                    }
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

/// Asks for the lines of `bytes`, so much farther on.
#[inline(always)]
fn prefetch(bytes: &[u8], farther: usize) {
    for at in (0..bytes.len()).step_by(64) {
        // SAFETY: a prefetch reads nothing, so the address need not exist.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(farther + at).cast()) };
    }
}

/// One block of eight rows and one token.
///
/// # Safety
/// AVX2 and FMA exist.
#[inline(always)]
unsafe fn step<F: Unpack>(
    header: &Header,
    block: usize,
    octet: usize,
    weights: &[__m256i; OCTET],
    codes: &[i8],
    (scale, sum0, sum1): (f32, f32, f32),
    acc: __m256,
) -> __m256 {
    // SAFETY: loads are of whole arrays, and `codes` has 32.
    unsafe {
        let codes = _mm256_loadu_si256(codes.as_ptr().cast());
        let mut parts = [_mm256_setzero_si256(); OCTET];
        for (part, weights) in parts.iter_mut().zip(weights) {
            *part = products::<F>(*weights, codes);
        }
        // Neighbours are added within 128 bits: then lanes 0 .. 4 have the first half block's sums, lanes 4 .. 8 the
        // last one's.
        let low = _mm256_hadd_epi32(_mm256_hadd_epi32(parts[0], parts[1]), _mm256_hadd_epi32(parts[2], parts[3]));
        let high = _mm256_hadd_epi32(_mm256_hadd_epi32(parts[4], parts[5]), _mm256_hadd_epi32(parts[6], parts[7]));
        let half0 = _mm256_permute2x128_si256::<0x20>(low, high);
        let half1 = _mm256_permute2x128_si256::<0x31>(low, high);
        let lanes = |lanes: &[f32; ROWS]| lanes.as_ptr().add(octet * OCTET);
        // Sums of integers that f32 can count: nothing is rounded until `dot` meets the scales.
        let offset = if F::OFFSET == 128 { 0.0 } else { f32::from(F::OFFSET) };
        let dot = if F::HALVES {
            let half0 = _mm256_sub_ps(_mm256_cvtepi32_ps(half0), _mm256_set1_ps(offset * sum0));
            let half1 = _mm256_sub_ps(_mm256_cvtepi32_ps(half1), _mm256_set1_ps(offset * sum1));
            let factors = &header.halves[block];
            let (f0, f1) = (_mm256_loadu_ps(lanes(&factors[0])), _mm256_loadu_ps(lanes(&factors[1])));
            _mm256_fmadd_ps(half1, f1, _mm256_mul_ps(half0, f0))
        } else {
            let dot = _mm256_cvtepi32_ps(_mm256_add_epi32(half0, half1));
            _mm256_sub_ps(dot, _mm256_set1_ps(offset * (sum0 + sum1)))
        };
        let scales = _mm256_mul_ps(_mm256_loadu_ps(lanes(&header.scales[block])), _mm256_set1_ps(scale));
        let acc = _mm256_fmadd_ps(dot, scales, acc);
        if !F::MINIMA {
            return acc;
        }
        let minimum = if F::HALVES {
            let factors = &header.half_minima[block];
            let (f0, f1) = (_mm256_loadu_ps(lanes(&factors[0])), _mm256_loadu_ps(lanes(&factors[1])));
            let minimum = _mm256_fmadd_ps(f1, _mm256_set1_ps(sum1), _mm256_mul_ps(f0, _mm256_set1_ps(sum0)));
            _mm256_mul_ps(_mm256_set1_ps(scale), minimum)
        } else {
            _mm256_set1_ps(scale * (sum0 + sum1))
        };
        _mm256_fnmadd_ps(_mm256_loadu_ps(lanes(&header.minima[block])), minimum, acc)
    }
}

/// Sums of four products each: lanes 0 .. 4 of the first half block, 4 .. 8 of the last.
///
/// # Safety
/// AVX2 exists.
#[inline(always)]
unsafe fn products<F: Unpack>(weights: __m256i, codes: __m256i) -> __m256i {
    // SAFETY: arithmetic on registers.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        // Pairs must fit 16 bits, or they would saturate. Codes of up to 6 bits do: 2 * 63 * 127. Signed bytes do too,
        // with the sign moved to the activations, which never are -128: 2 * 128 * 127.
        let pairs = if F::OFFSET == 128 {
            let weights = _mm256_xor_si256(weights, _mm256_set1_epi8(-128));
            _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(codes, weights))
        } else {
            _mm256_maddubs_epi16(weights, codes)
        };
        _mm256_madd_epi16(pairs, ones)
    }
}

//! Products in plain Rust, for any machine.

use super::activations::{BLOCK, Layout};
use super::formats::Format;
use super::header::{Fields, Header, ROWS, SPAN_BLOCKS};
use super::product::Job;
use crate::simd::Portable;

/// Tokens that share the unpacking of a row.
const TOKENS: usize = 16;

/// The job's rows, for activations in rows. `FUSED`: whether the machine has a fused multiply-add; without, it would be
/// a hundred times slower.
///
/// # Safety
/// As for [`super::product::rows`].
pub(super) unsafe fn rows<F: Format, const FUSED: bool>(job: &Job<'_>) {
    debug_assert_eq!(job.x.layout, Layout::Rows);
    let (mut fields, mut header) = (Fields::ZERO, Header::ZERO);
    for first in (job.first..job.end).step_by(ROWS) {
        let end = job.end.min(first + ROWS);
        for token in (0..job.x.tokens).step_by(TOKENS) {
            let tokens = token..job.x.tokens.min(token + TOKENS);
            let mut sums = [[0.0f32; ROWS]; TOKENS];
            for span in 0..job.x.blocks.div_ceil(SPAN_BLOCKS) {
                for row in first..end {
                    F::collect(job.span::<F>(row, span), row - first, &mut fields);
                }
                // SAFETY: needs no instructions.
                unsafe { F::finish::<Portable>(&fields, &mut header) };
                for row in first..end {
                    let codes = job.span::<F>(row, span);
                    for block in 0..SPAN_BLOCKS.min(job.x.blocks - span * SPAN_BLOCKS) {
                        let mut weights = [0; BLOCK];
                        F::unpack(codes, block, &mut weights);
                        for token in tokens.clone() {
                            let sum = &mut sums[token - tokens.start][row - first];
                            let at = token * job.x.blocks + span * SPAN_BLOCKS + block;
                            *sum = step::<F, FUSED>(job, &header, block, row - first, token, at, &weights, *sum);
                        }
                    }
                }
            }
            for token in tokens.clone() {
                for row in first..end {
                    // SAFETY: the caller's promise.
                    unsafe { job.store(token, row, sums[token - tokens.start][row - first]) };
                }
            }
        }
    }
}

/// One block of one row and token, whose scales are at `at`.
#[expect(clippy::too_many_arguments, reason = "a loop's body, apart for its length")]
#[inline(always)]
fn step<F: Format, const FUSED: bool>(
    job: &Job<'_>,
    header: &Header,
    block: usize,
    row: usize,
    token: usize,
    at: usize,
    weights: &[u8; BLOCK],
    acc: f32,
) -> f32 {
    let fma = |a: f32, b: f32, c: f32| if FUSED { a.mul_add(b, c) } else { a * b + c };
    let stride = job.x.codes.len() / job.x.tokens;
    let codes = &job.x.codes[token * stride + (at - token * job.x.blocks) * BLOCK..][..BLOCK];
    let scale = job.x.scales[at];
    let sums = &job.x.sums[at * 2..][..2];
    let dot = |range: std::ops::Range<usize>| {
        let (weights, codes) = (&weights[range.clone()], &codes[range]);
        let products = weights.iter().zip(codes);
        products.map(|(w, c)| (i32::from(*w) - i32::from(F::OFFSET)) * i32::from(*c)).sum::<i32>() as f32
    };
    let dot = if F::HALVES {
        // Integers that f32 can count, so nothing is rounded here.
        header.halves[block][0][row] * dot(0..16) + header.halves[block][1][row] * dot(16..32)
    } else {
        dot(0..32)
    };
    let acc = fma(dot, header.scales[block][row] * scale, acc);
    if !F::MINIMA {
        return acc;
    }
    let minimum = if F::HALVES {
        header.half_minima[block][0][row] * sums[0] + header.half_minima[block][1][row] * sums[1]
    } else {
        sums[0] + sums[1]
    };
    fma(-header.minima[block][row], scale * minimum, acc)
}

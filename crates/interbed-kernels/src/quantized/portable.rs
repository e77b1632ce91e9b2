//! Products in plain Rust, for any machine.

use super::activations::{BLOCK, Layout};
use super::formats::{Format, pairs};
use super::header::{Fields, Header, ROWS, SPAN_BLOCKS};
use super::job::ProductRows;
use crate::simd::Portable;

/// The number of tokens that share the unpacking of a row.
const TOKENS: usize = 16;

/// Computes the job's rows, for activations in [`Layout::Rows`]. The parameter `FUSED` says whether the machine has an
/// instruction for fused multiply-add. Without the instruction, fused multiply-add would be a hundred times slower.
///
/// # Safety
/// The conditions of [`super::product::rows`] hold.
pub(super) unsafe fn rows<F: Format, const FUSED: bool>(job: &ProductRows<'_>) {
    debug_assert_eq!(job.x.layout, Layout::Rows);
    let (mut fields, mut header) = (Fields::ZERO, Header::ZERO);
    let mut weights = [[0; BLOCK]; SPAN_BLOCKS];
    let row_blocks = job.x.row_blocks();
    for first in (job.first..job.end).step_by(ROWS) {
        let end = job.end.min(first + ROWS);
        for token in (0..job.x.tokens).step_by(TOKENS) {
            let tokens = token..job.x.tokens.min(token + TOKENS);
            let mut sums = [[0.0f32; ROWS]; TOKENS];
            for span in 0..job.x.blocks.div_ceil(SPAN_BLOCKS) {
                for row in first..end {
                    F::collect(job.span::<F>(row, span), row - first, &mut fields);
                }
                F::finish(Portable, &fields, &mut header);
                for row in first..end {
                    let blocks = SPAN_BLOCKS.min(job.x.blocks - span * SPAN_BLOCKS);
                    unpack::<F>(job.span::<F>(row, span), blocks, &mut weights);
                    for token in tokens.clone() {
                        let sum = &mut sums[token - tokens.start][row - first];
                        let at = token * row_blocks + span * SPAN_BLOCKS;
                        if F::WHOLE {
                            *sum = whole::<F, FUSED>(job, &header, row - first, at, &weights, *sum);
                            continue;
                        }
                        for (block, weights) in weights[..blocks].iter().enumerate() {
                            *sum = step::<F, FUSED>(job, &header, block, row - first, at + block, weights, *sum);
                        }
                    }
                }
            }
            for token in tokens.clone() {
                for row in first..end {
                    // SAFETY: guaranteed by the caller.
                    unsafe { job.store(token, row, sums[token - tokens.start][row - first]) };
                }
            }
        }
    }
}

/// Unpacks the integers of a span to 16 bits, because machines without better instructions multiply many 16-bit
/// integers at a time. This function is not inlined, because the compiler would repeat it for each token.
#[inline(never)]
fn unpack<F: Format>(span: &[u8], blocks: usize, weights: &mut [[i16; BLOCK]; SPAN_BLOCKS]) {
    for (block, weights) in weights[..blocks].iter_mut().enumerate() {
        let mut codes = [0; BLOCK];
        F::unpack(span, block, &mut codes);
        for (weight, code) in weights.iter_mut().zip(codes) {
            *weight = i16::from(code) - i16::from(F::OFFSET);
        }
    }
}

/// Adds one block of one row and one token to a sum. The number `at` is the block's index among all blocks of the
/// activations.
#[inline(always)]
fn step<F: Format, const FUSED: bool>(
    job: &ProductRows<'_>,
    header: &Header,
    block: usize,
    row: usize,
    at: usize,
    weights: &[i16; BLOCK],
    acc: f32,
) -> f32 {
    let dot = dot(weights, &job.x.codes[at * BLOCK..][..BLOCK]) as f32;
    let acc = fma::<FUSED>(dot, header.scales[block][row] * job.x.scales[at], acc);
    if F::MINIMA { fma::<FUSED>(-header.minima[block][row], job.x.minima[at], acc) } else { acc }
}

/// Adds one span of one row and one token to a sum, for a type whose blocks are whole spans. The number `at` is the
/// index of the span's first block among all blocks of the activations.
#[inline(always)]
fn whole<F: Format, const FUSED: bool>(
    job: &ProductRows<'_>,
    header: &Header,
    row: usize,
    at: usize,
    weights: &[[i16; BLOCK]; SPAN_BLOCKS],
    acc: f32,
) -> f32 {
    let codes = &job.x.codes[at * BLOCK..][..SPAN_BLOCKS * BLOCK];
    let mut sum = 0;
    let shifts = &job.x.shifts[at..][..SPAN_BLOCKS];
    for (block, codes) in codes.as_chunks::<BLOCK>().0.iter().enumerate() {
        let (weights, factors) = (&weights[block], &header.factors[block]);
        let of_block = if F::HALVES {
            let (codes, weights) = (codes.split_at(BLOCK / 2), weights.split_at(BLOCK / 2));
            factors[0][row] * dot(weights.0, codes.0) + factors[1][row] * dot(weights.1, codes.1)
        } else {
            factors[0][row] * dot(weights, codes)
        };
        sum += of_block << shifts[block];
    }
    let mut part = header.scales[0][row] * sum as f32;
    if F::MINIMA {
        let halves = |pair: i32| [pair as i16, (pair >> 16) as i16].map(i32::from);
        let minimum = (0..pairs::<F>()).map(|pair| {
            let (sums, factors) = (halves(job.x.pair::<F>(at, pair)), halves(header.minimum_factors[pair][row]));
            factors[0] * sums[0] + factors[1] * sums[1]
        });
        part = fma::<FUSED>(-header.minima[0][row], minimum.sum::<i32>() as f32, part);
    }
    fma::<FUSED>(part, job.x.scales[at], acc)
}

#[inline(always)]
fn fma<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn dot(weights: &[i16], codes: &[i8]) -> i32 {
    weights.iter().zip(codes).map(|(w, c)| i32::from(*w) * i32::from(i16::from(*c))).sum()
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::quantized::activations::{Group, quantize, scratch_bytes};
    use crate::quantized::avx2;
    use crate::quantized::formats::with_format;
    use crate::simd::Avx2;

    use crate::{Columns, DType, Level, Pool};

    /// Tests the kernel of Arm machines, whose fused multiply-add is an instruction there and a function call here.
    #[test]
    #[expect(clippy::undocumented_unsafe_blocks, reason = "clippy does not see the comment through the macro")]
    fn fused_sums_are_those_of_the_vector_kernels() {
        let Some(level) = Level::available().find(|level| level.name() == "avx2") else { return };
        let Some(token) = Avx2::of(level) else { return };
        let pool = Pool::new(NonZeroUsize::MIN);
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_plain()) {
            let (rows, tokens) = (19, 18);
            let blocks = if dtype.block_len() == BLOCK { 11 } else { 16 };
            let cols = blocks * BLOCK;
            // Without their second highest bit, all half floats are finite.
            let w: Vec<u8> = (0..dtype.row_bytes(cols).unwrap() * rows).map(|_| random() & 0xbf).collect();
            let x: Vec<f32> = (0..tokens * cols).map(|_| f32::from(random()) - 127.5).collect();
            let mut scratch = vec![0; scratch_bytes(tokens, cols)];
            let x = quantize(&pool, level, Group::of(dtype), Layout::Rows, &x, cols, &mut scratch, true);
            let product = |kernel: &dyn Fn(&ProductRows<'_>)| {
                let mut out = vec![f32::NAN; tokens * rows];
                let to = Columns::new(&mut out, rows).output();
                kernel(&ProductRows { x, w: &w, row_bytes: w.len() / rows, first: 0, end: rows, out: to });
                assert!(out.iter().all(|out| out.is_finite()), "{dtype}");
                out.iter().map(|out| out.to_bits()).collect::<Vec<_>>()
            };
            with_format!(dtype, F => {
                // SAFETY: the job has matching shapes, and the level proves its instructions.
                let (plain, vectors) = unsafe {
                    (product(&|job| super::rows::<F, true>(job)), product(&|job| avx2::rows::<F>(token, job)))
                };
                assert_eq!(plain, vectors, "{dtype}");
            });
        }
    }
}

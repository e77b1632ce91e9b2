//! Products in plain Rust, for any machine.

use super::activations::{BLOCK, Layout};
use super::formats::Format;
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
                    for (block, weights) in weights[..blocks].iter().enumerate() {
                        for token in tokens.clone() {
                            let sum = &mut sums[token - tokens.start][row - first];
                            let at = token * row_blocks + span * SPAN_BLOCKS + block;
                            *sum = step::<F, FUSED>(job, &header, block, row - first, at, weights, *sum);
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
    let fma = |a: f32, b: f32, c: f32| if FUSED { a.mul_add(b, c) } else { a * b + c };
    let codes = &job.x.codes[at * BLOCK..][..BLOCK];
    let scale = job.x.scales[at];
    let sums = &job.x.sums[at * 2..][..2];
    let dot = |range: std::ops::Range<usize>| {
        let (weights, codes) = (&weights[range.clone()], &codes[range]);
        let products = weights.iter().zip(codes);
        products.map(|(w, c)| i32::from(*w) * i32::from(i16::from(*c))).sum::<i32>() as f32
    };
    let dot = if F::HALVES {
        // These are integers that f32 represents exactly, so nothing is rounded here.
        header.halves[block][0][row] * dot(0..16) + header.halves[block][1][row] * dot(16..32)
    } else {
        dot(0..32)
    };
    let acc = fma(dot, header.scales[block][row] * scale, acc);
    if !F::MINIMA {
        return acc;
    }
    let minimum = if F::HALVES {
        let [first, last] = &header.half_minima[block];
        scale * (first[row] * sums[0] as f32 + last[row] * sums[1] as f32)
    } else {
        job.x.minima[at]
    };
    fma(-header.minima[block][row], minimum, acc)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::quantized::activations::{quantize, scratch_bytes};
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
            let x = quantize(&pool, level, Layout::Rows, &x, cols, &mut scratch, true);
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

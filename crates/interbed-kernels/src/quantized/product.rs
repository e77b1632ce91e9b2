//! Products of quantized weights with quantized activations.
//!
//! The arithmetic is the same bit for bit in every kernel, whatever is computed side by side, with the integers `dot`
//! and `minimum` of `formats.rs`. For token `t` and row `r`, over blocks of 32 columns in ascending order, where f32
//! represents the integers exactly:
//!
//! ```text
//! acc = fma(dot, scale of the weights * scale of the activations, acc)
//! acc = fma(-minimum of the weights, scale of the activations * minimum, acc)    with MINIMA
//! ```
//!
//! For types with blocks of 256 columns, over these blocks in ascending order, where converting `dot` to f32 rounds:
//!
//! ```text
//! part = scale of the weights * dot
//! part = fma(-minimum of the weights, minimum, part)                             with MINIMA
//! acc  = fma(part, scale of the activations, acc)
//! ```
//!
//! Levels without fused multiply-add round twice, and so differ from the others in the last bits.

use std::ops::Range;

use super::activations::{self, Activations, Group, Layout};
#[cfg(not(target_arch = "x86_64"))]
use super::formats::Format;
use super::formats::with_format;
use super::job::ProductRows;
use super::portable;
#[cfg(target_arch = "x86_64")]
use super::{amx, avx2, vnni};
#[cfg(not(target_arch = "x86_64"))]
use crate::level::Instructions;
use crate::matmul::Output;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Amx, Avx2, Vnni};
use crate::{Level, Matrix, Pool};

/// The activations of some tokens as bytes, ready for products with quantized weights of any type that reads their
/// [`Group`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct PreparedBytes<'a> {
    level: Level,
    activations: Activations<'a>,
}

/// Returns the number of bytes of scratch memory that [`prepare`] needs for `tokens` tokens.
pub(crate) fn scratch_bytes(tokens: usize, cols: usize) -> usize {
    activations::scratch_bytes(tokens, cols)
}

/// Quantizes the activations `x` `[tokens, cols]` into `scratch` if the result is `wanted`. Otherwise `scratch` holds
/// the result already. One preparation serves any number of products at the same level, with types of the same group.
///
/// # Panics
/// Panics if `cols` is not whole groups, as the columns of weights with such groups are, or the scratch memory is
/// smaller than [`scratch_bytes`].
pub(crate) fn prepare<'a>(
    pool: &Pool,
    level: Level,
    group: Group,
    x: &[f32],
    cols: usize,
    scratch: &'a mut [u8],
    wanted: bool,
) -> PreparedBytes<'a> {
    let tokens = x.len() / cols.max(1);
    let layout = Layout::of(level, tokens);
    PreparedBytes { level, activations: activations::quantize(pool, level, group, layout, x, cols, scratch, wanted) }
}

/// Computes rows `share` of the product with `w`, for all tokens.
///
/// # Safety
/// `out` has all tokens and rows, and no other thread touches these columns of it.
///
/// # Panics
/// Panics if `w` is not quantized, reads activations of another group, has other columns than they, or fewer rows.
#[expect(clippy::undocumented_unsafe_blocks, reason = "clippy does not see the comment through the macro")]
pub(crate) unsafe fn rows(prepared: &PreparedBytes<'_>, w: Matrix<'_>, share: Range<usize>, out: Output) {
    let x = prepared.activations;
    assert!(w.cols() == x.blocks * activations::BLOCK && share.end <= w.rows());
    assert!(x.group == Group::of(w.dtype()));
    let job = ProductRows { x, w: w.bytes(), row_bytes: w.row_bytes(), first: share.start, end: share.end, out };
    with_format!(w.dtype(), F => {
        const { activations::Steps::fit::<F>() };
        // SAFETY: guaranteed by the caller; the level proves that its instructions exist.
        unsafe { run::<F>(prepared.level, &job) }
    });
}

/// Runs the kernel for the level and the layout of the activations.
///
/// # Safety
/// The conditions of [`rows`] hold.
#[cfg(target_arch = "x86_64")]
unsafe fn run<F: super::unpack::Unpack>(level: Level, job: &ProductRows<'_>) {
    // SAFETY: guaranteed by the caller; tokens prove the instructions that kernels are compiled for.
    unsafe {
        match job.x.layout {
            Layout::Tiles => amx::tiles::<F>(Amx::of(level).expect("a level that has tiles"), job),
            Layout::Spans => vnni::panels::<F>(Vnni::of(level).expect("a level that has dot products"), job),
            Layout::Rows => match (Vnni::of(level), Avx2::of(level)) {
                (Some(token), _) => vnni::rows::<F>(token, job),
                (None, Some(token)) => avx2::rows::<F>(token, job),
                (None, None) => portable::rows::<F, false>(job),
            },
        }
    }
}

/// Runs the portable kernel.
///
/// # Safety
/// The conditions of [`rows`] hold.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn run<F: Format>(level: Level, job: &ProductRows<'_>) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match level.instructions() {
            Instructions::Neon => portable::rows::<F, true>(job),
            _ => portable::rows::<F, false>(job),
        }
    }
}

//! Products of bf16 weights with activations rounded to bf16, by AVX-512's dot products of pairs.
//!
//! Sums are those of [`super::vector`]; a lane adds up pairs of `k`. Activations are rounded once per operation,
//! weights are read in place, or for many tokens a panel at a time.

use std::ops::Range;

use super::Output;
use super::ahead::Ahead;
use crate::level::Instructions;
use crate::pool::Pool;
use crate::{DType, Level, Matrix};

/// Numbers of one vector of pairs; activations are padded to whole vectors by zeros.
#[cfg(target_arch = "x86_64")]
const STEP: usize = 32;

/// Whether `level` has these instructions. (AMX is faster still.)
pub(crate) fn runs_at(level: Level) -> bool {
    level.0 >= Instructions::Avx512Bf16 && cfg!(target_arch = "x86_64")
}

/// Rounds `x` `[tokens, cols]` to bf16 in `packed`, `[tokens, cols padded to whole steps]`.
pub(crate) fn pack(pool: &Pool, level: Level, x: &[f32], cols: usize, packed: &mut [u16]) {
    assert!(runs_at(level));
    #[cfg(target_arch = "x86_64")]
    {
        let padded = cols.next_multiple_of(STEP);
        let packed = crate::share::Share::new(packed);
        pool.split(x.len() / cols, 1, cols / 4, |tokens| {
            for token in tokens {
                let from = &x[token * cols..(token + 1) * cols];
                // SAFETY: each token is in one thread's share only; the level was tested above.
                unsafe { x86::pack_row(from, packed.slice(token * padded, padded)) };
            }
        });
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (pool, x, cols, packed);
}

/// Rows `rows` of `w` for all tokens, whose activations [`pack`] has prepared.
///
/// # Safety
/// `out` has all tokens and rows, and no other thread touches these columns of it.
pub(super) unsafe fn rows(
    level: Level,
    x: &[u16],
    tokens: usize,
    w: Matrix<'_>,
    rows: Range<usize>,
    out: Output,
    ahead: Ahead,
) {
    let cols = w.cols();
    assert!(runs_at(level) && rows.end <= w.rows() && w.row_bytes() == 2 * cols);
    #[cfg(target_arch = "x86_64")]
    {
        let padded = cols.next_multiple_of(STEP);
        assert!(x.len() >= tokens * padded);
        let operands = super::vector::Operands {
            x: x.as_ptr(),
            x_cols: padded,
            w: w.bytes().as_ptr().cast::<u16>(),
            out,
            tokens,
            cols,
            ahead,
        };
        // SAFETY: the shapes were just checked, the level tested; the output is the caller's promise.
        unsafe { x86::rows_kernel(&operands, rows.start, rows.end) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (x, tokens, out, ahead);
}

/// The same for many tokens and at most [`super::panel::ROWS`] rows, which may be coded; `work` has
/// [`super::panel::WORK_LEN`].
///
/// # Safety
/// As for [`rows`].
pub(super) unsafe fn panel_rows(
    level: Level,
    x: &[u16],
    tokens: usize,
    w: Matrix<'_>,
    rows: Range<usize>,
    out: Output,
    work: &mut [f32],
) {
    assert!(runs_at(level) && w.dtype().decoded() == DType::BF16);
    #[cfg(target_arch = "x86_64")]
    {
        let padded = w.cols().next_multiple_of(STEP);
        let mut operands = super::panel::Operands::new(level, (&x[..tokens * padded], padded), w, rows, out, work);
        // SAFETY: level and type of weights were just tested, rows of activations are padded; the output is the
        // caller's promise.
        unsafe { x86::panel_kernel(&mut operands) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (x, tokens, rows, out, work);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::STEP;
    use crate::matmul::panel;
    use crate::matmul::vector::{self, CHAIN, Operands, Unit};
    use crate::simd::{Avx512, Simd};

    /// # Safety
    /// The level's instructions exist.
    ///
    /// # Panics
    /// If `to` is shorter than the row in whole steps.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub(super) unsafe fn pack_row(from: &[f32], to: &mut [u16]) {
        assert!(to.len() >= from.len().next_multiple_of(STEP));
        for (from, to) in from.chunks(STEP).zip(to.chunks_exact_mut(STEP)) {
            // SAFETY: `to` holds a vector.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), round(from)) };
        }
    }

    /// Up to 32 numbers as bf16, zeros behind them.
    ///
    /// # Safety
    /// The level's instructions exist.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub(crate) unsafe fn round(from: &[f32]) -> __m512i {
        let lanes = |count: usize| u16::MAX.checked_shr(16 - count.min(16) as u32).unwrap_or(0);
        let (low, high) = (lanes(from.len()), lanes(from.len().saturating_sub(16)));
        // SAFETY: masked lanes are not read, and the others lie in `from`.
        unsafe {
            let low = _mm512_maskz_loadu_ps(low, from.as_ptr());
            let high = _mm512_maskz_loadu_ps(high, from.as_ptr().wrapping_add(16));
            std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low))
        }
    }

    /// # Safety
    /// As for [`vector::rows_kernel`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    pub(super) unsafe fn rows_kernel(o: &Operands<u16, u16>, first: usize, end: usize) {
        // SAFETY: the caller's promise.
        unsafe { vector::rows_kernel::<Pairs>(o, first, end) };
    }

    /// # Safety
    /// As for [`panel::rows_kernel`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    pub(super) unsafe fn panel_kernel(o: &mut panel::Operands<'_, u16>) {
        // SAFETY: the caller's promise.
        unsafe { panel::rows_kernel::<Pairs>(o) };
    }

    /// Pairs of bf16, multiplied and added to one lane.
    struct Pairs;

    // SAFETY: every method uses AVX-512 F, BW, DQ, VL and BF16 only. Activations are padded, so that a part is read
    // whole.
    #[rustfmt::skip]
    #[expect(unsafe_op_in_unsafe_fn, reason = "each body is the intrinsics that the trait's `# Safety` line asks for")]
    unsafe impl Unit for Pairs {
        type X = u16;
        type W = u16;
        type Vector = __m512bh;
        type Sums = __m512;
        const STEP: usize = STEP;
        // As many bytes as a chain in f32 has.
        const CHAIN: usize = 2 * CHAIN;
        const MANY_REGISTERS: bool = true;
        #[inline(always)] unsafe fn zero() -> __m512 { _mm512_setzero_ps() }
        #[inline(always)] unsafe fn load(from: *const u16) -> __m512bh { std::mem::transmute(_mm512_loadu_si512(from.cast())) }
        #[inline(always)] unsafe fn load_part(from: *const u16, _count: usize) -> __m512bh { Self::load(from) }
        #[inline(always)] unsafe fn weights(from: *const u16) -> __m512bh { std::mem::transmute(_mm512_loadu_si512(from.cast())) }
        #[inline(always)] unsafe fn weights_part(from: *const u16, count: usize) -> __m512bh {
            std::mem::transmute(_mm512_maskz_loadu_epi16(u32::MAX >> (STEP - count), from.cast()))
        }
        #[inline(always)] unsafe fn store(v: __m512bh, to: *mut u16) { _mm512_storeu_si512(to.cast(), std::mem::transmute::<__m512bh, __m512i>(v)) }
        #[inline(always)] unsafe fn multiply_add(w: __m512bh, x: __m512bh, sums: __m512) -> __m512 { _mm512_dpbf16_ps(sums, w, x) }
        #[inline(always)] unsafe fn put_sums<const R: usize>(sums: [__m512; R], to: *mut f32, added: bool) { Avx512::put_sums(sums, to, added) }
        #[inline(always)] unsafe fn prefetch(from: *const u8) { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
        #[inline(always)] unsafe fn prefetch_second(from: *const u8) { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::round;

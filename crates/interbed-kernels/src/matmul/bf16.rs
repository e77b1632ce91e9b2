//! Products of bf16 weights with activations rounded to bf16, by AVX-512's dot products of pairs.
//!
//! The order of sums is the order of [`super::vector`], where a lane adds up pairs of `k`. Activations are rounded once
//! per operation. Weights are read in place or, for many tokens, a panel at a time.

#[cfg(target_arch = "x86_64")]
mod coded;

use std::ops::Range;

use super::Output;
use super::ahead::Ahead;
use crate::level::Instructions;
use crate::pool::Pool;
use crate::{DType, Level, Matrix};

/// The number of elements of one vector of pairs. Activations are padded to whole vectors with zeros.
#[cfg(target_arch = "x86_64")]
const STEP: usize = 32;

/// Returns whether `level` has the instructions of these kernels. (AMX is faster still.)
pub(crate) fn runs_at(level: Level) -> bool {
    level.instructions() >= Instructions::Avx512Bf16 && cfg!(target_arch = "x86_64")
}

/// Returns the token that proves that `level` has the instructions.
///
/// # Panics
/// Panics if the level does not have them.
#[cfg(target_arch = "x86_64")]
fn token(level: Level) -> crate::simd::Bf16Dots {
    crate::simd::Bf16Dots::of(level).expect("a level that multiplies bf16")
}

/// Rounds `x` `[tokens, cols]` to bf16 in `packed`, `[tokens, cols padded to whole steps]`.
pub(crate) fn pack(pool: &Pool, level: Level, x: &[f32], cols: usize, packed: &mut [u16]) {
    #[cfg(target_arch = "x86_64")]
    {
        let dots = token(level);
        let padded = cols.next_multiple_of(STEP);
        let packed = crate::share::Share::new(packed);
        pool.split(x.len() / cols, 1, cols / 4, |tokens| {
            for token in tokens {
                let from = &x[token * cols..(token + 1) * cols];
                // SAFETY: each token is in one thread's share only.
                let to = unsafe { packed.slice(token * padded, padded) };
                x86::pack_row(dots, from, to);
            }
        });
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (pool, x, cols, packed);
}

/// Computes rows `rows` of `w` for all tokens, whose activations [`pack`] has prepared.
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
        let operands = super::vector::RowOperands {
            x: x.as_ptr(),
            x_cols: padded,
            w: w.bytes().as_ptr().cast::<u16>(),
            out,
            tokens,
            cols,
            ahead,
        };
        // SAFETY: the shapes were just checked; the output is guaranteed by the caller.
        unsafe { x86::rows_kernel(token(level), &operands, rows.start, rows.end) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (x, tokens, out, ahead);
}

/// Computes at most [`super::panel::ROWS`] rows for many tokens. The rows may be coded. The memory `work` has
/// [`super::panel::WORK_LEN`] elements.
///
/// # Safety
/// The conditions of [`rows`] hold.
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
        let mut operands = super::panel::PanelOperands::new(level, (&x[..tokens * padded], padded), w, rows, out, work);
        // SAFETY: the weights' type was just tested, rows of activations are padded; the output is guaranteed by the
        // caller.
        unsafe { x86::panel_kernel(token(level), &mut operands) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (x, tokens, rows, out, work);
}

/// The maximum number of tokens for which [`coded_rows`] decodes rows as it multiplies them.
pub(super) const CODED_TOKENS: usize = 4;

/// Computes rows `rows` of coded weights for up to [`CODED_TOKENS`] tokens.
///
/// # Safety
/// The conditions of [`rows`] hold.
pub(super) unsafe fn coded_rows(
    level: Level,
    x: &[u16],
    tokens: usize,
    w: Matrix<'_>,
    rows: Range<usize>,
    out: Output,
) {
    assert!(runs_at(level) && rows.end <= w.rows() && x.len() >= tokens * w.cols());
    #[cfg(target_arch = "x86_64")]
    {
        let s = token(level);
        // SAFETY: the shapes were just checked; the output is guaranteed by the caller.
        unsafe {
            match tokens {
                1 => coded::rows::<1>(s, x, w, rows, out),
                2 => coded::rows::<2>(s, x, w, rows, out),
                3 => coded::rows::<3>(s, x, w, rows, out),
                CODED_TOKENS => coded::rows::<CODED_TOKENS>(s, x, w, rows, out),
                more => unreachable!("{more} tokens at once"),
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (x, tokens, rows, out);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::STEP;
    use crate::matmul::panel;
    use crate::matmul::vector::{self, CHAIN, RowOperands, Unit};
    use crate::simd::{Bf16Dots, Simd, prefetch, prefetch_second};

    /// Rounds one row to bf16 and pads it with zeros.
    ///
    /// # Panics
    /// Panics if `to` is shorter than the row in whole steps.
    pub(super) fn pack_row(s: Bf16Dots, from: &[f32], to: &mut [u16]) {
        // SAFETY: the token proves the instructions.
        unsafe { pack_row_kernel(s, from, to) };
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    fn pack_row_kernel(s: Bf16Dots, from: &[f32], to: &mut [u16]) {
        assert!(to.len() >= from.len().next_multiple_of(STEP));
        for (from, to) in from.chunks(STEP).zip(to.as_chunks_mut::<STEP>().0) {
            s.store512(round(s, from), to);
        }
    }

    /// Rounds up to 32 elements to bf16, padded with zeros.
    #[inline(always)]
    pub(crate) fn round(s: Bf16Dots, from: &[f32]) -> __m512i {
        let lanes = |count: usize| u16::MAX.checked_shr(16 - count.min(16) as u32).unwrap_or(0);
        let (low, high) = (lanes(from.len()), lanes(from.len().saturating_sub(16)));
        // SAFETY: masked lanes are not read, and the others lie in `from`; the token proves the instructions.
        let (low, high) = unsafe {
            (_mm512_maskz_loadu_ps(low, from.as_ptr()), _mm512_maskz_loadu_ps(high, from.as_ptr().wrapping_add(16)))
        };
        bits(s._mm512_cvtne2ps_pbh(high, low))
    }

    #[inline(always)]
    fn bits(pairs: __m512bh) -> __m512i {
        // SAFETY: both types are 64 bytes without invalid values.
        unsafe { std::mem::transmute(pairs) }
    }

    #[inline(always)]
    pub(super) fn pairs(bits: __m512i) -> __m512bh {
        // SAFETY: as above.
        unsafe { std::mem::transmute(bits) }
    }

    /// Instantiates [`vector::rows_kernel`] for pairs of bf16.
    ///
    /// # Safety
    /// The conditions of [`vector::rows_kernel`] hold.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    pub(super) unsafe fn rows_kernel(s: Bf16Dots, o: &RowOperands<u16, u16>, first: usize, end: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { vector::rows_kernel(Pairs(s), o, first, end) };
    }

    /// Instantiates [`panel::rows_kernel`] for pairs of bf16.
    ///
    /// # Safety
    /// The conditions of [`panel::rows_kernel`] hold.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    pub(super) unsafe fn panel_kernel(s: Bf16Dots, o: &mut panel::PanelOperands<'_, u16>) {
        // SAFETY: guaranteed by the caller.
        unsafe { panel::rows_kernel(Pairs(s), o) };
    }

    /// Multiplies pairs of bf16 and adds the products to one lane. Activations are padded, so that a partial vector is
    /// read as a whole one.
    #[derive(Clone, Copy)]
    struct Pairs(Bf16Dots);

    impl Unit for Pairs {
        type X = u16;
        type W = u16;
        type Vector = __m512bh;
        type Sums = __m512;
        const STEP: usize = STEP;
        // A chain covers as many bytes as a chain in f32.
        const CHAIN: usize = 2 * CHAIN;
        const MANY_REGISTERS: bool = true;
        #[inline(always)]
        fn zero(self) -> __m512 {
            self.0._mm512_setzero_ps()
        }
        #[inline(always)]
        unsafe fn load(self, from: *const u16) -> __m512bh {
            // SAFETY: guaranteed by the caller; the bytes may have any alignment.
            pairs(self.0.load512(unsafe { &*from.cast::<[[u8; 2]; STEP]>() }))
        }
        #[inline(always)]
        unsafe fn load_part(self, from: *const u16, _count: usize) -> __m512bh {
            // SAFETY: guaranteed by the caller, as rows are padded.
            unsafe { self.load(from) }
        }
        #[inline(always)]
        unsafe fn weights(self, from: *const u16) -> __m512bh {
            // SAFETY: guaranteed by the caller.
            unsafe { self.load(from) }
        }
        #[inline(always)]
        unsafe fn weights_part(self, from: *const u16, count: usize) -> __m512bh {
            // SAFETY: masked lanes are not read, the others are guaranteed by the caller; the token proves the
            // instruction.
            pairs(unsafe { _mm512_maskz_loadu_epi16(u32::MAX >> (STEP - count), from.cast()) })
        }
        #[inline(always)]
        fn store(self, v: __m512bh, to: &mut [u16]) {
            let to: &mut [u16; STEP] = to.try_into().expect("as many numbers as a vector has");
            self.0.store512(bits(v), to);
        }
        #[inline(always)]
        fn multiply_add(self, w: __m512bh, x: __m512bh, sums: __m512) -> __m512 {
            self.0._mm512_dpbf16_ps(sums, w, x)
        }
        #[inline(always)]
        fn put_sums<const R: usize>(self, sums: [__m512; R], to: &mut [f32; R], added: bool) {
            (*self.0).put_sums(sums, to, added);
        }
        #[inline(always)]
        fn prefetch(self, from: *const u8) {
            prefetch(from);
        }
        #[inline(always)]
        fn prefetch_second(self, from: *const u8) {
            prefetch_second(from);
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::round;

//! Products of bf16 weights with activations rounded to bf16, by AVX-512's dot products of pairs.
//!
//! Each output is one chain of 16 lanes, each of which adds up pairs of `k` in ascending order, then one reduction of the
//! lanes. Activations are rounded once per operation, weights are read in place.

use std::ops::Range;

use super::Output;
use crate::activations::Prepared;
use crate::level::Instructions;
use crate::pool::Pool;
use crate::{Level, Matrix};

/// Numbers of one vector of pairs; activations are padded to whole vectors by zeros.
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

/// Rows `rows` of `w` for all tokens.
///
/// # Safety
/// `out` is `[tokens, w.rows()]`, and no other thread touches these columns of it.
pub(super) unsafe fn rows(level: Level, x: &Prepared<'_>, w: Matrix<'_>, rows: Range<usize>, out: Output) {
    assert!(runs_at(level) && rows.end <= w.rows() && w.row_bytes() == 2 * x.cols);
    #[cfg(target_arch = "x86_64")]
    {
        let padded = x.cols.next_multiple_of(STEP);
        assert!(x.packed.len() >= x.tokens * padded);
        let operands = x86::Operands {
            x: x.packed.as_ptr(),
            w: w.bytes().as_ptr().cast(),
            out,
            tokens: x.tokens,
            rows: w.rows(),
            cols: x.cols,
            padded,
        };
        // SAFETY: the shapes were just checked, the level tested; the output is the caller's promise.
        unsafe { x86::rows_kernel(operands, rows.start, rows.end) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = out;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Output, STEP};
    use crate::cache;
    use crate::simd::{Avx512, Simd};

    /// Weight rows of a tile: as many load streams as a core follows with ease.
    const TILE_ROWS: usize = 4;

    /// Token columns of a tile: 4 x 6 sums, 4 weights and 1 activation fill 29 of 32 registers.
    const TILE_TOKENS: usize = 6;

    #[derive(Clone, Copy)]
    pub(super) struct Operands {
        /// `[tokens, padded]`
        pub x: *const u16,
        /// `[rows, cols]`, at any address
        pub w: *const u16,
        pub out: Output,
        pub tokens: usize,
        pub rows: usize,
        pub cols: usize,
        pub padded: usize,
    }

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
    pub(in crate::matmul) unsafe fn round(from: &[f32]) -> __m512i {
        let lanes = |count: usize| u16::MAX.checked_shr(16 - count.min(16) as u32).unwrap_or(0);
        let (low, high) = (lanes(from.len()), lanes(from.len().saturating_sub(16)));
        // SAFETY: masked lanes are not read, and the others lie in `from`.
        unsafe {
            let low = _mm512_maskz_loadu_ps(low, from.as_ptr());
            let high = _mm512_maskz_loadu_ps(high, from.as_ptr().wrapping_add(16));
            std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low))
        }
    }

    /// Rows `first .. end` for all tokens.
    ///
    /// # Safety
    /// The operands describe readable and writable memory of the shapes that they name, no other thread touches these
    /// columns of `out`, and the level's instructions exist.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    pub(super) unsafe fn rows_kernel(o: Operands, first: usize, end: usize) {
        // Half of the second-level cache for activations, while all rows pass by.
        let block = (cache::sizes().second / 2 / (o.padded * 2)).max(TILE_TOKENS) / TILE_TOKENS * TILE_TOKENS;
        for token in (0..o.tokens).step_by(block) {
            let token_end = (token + block).min(o.tokens);
            let mut row = first;
            // SAFETY: rows and tokens stay within the ranges that the caller vouches for.
            unsafe {
                while row + TILE_ROWS <= end {
                    tokens_kernel::<TILE_ROWS>(&o, row, token, token_end);
                    row += TILE_ROWS;
                }
                while row < end {
                    tokens_kernel::<1>(&o, row, token, token_end);
                    row += 1;
                }
            }
        }
    }

    /// `R` rows from `row` on, for tokens `first .. end`.
    ///
    /// # Safety
    /// As for [`rows_kernel`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn tokens_kernel<const R: usize>(o: &Operands, row: usize, first: usize, end: usize) {
        let mut token = first;
        while token < end {
            // Equal tiles: 8 tokens are 4 and 4, for 6 and 2 would read the weights as often and compute less each time.
            let count = (end - token).div_ceil((end - token).div_ceil(TILE_TOKENS));
            // SAFETY: as the caller vouches.
            unsafe {
                match count {
                    6 => tile::<R, 6>(o, row, token),
                    5 => tile::<R, 5>(o, row, token),
                    4 => tile::<R, 4>(o, row, token),
                    3 => tile::<R, 3>(o, row, token),
                    2 => tile::<R, 2>(o, row, token),
                    _ => tile::<R, 1>(o, row, token),
                }
            }
            token += count;
        }
    }

    /// `R` rows by `T` tokens.
    ///
    /// # Safety
    /// As for [`rows_kernel`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn tile<const R: usize, const T: usize>(o: &Operands, row: usize, token: usize) {
        // SAFETY: `row + R <= rows` and `token + T <= tokens`, so each pointer below stays within its operand; loads of
        // whole vectors end at `whole <= cols`, the last one is masked, and activations are padded.
        unsafe {
            let w: [*const u16; R] = std::array::from_fn(|r| o.w.wrapping_add((row + r) * o.cols));
            let x: [*const u16; T] = std::array::from_fn(|t| o.x.wrapping_add((token + t) * o.padded));
            let mut sums = [[_mm512_setzero_ps(); T]; R];
            let whole = o.cols / STEP * STEP;
            for k in (0..whole).step_by(STEP) {
                for row in w {
                    // A row is often no longer than a page, where the hardware's own prefetch ends: ask for the next
                    // rows' part of this column.
                    _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(R * o.cols + k).cast());
                }
                let weights: [__m512i; R] = load(&w, |row| _mm512_loadu_si512(row.add(k).cast()));
                add_pairs(&mut sums, &weights, &x, k);
            }
            if whole < o.cols {
                let mask = u32::MAX >> (STEP - (o.cols - whole));
                let weights: [__m512i; R] = load(&w, |row| _mm512_maskz_loadu_epi16(mask, row.add(whole).cast()));
                add_pairs(&mut sums, &weights, &x, whole);
            }
            for r in 0..R {
                for t in 0..T {
                    *o.out.0.add((token + t) * o.rows + row + r) = Avx512::sum(sums[r][t]);
                }
            }
        }
    }

    #[inline(always)]
    fn load<const R: usize>(rows: &[*const u16; R], of: impl Fn(*const u16) -> __m512i) -> [__m512i; R] {
        std::array::from_fn(|r| of(rows[r]))
    }

    /// # Safety
    /// A vector is readable at each `x[t] + k`, and the level's instructions exist.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn add_pairs<const R: usize, const T: usize>(
        sums: &mut [[__m512; T]; R],
        weights: &[__m512i; R],
        x: &[*const u16; T],
        k: usize,
    ) {
        // SAFETY: the caller's promise; both types are 512 bits of pairs.
        unsafe {
            for t in 0..T {
                let activation = std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(x[t].add(k).cast()));
                for r in 0..R {
                    let weight = std::mem::transmute::<__m512i, __m512bh>(weights[r]);
                    sums[r][t] = _mm512_dpbf16_ps(sums[r][t], weight, activation);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::round;

//! Matrix products: `out[t][r] = sum over k of x[t][k] * w[r][k] (+ bias[r])`.
//!
//! Each output is one chain of 16 lanes over `k` in ascending order, then one reduction of the lanes. Tiles only decide
//! which chains run side by side, never the order within one: a row of the result is the same bit for bit whatever
//! else is in the batch, and however many threads share the rows.

use crate::pool::Pool;
use crate::simd::{Bf16, Element, F16, F32, LANES, Simd, dispatch, load_part};
use crate::{DType, Level, Matrix, quantized};

/// Weight rows of a tile: as many load streams as a core follows with ease.
const TILE_ROWS: usize = 4;

/// Token columns of a tile where registers are many: 4 x 6 sums, 4 weights and 1 activation fill 29 of AVX-512's 32.
const TILE_TOKENS: usize = 6;

/// Activations of one block of tokens should stay in the second-level cache while all rows pass by.
const TOKEN_BLOCK_BYTES: usize = 512 << 10;

/// Computes `out = x * w^T (+ bias)`.
///
/// - `x`: `[tokens, w.cols()]`, rows contiguous
/// - `bias`: one row of `w.rows()`
/// - `out`: `[tokens, w.rows()]`
///
/// # Panics
/// If the lengths disagree.
pub fn matmul(pool: &Pool, level: Level, x: &[f32], w: Matrix<'_>, bias: Option<Matrix<'_>>, out: &mut [f32]) {
    let (rows, cols) = (w.rows(), w.cols());
    assert!(rows > 0 && cols > 0 && x.len().is_multiple_of(cols));
    let tokens = x.len() / cols;
    assert_eq!(Some(out.len()), tokens.checked_mul(rows));
    if let Some(bias) = bias {
        assert!(bias.dtype().is_plain() && (bias.rows(), bias.cols()) == (1, rows));
    }
    let out = Output(out.as_mut_ptr());
    if !w.dtype().is_plain() {
        let mut scratch = vec![0; quantized::scratch_bytes(tokens, cols)];
        let prepared = quantized::prepare(pool, level, x, cols, &mut scratch);
        pool.split(rows, 16, cols.saturating_mul(tokens), |share| {
            // SAFETY: `out` has the shape that was checked above, and each thread its own rows.
            unsafe { quantized::rows(&prepared, w, share.clone(), out.start()) };
            if let Some(bias) = bias {
                add_bias(bias, out, tokens, rows, share);
            }
        });
        return;
    }
    pool.split(rows, TILE_ROWS, cols.saturating_mul(tokens), |share| {
        let operands = Operands { x: x.as_ptr(), w: w.bytes().as_ptr(), out, tokens, rows, cols };
        let (first, end) = (share.start, share.end);
        match w.dtype() {
            DType::F32 => dispatch!(level, rows_kernel::<_, F32>(operands: Operands, first: usize, end: usize)),
            DType::F16 => dispatch!(level, rows_kernel::<_, F16>(operands: Operands, first: usize, end: usize)),
            DType::BF16 => dispatch!(level, rows_kernel::<_, Bf16>(operands: Operands, first: usize, end: usize)),
            quantised => unreachable!("{quantised} was computed above"),
        }
        if let Some(bias) = bias {
            add_bias(bias, out, tokens, rows, share);
        }
    });
}

#[derive(Clone, Copy)]
struct Output(*mut f32);

impl Output {
    fn start(self) -> *mut f32 {
        self.0
    }
}

// SAFETY: threads write disjoint columns, those of their own share of rows.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

#[derive(Clone, Copy)]
struct Operands {
    x: *const f32,
    w: *const u8,
    out: Output,
    tokens: usize,
    rows: usize,
    cols: usize,
}

/// Rows `first .. end` for all tokens.
///
/// # Safety
/// The operands describe readable and writable memory of the shapes in [`matmul`], no other thread touches these rows
/// of `out`, and the level's instructions exist.
#[inline(always)]
unsafe fn rows_kernel<S: Simd, E: Element>(operands: Operands, first: usize, end: usize) {
    let block = (TOKEN_BLOCK_BYTES / (operands.cols * size_of::<f32>())).max(TILE_TOKENS) / TILE_TOKENS * TILE_TOKENS;
    let mut token = 0;
    while token < operands.tokens {
        let token_end = (token + block).min(operands.tokens);
        let mut row = first;
        // SAFETY: rows and tokens stay within the ranges that the caller vouches for.
        unsafe {
            while row + TILE_ROWS <= end {
                tokens_kernel::<S, E, TILE_ROWS>(&operands, row, token, token_end);
                row += TILE_ROWS;
            }
            while row < end {
                tokens_kernel::<S, E, 1>(&operands, row, token, token_end);
                row += 1;
            }
        }
        token = token_end;
    }
}

/// `R` rows from `row` on, for tokens `first .. end`.
///
/// # Safety
/// As for [`rows_kernel`].
#[inline(always)]
unsafe fn tokens_kernel<S: Simd, E: Element, const R: usize>(o: &Operands, row: usize, first: usize, end: usize) {
    let mut token = first;
    // SAFETY: as the caller vouches.
    unsafe {
        if !S::MANY_REGISTERS {
            // Two by two, so that sums stay in registers; a single token takes all rows at once.
            while token + 2 <= end {
                let mut r = 0;
                while r + 2 <= R {
                    tile::<S, E, 2, 2>(o, row + r, token);
                    r += 2;
                }
                if r < R {
                    tile::<S, E, 1, 2>(o, row + r, token);
                }
                token += 2;
            }
        }
        while token < end {
            // Equal tiles: 8 tokens are 4 and 4, for 6 and 2 would read the weights as often and compute less each time.
            let count = (end - token).div_ceil((end - token).div_ceil(TILE_TOKENS));
            match count {
                6 => tile::<S, E, R, 6>(o, row, token),
                5 => tile::<S, E, R, 5>(o, row, token),
                4 => tile::<S, E, R, 4>(o, row, token),
                3 => tile::<S, E, R, 3>(o, row, token),
                2 => tile::<S, E, R, 2>(o, row, token),
                _ => tile::<S, E, R, 1>(o, row, token),
            }
            token += count;
        }
    }
}

/// `R` rows by `T` tokens.
///
/// # Safety
/// As for [`rows_kernel`].
#[inline(always)]
unsafe fn tile<S: Simd, E: Element, const R: usize, const T: usize>(o: &Operands, row: usize, token: usize) {
    let cols = o.cols;
    // SAFETY: `row + R <= rows` and `token + T <= tokens`, so each pointer below stays within its operand; loads of
    // whole vectors end at `whole <= cols`, and the tail is loaded element by element.
    unsafe {
        let w: [*const E::Bits; R] = std::array::from_fn(|r| o.w.cast::<E::Bits>().wrapping_add((row + r) * cols));
        let x: [*const f32; T] = std::array::from_fn(|t| o.x.wrapping_add((token + t) * cols));
        let mut sums = [[S::splat(0.0); T]; R];
        let whole = cols / LANES * LANES;
        let mut k = 0;
        while k < whole {
            for row in w {
                // A row is often no longer than a page, where the hardware's own prefetch ends: ask for the next panel.
                S::prefetch(row.wrapping_add(R * cols + k).cast());
            }
            let weights: [S::V; R] = load_rows::<S, E, R>(&w, k);
            for t in 0..T {
                let activation = S::load(x[t].add(k));
                for r in 0..R {
                    sums[r][t] = S::fma(weights[r], activation, sums[r][t]);
                }
            }
            k += LANES;
        }
        if whole < cols {
            for r in 0..R {
                let weights = load_part::<S, E>(w[r].add(whole), cols - whole);
                for t in 0..T {
                    let activation = load_part::<S, F32>(x[t].add(whole), cols - whole);
                    sums[r][t] = S::fma(weights, activation, sums[r][t]);
                }
            }
        }
        for r in 0..R {
            for t in 0..T {
                *o.out.0.add((token + t) * o.rows + row + r) = S::sum(sums[r][t]);
            }
        }
    }
}

/// # Safety
/// [`LANES`] elements are readable at each `w[r] + k`.
#[inline(always)]
unsafe fn load_rows<S: Simd, E: Element, const R: usize>(w: &[*const E::Bits; R], k: usize) -> [S::V; R] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut weights = [S::splat(0.0); R];
        for r in 0..R {
            weights[r] = E::load::<S>(w[r].add(k));
        }
        weights
    }
}

fn add_bias(bias: Matrix<'_>, out: Output, tokens: usize, rows: usize, share: std::ops::Range<usize>) {
    // A piece at a time, widened on the stack: this runs in every pass and must not allocate.
    let mut piece = [0.0f32; 64];
    for first in share.clone().step_by(piece.len()) {
        let count = piece.len().min(share.end - first);
        let size = bias.dtype().block_bytes();
        let part = Matrix::new(bias.dtype(), 1, count, &bias.bytes()[first * size..(first + count) * size]);
        part.widen_row(0, &mut piece[..count]);
        for token in 0..tokens {
            for (i, value) in piece[..count].iter().enumerate() {
                // SAFETY: `first + i` is in this thread's share of rows, `token` below `tokens`.
                unsafe { *out.0.add(token * rows + first + i) += value };
            }
        }
    }
}

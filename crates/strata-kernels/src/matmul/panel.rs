//! Products of many tokens in f32: weights are widened or decoded once, for all tokens.
//!
//! The sums are those of [`super::vector`], whatever the batch. A panel of weights, as many columns as a chain has
//! ([`CHAIN`]), lies in the second-level cache while all tokens pass by, a tile of their activations at a time in the
//! first level's. Rows of panel and tile are a vector longer than a chain: at a distance of a power of two all would
//! share a few sets of the cache.

use std::ops::Range;

use super::ahead::Ahead;
use super::{CHAIN, Output};
use crate::simd::{Bf16, Element, F16, F32, LANES, Simd, dispatch, load_part};
use crate::{DType, Level, Matrix, coded};

/// Tokens from which on it pays to widen weights for them.
pub(super) const TOKENS_MIN: usize = 19;

/// Rows of a panel: with it, half of a second-level cache of 512 KiB is taken.
pub(super) const ROWS: usize = 128;

/// Weight rows and token columns of a tile: 4 x 6 sums, 4 weights and an activation fill 29 of AVX-512's 32 registers,
/// 2 x 3 sums, each in halves, 12 of AVX2's 16.
const TILE_ROWS: usize = 4;
const TILE_TOKENS: usize = 6;
const TILE_ROWS_FEW: usize = 2;
const TILE_TOKENS_FEW: usize = 3;

/// Numbers from one row of a panel, or of a tile's activations, to the next.
const STRIDE: usize = CHAIN + LANES;

/// Cache lines of a chain's activations.
const LINES: usize = CHAIN / LANES;

/// How many rows ahead weights are asked for.
const ROWS_AHEAD: usize = 4;

/// Numbers of a thread's work area: a panel, a tile's activations, and room to begin at a cache line.
pub(crate) const WORK_LEN: usize = (ROWS + TILE_TOKENS) * STRIDE + LANES;

/// Cuts `tokens` into tiles of about the same size, which is `most` at most.
fn tiles(tokens: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let count = tokens.div_ceil(most);
    (0..count).map(move |i| tokens * i / count..tokens * (i + 1) / count)
}

/// Rows `rows` of `weights` for all tokens of `x` `[tokens, weights.cols()]`; `work` has [`WORK_LEN`].
///
/// # Safety
/// `out` has all tokens and rows, and no other thread touches these columns of it.
pub(super) unsafe fn rows(
    level: Level,
    x: &[f32],
    weights: Matrix<'_>,
    rows: Range<usize>,
    out: Output,
    work: &mut [f32],
) {
    assert!(rows.end <= weights.rows() && x.len().is_multiple_of(weights.cols()) && work.len() >= WORK_LEN);
    let line = work.as_ptr().align_offset(LANES * size_of::<f32>()).min(LANES);
    let (panel, tile) = work[line..].split_at_mut(ROWS * STRIDE);
    let mut operands = Operands { level, weights, x, panel, tile, out };
    for first in rows.clone().step_by(ROWS) {
        let rows = first..(first + ROWS).min(rows.end);
        let o = &mut operands;
        type Work<'p, 'a> = &'p mut Operands<'a>;
        // SAFETY: the level's instructions exist, and each type of weights has its own elements; the rest is the caller's
        // promise.
        match weights.dtype() {
            DType::F32 => dispatch!(level, panel_kernel::<_, F32>(o: Work<'_, '_>, rows: Range<usize>)),
            DType::F16 => dispatch!(level, panel_kernel::<_, F16>(o: Work<'_, '_>, rows: Range<usize>)),
            DType::BF16 | DType::CodedBf16 { .. } => {
                dispatch!(level, panel_kernel::<_, Bf16>(o: Work<'_, '_>, rows: Range<usize>))
            }
            quantised => unreachable!("{quantised} is not multiplied in f32"),
        }
    }
}

/// A product's operands, and a thread's work area.
struct Operands<'a> {
    level: Level,
    /// `[rows, cols]`
    weights: Matrix<'a>,
    /// `[tokens, cols]`
    x: &'a [f32],
    /// Weights of some rows and columns, `[row, STRIDE]`, zeros up to whole vectors.
    panel: &'a mut [f32],
    /// Activations of some tokens, likewise.
    tile: &'a mut [f32],
    /// `[tokens, rows]`
    out: Output,
}

/// `rows`, at most [`ROWS`], for all tokens.
///
/// # Safety
/// `E` is what the weights are, or are decoded to. The output has all tokens and `rows`, no other thread touches these
/// columns of it, and the level's instructions exist.
#[inline(always)]
unsafe fn panel_kernel<S: Simd, E: Element>(o: &mut Operands<'_>, rows: Range<usize>) {
    let cols = o.weights.cols();
    let tokens = o.x.len() / cols;
    let mut progress = [coded::Progress::default(); ROWS];
    for first in (0..cols).step_by(CHAIN) {
        let columns = first..(first + CHAIN).min(cols);
        // SAFETY: as the caller vouches.
        unsafe {
            widen_rows::<S, E>(o, rows.clone(), columns.clone(), &mut progress);
            for tile in tiles(tokens, if S::MANY_REGISTERS { TILE_TOKENS } else { TILE_TOKENS_FEW }) {
                copy_tile::<S>(o, tile.clone(), columns.clone());
                let ahead = match tile.end < tokens {
                    true => &o.x[tile.end * cols + columns.start..],
                    false => &o.x[columns.end..],
                };
                let (rows, token, columns) = (rows.clone(), tile.start, columns.clone());
                // Of so many tokens, no tile has fewer.
                match (S::MANY_REGISTERS, tile.len()) {
                    (true, 6) => tile_kernel::<S, 6>(o, rows, token, columns, ahead),
                    (true, 5) => tile_kernel::<S, 5>(o, rows, token, columns, ahead),
                    (true, 4) => tile_kernel::<S, 4>(o, rows, token, columns, ahead),
                    (false, 3) => tile_kernel::<S, 3>(o, rows, token, columns, ahead),
                    (false, 2) => tile_kernel::<S, 2>(o, rows, token, columns, ahead),
                    (_, other) => unreachable!("a tile of {other} tokens"),
                }
            }
        }
    }
}

/// Fills the panel. What is coded has been decoded up to these columns, as `progress` says.
///
/// # Safety
/// `E` is what the weights are, or are decoded to, and the level's instructions exist.
#[inline(always)]
unsafe fn widen_rows<S: Simd, E: Element>(
    o: &mut Operands<'_>,
    rows: Range<usize>,
    columns: Range<usize>,
    progress: &mut [coded::Progress],
) {
    let (weights, level) = (o.weights, o.level);
    let ahead = Ahead::of(weights, ROWS_AHEAD);
    for ((row, to), progress) in rows.clone().zip(o.panel.chunks_exact_mut(STRIDE)).zip(progress) {
        let bytes = weights.row(row);
        for column in columns.clone().step_by(LANES) {
            // SAFETY: the level's instructions exist, and what is asked for need not be readable.
            unsafe { S::prefetch(ahead.at(row, column)) };
        }
        match weights.dtype() {
            DType::CodedBf16 { patches } => {
                coded::widen_columns(level, bytes, patches, weights.cols(), progress, &mut to[..columns.len()]);
            }
            // SAFETY: the columns lie in the row, and in `to` with those that fill the last vector.
            _ => unsafe { copy_columns::<S, E>(bytes.as_ptr().cast(), columns.clone(), to) },
        }
    }
}

/// Fills the tile.
///
/// # Safety
/// The level's instructions exist.
#[inline(always)]
unsafe fn copy_tile<S: Simd>(o: &mut Operands<'_>, tokens: Range<usize>, columns: Range<usize>) {
    let cols = o.weights.cols();
    for (token, to) in tokens.zip(o.tile.chunks_exact_mut(STRIDE)) {
        // SAFETY: the columns lie in the row, which is f32, and in `to` with those that fill the last vector.
        unsafe { copy_columns::<S, F32>(o.x[token * cols..][..cols].as_ptr(), columns.clone(), to) };
    }
}

/// `columns` of a row as f32, zeros behind them up to a whole vector.
///
/// # Safety
/// The row has these columns, at any address, and the level's instructions exist.
///
/// # Panics
/// If `to` is too short.
#[inline(always)]
unsafe fn copy_columns<S: Simd, E: Element>(row: *const E::Bits, columns: Range<usize>, to: &mut [f32]) {
    let (first, count) = (row.wrapping_add(columns.start), columns.len());
    let (vectors, _) = to[..count.next_multiple_of(LANES)].as_chunks_mut::<LANES>();
    for (step, to) in vectors.iter_mut().enumerate() {
        let (from, left) = (first.wrapping_add(step * LANES), count - step * LANES);
        // SAFETY: the caller's promise.
        unsafe {
            let vector = if left >= LANES { E::load::<S>(from) } else { load_part::<S, E>(from, left) };
            S::store(vector, to.as_mut_ptr());
        }
    }
}

/// All rows of the panel for the tile's `T` tokens from `token` on. Activations from `ahead` on are those of the next tile.
///
/// # Safety
/// As for [`panel_kernel`].
#[inline(always)]
unsafe fn tile_kernel<S: Simd, const T: usize>(
    o: &Operands<'_>,
    rows: Range<usize>,
    token: usize,
    columns: Range<usize>,
    ahead: &[f32],
) {
    let cols = o.weights.cols();
    let tile_rows = if S::MANY_REGISTERS { TILE_ROWS } else { TILE_ROWS_FEW };
    let mut row = 0;
    // SAFETY: as the caller vouches.
    unsafe {
        while row + tile_rows <= rows.len() {
            // A share of the lines for every few rows of weights: all have been asked for when these are through.
            let (step, steps) = (row / tile_rows, rows.len() / tile_rows);
            for line in LINES * step / steps..LINES * (step + 1) / steps {
                for t in 0..T {
                    S::prefetch(ahead.as_ptr().wrapping_add(t * cols + line * LANES).cast());
                }
            }
            match S::MANY_REGISTERS {
                true => sums_kernel::<S, TILE_ROWS, T>(o, rows.start, row, token, columns.clone()),
                false => sums_kernel::<S, TILE_ROWS_FEW, T>(o, rows.start, row, token, columns.clone()),
            }
            row += tile_rows;
        }
        while row < rows.len() {
            sums_kernel::<S, 1, T>(o, rows.start, row, token, columns.clone());
            row += 1;
        }
    }
}

/// The chains of `R` rows of the panel from `row` on, which begins at `first_row`, for `T` tokens.
///
/// # Safety
/// As for [`panel_kernel`].
#[inline(always)]
unsafe fn sums_kernel<S: Simd, const R: usize, const T: usize>(
    o: &Operands<'_>,
    first_row: usize,
    row: usize,
    token: usize,
    columns: Range<usize>,
) {
    let (weights, x) = (&o.panel[row * STRIDE..(row + R) * STRIDE], &o.tile[..T * STRIDE]);
    // SAFETY: rows of panel and tile have whole vectors of these columns; rows and tokens are those of the output.
    unsafe {
        let mut sums = [[S::splat(0.0); R]; T];
        for k in (0..columns.len()).step_by(LANES) {
            let mut lanes = [S::load(weights.as_ptr().add(k)); R];
            for r in 1..R {
                lanes[r] = S::load(weights.as_ptr().add(r * STRIDE + k));
            }
            for t in 0..T {
                let activations = S::load(x.as_ptr().add(t * STRIDE + k));
                for r in 0..R {
                    sums[t][r] = S::fma(lanes[r], activations, sums[t][r]);
                }
            }
        }
        for t in 0..T {
            S::put_sums(sums[t], o.out.at(token + t, first_row + row), columns.start > 0);
        }
    }
}

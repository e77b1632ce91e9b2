//! Products for many tokens: weights are widened or decoded once, for all tokens.
//!
//! The order of sums is the order of [`super::vector`], whatever the batch. A panel of weights, with the columns of one
//! chain ([`Unit::CHAIN`]), stays in the L2 cache while all tokens are multiplied with the panel, a tile of their
//! activations at a time in the L1 cache. Meanwhile the next panel's weights come from memory. Rows of panel and tile
//! are a cache line longer than a chain: at a distance of a power of two all rows would map to a few sets of the cache.

use std::marker::PhantomData;
use std::ops::Range;

use super::Output;
use super::vector::{CHAIN, F32Lanes, Unit};
use super::wanted::{LINE, Wanted};
use crate::simd::{Bf16, Element, F16, F32, Simd, dispatch};
use crate::{DType, Level, Matrix, coded, fp8};

/// Returns the number of tokens from which panels pay. With many registers and weights that need no decoding, tiles
/// that read weights in place stay faster for longer.
pub(super) fn tokens_min(level: Level, coded: bool) -> usize {
    if level.has_many_registers() && !coded { 81 } else { 19 }
}

/// The number of rows of a panel: 264 KiB, beside which the next panel's weights just about fit an L2 cache of 512 KiB.
pub(super) const ROWS: usize = 128;

/// The number of weight rows of a tile: 4 x 6 sums, 4 weights and an activation fill 29 of AVX-512's 32 registers.
const TILE_ROWS: usize = 4;
/// The number of token columns of a tile.
const TILE_TOKENS: usize = 6;
/// The number of weight rows of a tile with few registers: 2 x 3 sums, each in halves, fill 12 of AVX2's 16 registers.
const TILE_ROWS_FEW: usize = 2;
/// The number of token columns of a tile with few registers.
const TILE_TOKENS_FEW: usize = 3;

/// The number of bytes of a chain's elements.
const CHAIN_BYTES: usize = CHAIN * size_of::<f32>();
/// The number of bytes from one row of a panel or tile to the next.
const STRIDE_BYTES: usize = CHAIN_BYTES + LINE;

/// The number of rows ahead for which weights are prefetched while a panel is filled.
const ROWS_AHEAD: usize = 4;

/// The number of steps of a sum after which a line of each row is prefetched.
const STEPS_A_LINE: usize = 2;

/// The number of elements of a thread's work area: a panel, a tile's activations, and room to align them to a cache
/// line.
pub(crate) const WORK_LEN: usize = ((ROWS + TILE_TOKENS) * STRIDE_BYTES + LINE) / size_of::<f32>();

/// Splits `tokens` into tiles of about equal size, at most `most` each.
fn tiles(tokens: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let count = tokens.div_ceil(most);
    (0..count).map(move |i| tokens * i / count..tokens * (i + 1) / count)
}

/// Computes `rows`, at most [`ROWS`], of `weights` for all tokens of `x` `[tokens, weights.cols()]`, in f32. The memory
/// `work` has [`WORK_LEN`] elements.
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
    let mut operands = PanelOperands::new(level, (x, weights.cols()), weights, rows, out, work);
    let o = &mut operands;
    type Work<'p, 'a> = &'p mut PanelOperands<'a, f32>;
    // SAFETY: each type of weights has its own elements; rows of activations are whole, as these units read them; the
    // rest is guaranteed by the caller.
    match weights.dtype() {
        DType::F32 | DType::Fp8 => dispatch!(level, unsafe lanes_kernel::<_, F32>(o: Work<'_, '_>)),
        DType::F16 => dispatch!(level, unsafe lanes_kernel::<_, F16>(o: Work<'_, '_>)),
        DType::BF16 | DType::CodedBf16 { .. } => dispatch!(level, unsafe lanes_kernel::<_, Bf16>(o: Work<'_, '_>)),
        quantised => unreachable!("{quantised} is not multiplied in f32"),
    }
}

/// Instantiates [`rows_kernel`] for f32 lanes.
///
/// # Safety
/// The conditions of [`rows_kernel`] hold.
#[inline(always)]
unsafe fn lanes_kernel<S: Simd, E: Element>(s: S, o: &mut PanelOperands<'_, f32>) {
    // SAFETY: guaranteed by the caller.
    unsafe { rows_kernel(F32Lanes(s, PhantomData::<E>), o) }
}

/// A product's operands, and a thread's work area.
pub(super) struct PanelOperands<'a, X> {
    level: Level,
    /// The activations, `[tokens, x_cols]`.
    x: &'a [X],
    x_cols: usize,
    /// The weights, `[rows, cols]`.
    weights: Matrix<'a>,
    /// The rows that are computed.
    rows: Range<usize>,
    /// The results, `[tokens, rows]`.
    out: Output,
    /// The weights of the computed rows and of one chain's columns. The rows are [`STRIDE_BYTES`] apart and padded to
    /// whole vectors.
    panel: &'a mut [X],
    /// The activations of a tile of tokens, in the layout of `panel`.
    tile: &'a mut [X],
}

impl<'a, X: bytemuck::Pod> PanelOperands<'a, X> {
    /// Creates the operands for the product of `x`, `[tokens, x_cols]`, and `rows` of the weights. `work` is the
    /// thread's work area, with [`WORK_LEN`] elements.
    ///
    /// # Panics
    /// Panics if `x` is not whole rows, if `x_cols` is less than the number of columns of the weights, if the weights
    /// do not have all of `rows`, if there are more than [`ROWS`] rows, or if `work` is too short.
    pub fn new(
        level: Level,
        (x, x_cols): (&'a [X], usize),
        weights: Matrix<'a>,
        rows: Range<usize>,
        out: Output,
        work: &'a mut [f32],
    ) -> Self {
        assert!(x_cols >= weights.cols() && x.len().is_multiple_of(x_cols));
        assert!(rows.end <= weights.rows() && rows.len() <= ROWS && work.len() >= WORK_LEN);
        let work: &mut [X] = bytemuck::cast_slice_mut(work);
        let line = work.as_ptr().align_offset(LINE).min(LINE / size_of::<X>());
        let (panel, tile) = work[line..].split_at_mut(ROWS * STRIDE_BYTES / size_of::<X>());
        Self { level, x, x_cols, weights, rows, out, panel, tile }
    }

    fn tokens(&self) -> usize {
        self.x.len() / self.x_cols
    }
}

/// Computes the whole product, panel by panel.
///
/// # Safety
/// The unit's weight type is the type of the weights, or the type that they are decoded to, and rows of activations are
/// as long as the unit reads. The output has all tokens and rows, and no other thread touches these columns of the
/// output.
#[inline(always)]
pub(super) unsafe fn rows_kernel<U: Unit>(u: U, o: &mut PanelOperands<'_, U::X>)
where
    U::X: bytemuck::Pod + coded::Number,
{
    const {
        assert!(U::CHAIN * size_of::<U::X>() == CHAIN_BYTES);
        // Vectors, and blocks of coded numbers, end where a chain does.
        assert!(U::CHAIN.is_multiple_of(U::STEP) && U::CHAIN.is_multiple_of(coded::BLOCK));
        assert!(U::CHAIN.is_multiple_of(fp8::BLOCK));
    };
    let cols = o.weights.cols();
    let mut progress = [coded::Progress::default(); ROWS];
    for first in (0..cols).step_by(U::CHAIN) {
        let columns = first..(first + U::CHAIN).min(cols);
        let next = match columns.end < cols {
            true => Wanted::of::<U>(o.weights, o.rows.clone(), columns.end),
            // The thread's next chunk follows this one.
            false => Wanted::of::<U>(o.weights, o.rows.end..o.rows.end + ROWS, 0),
        };
        // SAFETY: guaranteed by the caller.
        unsafe {
            fill_panel::<U>(u, o, columns.clone(), &mut progress);
            panel_kernel::<U>(u, o, columns, next);
        }
    }
}

/// Returns the number of elements from one row of a panel to the next.
const fn stride<U: Unit>() -> usize {
    STRIDE_BYTES / size_of::<U::X>()
}

/// Fills the panel with the weights of `columns`. Coded rows have been decoded up to these columns, as `progress` says.
///
/// # Safety
/// The conditions of [`rows_kernel`] hold.
#[inline(always)]
unsafe fn fill_panel<U: Unit>(
    u: U,
    o: &mut PanelOperands<'_, U::X>,
    columns: Range<usize>,
    progress: &mut [coded::Progress],
) where
    U::X: coded::Number,
{
    let (weights, level) = (o.weights, o.level);
    // Most lines were prefetched during the previous panel, but not those of another matrix.
    let ahead = Wanted::of::<U>(weights, o.rows.clone(), columns.start);
    let ask = |row: usize| (0..ahead.lines_of(row)).for_each(|line| u.prefetch(ahead.at(row, line)));
    (0..ROWS_AHEAD).for_each(ask);
    for (row, (to, progress)) in o.panel.chunks_exact_mut(stride::<U>()).zip(progress).take(o.rows.len()).enumerate() {
        ask(row + ROWS_AHEAD);
        let bytes = weights.row(o.rows.start + row);
        if let DType::CodedBf16 { patches } = weights.dtype() {
            coded::decode_columns(level, bytes, patches, weights.cols(), progress, &mut to[..columns.len()]);
            continue;
        }
        if weights.dtype() == DType::Fp8 {
            // The kernel for FP8 has f32 elements.
            let to = bytemuck::cast_slice_mut(&mut to[..columns.len().next_multiple_of(U::STEP)]);
            fp8::decode_columns(level, bytes, weights.cols(), columns.clone(), to);
            continue;
        }
        let from = bytes.as_ptr().cast::<U::W>().wrapping_add(columns.start);
        for k in (0..columns.len()).step_by(U::STEP) {
            let (from, left) = (from.wrapping_add(k), columns.len() - k);
            // SAFETY: the columns lie in the row, and in `to` with those that fill the last vector.
            unsafe {
                let vector = if left >= U::STEP { u.weights(from) } else { u.weights_part(from, left) };
                u.store(vector, &mut to[k..k + U::STEP]);
            }
        }
    }
}

/// Fills the tile with the activations of `tokens`.
///
/// # Safety
/// The conditions of [`rows_kernel`] hold.
#[inline(always)]
unsafe fn fill_tile<U: Unit>(u: U, o: &mut PanelOperands<'_, U::X>, tokens: Range<usize>, columns: Range<usize>) {
    for (token, to) in tokens.zip(o.tile.chunks_exact_mut(stride::<U>())) {
        let from = o.x[token * o.x_cols..][..o.x_cols][columns.start..].as_ptr();
        for k in (0..columns.len()).step_by(U::STEP) {
            let (from, left) = (from.wrapping_add(k), columns.len() - k);
            // SAFETY: the columns lie in the row, as long as the unit reads it, and in `to` with those that fill the
            // last vector.
            unsafe {
                let vector = if left >= U::STEP { u.load(from) } else { u.load_part(from, left) };
                u.store(vector, &mut to[k..k + U::STEP]);
            }
        }
    }
}

/// Multiplies the panel with all tokens. `next` are the weights of the panel after it.
///
/// # Safety
/// The conditions of [`rows_kernel`] hold.
#[inline(always)]
unsafe fn panel_kernel<U: Unit>(u: U, o: &mut PanelOperands<'_, U::X>, columns: Range<usize>, next: Wanted)
where
    U::X: bytemuck::Pod,
{
    let most = if U::MANY_REGISTERS { TILE_TOKENS } else { TILE_TOKENS_FEW };
    let (tokens, cols) = (o.tokens(), o.weights.cols());
    for (i, tile) in tiles(tokens, most).enumerate() {
        let (token, column) = match (tile.end < tokens, columns.end < cols) {
            (true, _) => (tile.end, columns.start),
            (false, true) => (0, columns.end),
            (false, false) => (0, 0),
        };
        let next_tile = Wanted {
            first: o.x.as_ptr().wrapping_add(token * o.x_cols + column).cast(),
            row_bytes: o.x_cols * size_of::<U::X>(),
            rows: most,
            lines: CHAIN_BYTES / LINE,
        };
        let next = next.part(i, tokens.div_ceil(most));
        let (token, columns) = (tile.start, columns.clone());
        // SAFETY: guaranteed by the caller.
        unsafe {
            fill_tile::<U>(u, o, tile.clone(), columns.clone());
            // With at least `tokens_min` tokens, no tile has fewer than these.
            match (U::MANY_REGISTERS, tile.len()) {
                (true, 6) => tile_kernel::<U, 6>(u, o, token, columns, next, next_tile),
                (true, 5) => tile_kernel::<U, 5>(u, o, token, columns, next, next_tile),
                (true, 4) => tile_kernel::<U, 4>(u, o, token, columns, next, next_tile),
                (false, 3) => tile_kernel::<U, 3>(u, o, token, columns, next, next_tile),
                (false, 2) => tile_kernel::<U, 2>(u, o, token, columns, next, next_tile),
                (_, other) => unreachable!("a tile of {other} tokens"),
            }
        }
    }
}

/// Multiplies all rows of the panel with the tile's `T` tokens from `token` on. Prefetches the `next` weights and the
/// activations of the next tile.
///
/// # Safety
/// The conditions of [`rows_kernel`] hold.
#[inline(always)]
unsafe fn tile_kernel<U: Unit, const T: usize>(
    u: U,
    o: &PanelOperands<'_, U::X>,
    token: usize,
    columns: Range<usize>,
    next: Wanted,
    next_tile: Wanted,
) {
    let rows = o.rows.len();
    let tile_rows = if U::MANY_REGISTERS { TILE_ROWS } else { TILE_ROWS_FEW };
    let mut row = 0;
    // SAFETY: guaranteed by the caller.
    unsafe {
        while row + tile_rows <= rows {
            // Each few rows of weights prefetch a share of the lines, so that all are prefetched at the end.
            let (step, steps) = (row / tile_rows, rows / tile_rows);
            for line in next_tile.lines * step / steps..next_tile.lines * (step + 1) / steps {
                for t in 0..next_tile.rows {
                    u.prefetch(next_tile.at(t, line));
                }
            }
            match U::MANY_REGISTERS {
                true => sums_kernel::<U, TILE_ROWS, T>(u, o, row, token, columns.clone(), next),
                false => sums_kernel::<U, TILE_ROWS_FEW, T>(u, o, row, token, columns.clone(), next),
            }
            row += tile_rows;
        }
        while row < rows {
            sums_kernel::<U, 1, T>(u, o, row, token, columns.clone(), next);
            row += 1;
        }
    }
}

/// Computes the chains of `R` rows of the panel from `row` on for `T` tokens. Prefetches the same rows of `next`.
///
/// # Safety
/// The conditions of [`rows_kernel`] hold.
#[inline(always)]
unsafe fn sums_kernel<U: Unit, const R: usize, const T: usize>(
    u: U,
    o: &PanelOperands<'_, U::X>,
    row: usize,
    token: usize,
    columns: Range<usize>,
    next: Wanted,
) {
    let stride = stride::<U>();
    let (weights, x) = (&o.panel[row * stride..(row + R) * stride], &o.tile[..T * stride]);
    let lines = next.lines_of(row + R - 1);
    // SAFETY: rows of panel and tile have whole vectors of these columns; rows and tokens are those of the output.
    unsafe {
        let mut sums = [[u.zero(); R]; T];
        for k in (0..columns.len()).step_by(U::STEP) {
            // Prefetches a few lines at a time: a core with more requests than it can track waits for memory instead of
            // multiplying.
            let line = k / (STEPS_A_LINE * U::STEP);
            if k.is_multiple_of(STEPS_A_LINE * U::STEP) && line < lines {
                for r in 0..R {
                    u.prefetch_second(next.at(row + r, line));
                }
            }
            let mut lanes = [u.load(weights.as_ptr().add(k)); R];
            for r in 1..R {
                lanes[r] = u.load(weights.as_ptr().add(r * stride + k));
            }
            for t in 0..T {
                let activations = u.load(x.as_ptr().add(t * stride + k));
                for r in 0..R {
                    sums[t][r] = u.multiply_add(lanes[r], activations, sums[t][r]);
                }
            }
        }
        for t in 0..T {
            let to = o.out.at(token + t, o.rows.start + row).cast::<[f32; R]>();
            u.put_sums(sums[t], &mut *to, columns.start > 0);
        }
    }
}

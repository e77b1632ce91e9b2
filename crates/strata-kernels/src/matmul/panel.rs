//! Products of many tokens: weights are widened or decoded once, for all tokens.
//!
//! The sums are those of [`super::vector`], whatever the batch. A panel of weights, as many columns as a chain has
//! ([`Unit::CHAIN`]), lies in the second-level cache while all tokens pass by, a tile of their activations at a time in
//! the first level's. Meanwhile the next panel's weights come from memory. Rows of panel and tile are a cache line longer
//! than a chain: at a distance of a power of two all would share a few sets of the cache.

use std::ops::Range;

use super::vector::{F32Lanes, Unit};
use super::{CHAIN, Output};
use crate::simd::{Bf16, Element, F16, F32, Simd, dispatch};
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

/// Bytes of a cache line, of a chain's numbers, and from one row of a panel or of a tile's activations to the next.
const LINE: usize = 64;
const CHAIN_BYTES: usize = CHAIN * size_of::<f32>();
const STRIDE_BYTES: usize = CHAIN_BYTES + LINE;

/// Steps of a sum after which a line of each row is asked for.
const STEPS_A_LINE: usize = 2;

/// Numbers of a thread's work area: a panel, a tile's activations, and room to begin at a cache line.
pub(crate) const WORK_LEN: usize = ((ROWS + TILE_TOKENS) * STRIDE_BYTES + LINE) / size_of::<f32>();

/// Cuts `tokens` into tiles of about the same size, which is `most` at most.
fn tiles(tokens: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let count = tokens.div_ceil(most);
    (0..count).map(move |i| tokens * i / count..tokens * (i + 1) / count)
}

/// `rows` of the weights for all tokens, in f32.
///
/// # Safety
/// The output has all tokens and rows, and no other thread touches these columns of it.
pub(super) unsafe fn rows(mut operands: Operands<'_, f32>, rows: Range<usize>) {
    let o = &mut operands;
    let level = o.level;
    type Work<'p, 'a> = &'p mut Operands<'a, f32>;
    // SAFETY: the level's instructions exist, and each type of weights has its own elements; the rest is the caller's
    // promise.
    match o.weights.dtype() {
        DType::F32 => dispatch!(level, lanes_kernel::<_, F32>(o: Work<'_, '_>, rows: Range<usize>)),
        DType::F16 => dispatch!(level, lanes_kernel::<_, F16>(o: Work<'_, '_>, rows: Range<usize>)),
        DType::BF16 | DType::CodedBf16 { .. } => {
            dispatch!(level, lanes_kernel::<_, Bf16>(o: Work<'_, '_>, rows: Range<usize>))
        }
        quantised => unreachable!("{quantised} is not multiplied in f32"),
    }
}

/// # Safety
/// As for [`rows_kernel`].
#[inline(always)]
unsafe fn lanes_kernel<S: Simd, E: Element>(o: &mut Operands<'_, f32>, rows: Range<usize>) {
    // SAFETY: the caller's promise.
    unsafe { rows_kernel::<F32Lanes<S, E>>(o, rows) }
}

/// A product's operands, and a thread's work area.
pub(super) struct Operands<'a, X> {
    pub level: Level,
    /// `[rows, cols]`
    pub weights: Matrix<'a>,
    /// `[tokens, x_cols]`
    x: &'a [X],
    x_cols: usize,
    tokens: usize,
    /// Weights of some rows and columns, rows [`STRIDE_BYTES`] apart, zeros up to whole vectors.
    panel: &'a mut [X],
    /// Activations of some tokens, likewise.
    tile: &'a mut [X],
    /// `[tokens, rows]`
    out: Output,
}

impl<'a, X: bytemuck::Pod> Operands<'a, X> {
    /// Those of `x`, which has `x_cols` numbers a token; `work` has [`WORK_LEN`].
    ///
    /// # Panics
    /// If `x` is not whole rows as long as the weights' at least, or `work` is too short.
    pub fn new(
        level: Level,
        weights: Matrix<'a>,
        (x, x_cols): (&'a [X], usize),
        out: Output,
        work: &'a mut [f32],
    ) -> Self {
        assert!(x_cols >= weights.cols() && x.len().is_multiple_of(x_cols) && work.len() >= WORK_LEN);
        let work: &mut [X] = bytemuck::cast_slice_mut(work);
        let line = work.as_ptr().align_offset(LINE).min(LINE / size_of::<X>());
        let (panel, tile) = work[line..].split_at_mut(ROWS * STRIDE_BYTES / size_of::<X>());
        Self { level, weights, x, x_cols, tokens: x.len() / x_cols, panel, tile, out }
    }
}

/// `rows` for all tokens.
///
/// # Safety
/// The unit's weights are what the weights are, or are decoded to. The output has all tokens and `rows`, no other thread
/// touches these columns of it, and the level's instructions exist.
#[inline(always)]
pub(super) unsafe fn rows_kernel<U: Unit>(o: &mut Operands<'_, U::X>, rows: Range<usize>)
where
    U::X: coded::Number,
{
    const { assert!(U::CHAIN * size_of::<U::X>() == CHAIN_BYTES) };
    assert!(rows.end <= o.weights.rows());
    let cols = o.weights.cols();
    for first in rows.clone().step_by(ROWS) {
        let panel = first..(first + ROWS).min(rows.end);
        let mut progress = [coded::Progress::default(); ROWS];
        for column in (0..cols).step_by(U::CHAIN) {
            let columns = column..(column + U::CHAIN).min(cols);
            let next = match columns.end < cols {
                true => Wanted::of::<U>(o.weights, panel.start, columns.end),
                // A thread's chunks follow each other.
                false => Wanted::of::<U>(o.weights, panel.end, 0),
            };
            // SAFETY: as the caller vouches.
            unsafe {
                fill_panel::<U>(o, panel.clone(), columns.clone(), &mut progress);
                panel_kernel::<U>(o, panel.clone(), columns, next);
            }
        }
    }
}

/// Numbers from one row of a panel to the next.
const fn stride<U: Unit>() -> usize {
    STRIDE_BYTES / size_of::<U::X>()
}

/// Fills the panel. What is coded has been decoded up to these columns, as `progress` says.
///
/// # Safety
/// As for [`rows_kernel`].
#[inline(always)]
unsafe fn fill_panel<U: Unit>(
    o: &mut Operands<'_, U::X>,
    rows: Range<usize>,
    columns: Range<usize>,
    progress: &mut [coded::Progress],
) where
    U::X: coded::Number,
{
    let (weights, level) = (o.weights, o.level);
    for ((row, to), progress) in rows.zip(o.panel.chunks_exact_mut(stride::<U>())).zip(progress) {
        let bytes = weights.row(row);
        if let DType::CodedBf16 { patches } = weights.dtype() {
            coded::decode_columns(level, bytes, patches, weights.cols(), progress, &mut to[..columns.len()]);
            continue;
        }
        let from = bytes.as_ptr().cast::<U::W>().wrapping_add(columns.start);
        for k in (0..columns.len()).step_by(U::STEP) {
            let (from, left) = (from.wrapping_add(k), columns.len() - k);
            // SAFETY: the columns lie in the row, and in `to` with those that fill the last vector.
            unsafe {
                let vector = if left >= U::STEP { U::weights(from) } else { U::weights_part(from, left) };
                U::store(vector, to[k..k + U::STEP].as_mut_ptr());
            }
        }
    }
}

/// Fills the tile.
///
/// # Safety
/// As for [`rows_kernel`].
#[inline(always)]
unsafe fn fill_tile<U: Unit>(o: &mut Operands<'_, U::X>, tokens: Range<usize>, columns: Range<usize>) {
    for (token, to) in tokens.zip(o.tile.chunks_exact_mut(stride::<U>())) {
        // What pads a row is read with it.
        let from = o.x[token * o.x_cols..][..o.x_cols][columns.start..].as_ptr();
        for k in (0..columns.len()).step_by(U::STEP) {
            let (from, left) = (from.wrapping_add(k), columns.len() - k);
            // SAFETY: the columns lie in the row, and in `to` with those that fill the last vector.
            unsafe {
                let vector = if left >= U::STEP { U::activations(from) } else { U::activations_part(from, left) };
                U::store(vector, to[k..k + U::STEP].as_mut_ptr());
            }
        }
    }
}

/// Bytes of several rows that are read soon, and are asked for in the meantime. They need not be readable.
#[derive(Clone, Copy)]
struct Wanted {
    first: *const u8,
    row_bytes: usize,
    /// Cache lines of each row.
    lines: usize,
}

impl Wanted {
    /// The panel that begins at `row` and `column`; none if there is no such row.
    #[inline(always)]
    fn of<U: Unit>(weights: Matrix<'_>, row: usize, column: usize) -> Self {
        let columns = column..(column + U::CHAIN).min(weights.cols());
        let bytes = match weights.dtype() {
            DType::CodedBf16 { patches } => coded::bytes_of(columns, patches),
            _ => columns.start * size_of::<U::W>()..columns.end * size_of::<U::W>(),
        };
        let row_bytes = weights.row_bytes();
        let first = weights.bytes().as_ptr().wrapping_add(row * row_bytes + bytes.start);
        // A row need not begin with a line.
        let lines = if row < weights.rows() { bytes.len() / LINE + 1 } else { 0 };
        Self { first, row_bytes, lines }
    }

    /// The rows from `row` on, and of their lines the `i`th of `count` parts.
    #[inline(always)]
    fn part(self, row: usize, i: usize, count: usize) -> Self {
        let lines = self.lines * i / count..self.lines * (i + 1) / count;
        let first = self.first.wrapping_add(row * self.row_bytes + lines.start * LINE);
        Self { first, lines: lines.len(), ..self }
    }

    /// Where `line` of `row` begins.
    #[inline(always)]
    fn at(self, row: usize, line: usize) -> *const u8 {
        self.first.wrapping_add(row * self.row_bytes + line * LINE)
    }
}

/// The panel for all tokens. `next` are the weights of the panel after it.
///
/// # Safety
/// As for [`rows_kernel`].
#[inline(always)]
unsafe fn panel_kernel<U: Unit>(o: &mut Operands<'_, U::X>, rows: Range<usize>, columns: Range<usize>, next: Wanted) {
    let most = if U::MANY_REGISTERS { TILE_TOKENS } else { TILE_TOKENS_FEW };
    let count = o.tokens.div_ceil(most);
    for (i, tile) in tiles(o.tokens, most).enumerate() {
        let (first, x_bytes) = (o.x.as_ptr().cast::<u8>(), o.x_cols * size_of::<U::X>());
        // Behind the last tile, the first one's next columns.
        let (token, column) = if i + 1 < count { (tile.end, columns.start) } else { (0, columns.end) };
        let first = first.wrapping_add(token * x_bytes + column * size_of::<U::X>());
        let wanted = (next, i, count, Wanted { first, row_bytes: x_bytes, lines: CHAIN_BYTES / LINE });
        let (rows, token, columns) = (rows.clone(), tile.start, columns.clone());
        // SAFETY: as the caller vouches.
        unsafe {
            fill_tile::<U>(o, tile.clone(), columns.clone());
            // Of so many tokens, no tile has fewer.
            match (U::MANY_REGISTERS, tile.len()) {
                (true, 6) => tile_kernel::<U, 6>(o, rows, token, columns, wanted),
                (true, 5) => tile_kernel::<U, 5>(o, rows, token, columns, wanted),
                (true, 4) => tile_kernel::<U, 4>(o, rows, token, columns, wanted),
                (false, 3) => tile_kernel::<U, 3>(o, rows, token, columns, wanted),
                (false, 2) => tile_kernel::<U, 2>(o, rows, token, columns, wanted),
                (_, other) => unreachable!("a tile of {other} tokens"),
            }
        }
    }
}

/// All rows of the panel for the tile's `T` tokens from `token` on, which is tile `i` of `count`. Meanwhile its part of
/// the `next` panel's weights is asked for, and all of the next tile's activations.
///
/// # Safety
/// As for [`rows_kernel`].
#[inline(always)]
unsafe fn tile_kernel<U: Unit, const T: usize>(
    o: &Operands<'_, U::X>,
    rows: Range<usize>,
    token: usize,
    columns: Range<usize>,
    (next, i, count, activations): (Wanted, usize, usize, Wanted),
) {
    let tile_rows = if U::MANY_REGISTERS { TILE_ROWS } else { TILE_ROWS_FEW };
    let mut row = 0;
    // SAFETY: as the caller vouches.
    unsafe {
        while row + tile_rows <= rows.len() {
            // A share of the lines for every few rows of weights: all have been asked for when these are through.
            let (step, steps) = (row / tile_rows, rows.len() / tile_rows);
            for line in activations.lines * step / steps..activations.lines * (step + 1) / steps {
                for t in 0..T {
                    U::prefetch(activations.at(t, line));
                }
            }
            let next = next.part(row, i, count);
            match U::MANY_REGISTERS {
                true => sums_kernel::<U, TILE_ROWS, T>(o, rows.start, row, token, columns.clone(), next),
                false => sums_kernel::<U, TILE_ROWS_FEW, T>(o, rows.start, row, token, columns.clone(), next),
            }
            row += tile_rows;
        }
        while row < rows.len() {
            let next = next.part(row, i, count);
            sums_kernel::<U, 1, T>(o, rows.start, row, token, columns.clone(), next);
            row += 1;
        }
    }
}

/// The chains of `R` rows of the panel from `row` on, which begins at `first_row`, for `T` tokens. Meanwhile the lines of
/// as many rows of `next` are asked for.
///
/// # Safety
/// As for [`rows_kernel`].
#[inline(always)]
unsafe fn sums_kernel<U: Unit, const R: usize, const T: usize>(
    o: &Operands<'_, U::X>,
    first_row: usize,
    row: usize,
    token: usize,
    columns: Range<usize>,
    next: Wanted,
) {
    let stride = stride::<U>();
    let (weights, x) = (&o.panel[row * stride..(row + R) * stride], &o.tile[..T * stride]);
    // SAFETY: rows of panel and tile have whole vectors of these columns; rows and tokens are those of the output.
    unsafe {
        let mut sums = [[U::zero(); R]; T];
        for k in (0..columns.len()).step_by(U::STEP) {
            // A few at a time: a core that has asked for more than it can keep in mind waits for memory, and does not
            // multiply meanwhile.
            let line = k / (STEPS_A_LINE * U::STEP);
            if k % (STEPS_A_LINE * U::STEP) == 0 && line < next.lines {
                for r in 0..R {
                    U::prefetch_second(next.at(r, line));
                }
            }
            let mut lanes = [U::activations(weights.as_ptr().add(k)); R];
            for r in 1..R {
                lanes[r] = U::activations(weights.as_ptr().add(r * stride + k));
            }
            for t in 0..T {
                let activations = U::activations(x.as_ptr().add(t * stride + k));
                for r in 0..R {
                    sums[t][r] = U::multiply_add(lanes[r], activations, sums[t][r]);
                }
            }
        }
        for t in 0..T {
            U::put_sums(sums[t], o.out.at(token + t, first_row + row), columns.start > 0);
        }
    }
}

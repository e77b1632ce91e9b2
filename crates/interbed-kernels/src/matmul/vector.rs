//! Computes products by vectors, as chains of lanes over `k`, for any plain type of weights at any level.
//!
//! Each output is the sum of chains of 16 lanes over `k` in ascending order, one chain for every [`Unit::CHAIN`]
//! columns. The lanes of each chain are reduced, and the chains' sums are added up in order. Neither the tile that
//! computes an output nor the split of columns into cache blocks changes the output, because blocks are whole chains.
//!
//! For a few tokens, weights are used once, and rows are read as a few long streams. For more tokens, a tile of weights
//! stays in the L1 cache while it is multiplied with the activations of some tokens, and a panel of rows stays in the
//! L2 cache for all tokens.

use std::marker::PhantomData;
use std::ops::Range;

use super::Output;
use super::ahead::Ahead;
use crate::cache;
use crate::simd::{Bf16, Element, F16, F32, LANES, Simd, dispatch, load_part};
use crate::{DType, Level, Matrix};

/// The number of columns of one chain of sums in f32. Longer rows have several chains, whose sums are added up in
/// order.
pub(super) const CHAIN: usize = 512;

/// Weight rows of a tile; a core follows this many load streams with ease.
pub(super) const TILE_ROWS: usize = 4;

/// The number of token columns of a tile with many registers: 4 x 6 sums, 4 weights and 1 activation fill 29 of
/// AVX-512's 32 registers.
pub(super) const TILE_TOKENS: usize = 6;

/// The maximum number of rows of a panel.
const PANEL_ROWS: usize = 32;

/// Stands for a number of rows to prefetch. With this value, a tile's rows are far apart, and the next tile's rows
/// follow directly on them, so that a core sees long streams. In a tile of neighbouring rows, each stream would jump
/// four rows at the end of a row.
const STREAMS: usize = 0;

/// The maximum number of tokens for which the hardware's prefetcher alone is faster than prefetching by instruction.
/// With more tokens it sees the next loads too late.
const FOLLOWED_TOKENS: usize = 2;

/// The number of bytes by which streams are prefetched ahead.
const STREAM_AHEAD: usize = 4096;

/// The loads, products and sums of vectors of weights and activations at one level.
pub(super) trait Unit: Copy {
    /// The type of an activation in memory.
    type X: Copy;
    type W: Copy;
    /// Types of a vector of activations or weights, and of a vector of sums.
    type Vector: Copy;
    type Sums: Copy;
    /// The number of columns of a vector.
    const STEP: usize;
    /// The number of columns of a chain, in whole vectors.
    const CHAIN: usize;
    /// Whether 24 vectors fit into the registers. Otherwise only eight vectors fit.
    const MANY_REGISTERS: bool;
    fn zero(self) -> Self::Sums;
    /// Loads a vector of activations.
    ///
    /// # Safety
    /// [`Unit::STEP`] activations are readable.
    unsafe fn load(self, from: *const Self::X) -> Self::Vector;
    /// Loads `count` activations, and sets the other lanes to zero.
    ///
    /// # Safety
    /// `count` activations are readable, or a whole vector if rows of activations are padded to whole vectors.
    unsafe fn load_part(self, from: *const Self::X, count: usize) -> Self::Vector;
    /// Loads a vector of weights.
    ///
    /// # Safety
    /// [`Unit::STEP`] weights are readable, at any address.
    unsafe fn weights(self, from: *const Self::W) -> Self::Vector;
    /// Loads `count` weights, and sets the other lanes to zero.
    ///
    /// # Safety
    /// `count` weights are readable, at any address.
    unsafe fn weights_part(self, from: *const Self::W, count: usize) -> Self::Vector;
    /// Stores a vector in the format that [`Unit::load`] reads, for weights that are multiplied with many tokens.
    ///
    /// # Panics
    /// Panics if `to` does not have [`Unit::STEP`] elements.
    fn store(self, v: Self::Vector, to: &mut [Self::X]);
    fn multiply_add(self, w: Self::Vector, x: Self::Vector, sums: Self::Sums) -> Self::Sums;
    /// Writes the sum of each vector to `to`, or adds the sum to `to` if `added`.
    fn put_sums<const R: usize>(self, sums: [Self::Sums; R], to: &mut [f32; R], added: bool);
    /// Prefetches the cache line at `from`, which need not be readable.
    fn prefetch(self, from: *const u8);
    /// Prefetches the cache line at `from` into the L2 cache.
    fn prefetch_second(self, from: *const u8);
}

/// A product's operands.
#[derive(Clone, Copy)]
pub(super) struct RowOperands<X, W> {
    /// The activations, `[tokens, x_cols]`.
    pub x: *const X,
    pub x_cols: usize,
    /// The weights, `[rows, cols]`, which need no alignment.
    pub w: *const W,
    /// The results, `[tokens, rows]`.
    pub out: Output,
    pub tokens: usize,
    pub cols: usize,
    /// The weights to prefetch.
    pub ahead: Ahead,
}

/// Computes rows `rows` of `w` for all tokens of `x` `[tokens, w.cols()]`, in f32.
///
/// # Safety
/// `out` has all tokens and rows, and no other thread touches these columns of it.
pub(super) unsafe fn rows(level: Level, x: &[f32], w: Matrix<'_>, rows: Range<usize>, out: Output, ahead: Ahead) {
    let cols = w.cols();
    assert!(rows.end <= w.rows() && x.len().is_multiple_of(cols));
    let (tokens, x) = (x.len() / cols, x.as_ptr());
    let operands = RowOperands { x, x_cols: cols, w: w.bytes().as_ptr(), out, tokens, cols, ahead };
    let (first, end) = (rows.start, rows.end);
    type Plain = RowOperands<f32, u8>;
    // SAFETY: the shapes were just checked, and each type of weights has its own elements; the output is guaranteed by
    // the caller.
    match w.dtype() {
        DType::F32 => dispatch!(level, unsafe lanes_kernel::<_, F32>(operands: Plain, first: usize, end: usize)),
        DType::F16 => dispatch!(level, unsafe lanes_kernel::<_, F16>(operands: Plain, first: usize, end: usize)),
        DType::BF16 => dispatch!(level, unsafe lanes_kernel::<_, Bf16>(operands: Plain, first: usize, end: usize)),
        quantised => unreachable!("{quantised} is not multiplied in f32"),
    }
}

/// Instantiates [`rows_kernel`] for f32 lanes.
///
/// # Safety
/// The conditions of [`rows_kernel`] hold.
#[inline(always)]
unsafe fn lanes_kernel<S: Simd, E: Element>(s: S, o: RowOperands<f32, u8>, first: usize, end: usize) {
    let RowOperands { x, x_cols, w, out, tokens, cols, ahead } = o;
    let operands = RowOperands { x, x_cols, w: w.cast::<E::Bits>(), out, tokens, cols, ahead };
    // SAFETY: guaranteed by the caller.
    unsafe { rows_kernel(F32Lanes(s, PhantomData::<E>), &operands, first, end) };
}

/// The unit that widens weights to f32 lanes.
#[derive(Clone, Copy)]
pub(super) struct F32Lanes<S, E>(pub S, pub PhantomData<E>);

impl<S: Simd, E: Element> Unit for F32Lanes<S, E> {
    type X = f32;
    type W = E::Bits;
    type Vector = S::V;
    type Sums = S::V;
    const STEP: usize = LANES;
    const CHAIN: usize = CHAIN;
    const MANY_REGISTERS: bool = S::MANY_REGISTERS;
    #[inline(always)]
    fn zero(self) -> S::V {
        self.0.splat(0.0)
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { self.0.load_at(from) }
    }
    #[inline(always)]
    unsafe fn load_part(self, from: *const f32, count: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { load_part::<S, F32>(self.0, from.cast(), count) }
    }
    #[inline(always)]
    unsafe fn weights(self, from: *const E::Bits) -> S::V {
        // SAFETY: guaranteed by the caller; an element's bytes may have any alignment.
        E::load(self.0, unsafe { &*from.cast() })
    }
    #[inline(always)]
    unsafe fn weights_part(self, from: *const E::Bits, count: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { load_part::<S, E>(self.0, from, count) }
    }
    #[inline(always)]
    fn store(self, v: S::V, to: &mut [f32]) {
        self.0.store(v, to.try_into().expect("as many numbers as lanes"));
    }
    #[inline(always)]
    fn multiply_add(self, w: S::V, x: S::V, sums: S::V) -> S::V {
        self.0.fma(w, x, sums)
    }
    #[inline(always)]
    fn put_sums<const R: usize>(self, sums: [S::V; R], to: &mut [f32; R], added: bool) {
        self.0.put_sums(sums, to, added);
    }
    #[inline(always)]
    fn prefetch(self, from: *const u8) {
        self.0.prefetch(from);
    }
    #[inline(always)]
    fn prefetch_second(self, from: *const u8) {
        self.0.prefetch_second(from);
    }
}

/// Computes rows `first .. end` for all tokens.
///
/// # Safety
/// The operands describe readable and writable memory of the shapes that they name, and no other thread touches these
/// columns of `out`.
#[inline(always)]
pub(super) unsafe fn rows_kernel<U: Unit>(u: U, o: &RowOperands<U::X, U::W>, first: usize, end: usize) {
    let fitting = cache::sizes().second / 2 / (o.cols * size_of::<U::W>());
    let panel_rows = (fitting / TILE_ROWS * TILE_ROWS).clamp(TILE_ROWS, PANEL_ROWS);
    let widest = if U::MANY_REGISTERS { TILE_TOKENS } else { 2 };
    let tiles = o.tokens.div_ceil(widest);
    // Tiles of two rows would be only two streams: too few for a core alone.
    if tiles == 1 && o.ahead.is_in_place() && (U::MANY_REGISTERS || o.tokens == 1) {
        // SAFETY: guaranteed by the caller.
        return unsafe { tokens_kernel::<U, STREAMS>(u, o, first, end, 0, o.tokens) };
    }
    let o = &RowOperands { ahead: o.ahead.further(if tiles > 1 { panel_rows } else { TILE_ROWS }), ..*o };
    for panel in (first..end).step_by(panel_rows) {
        let panel_end = (panel + panel_rows).min(end);
        let mut token = 0;
        for tile in 0..tiles {
            // Tiles are equal: 8 tokens become 4 and 4, as 6 and 2 would read the weights as often and compute less
            // each time.
            let count = (o.tokens - token).div_ceil(tiles - tile);
            // Each tile of tokens prefetches a part of the next panel: if the first did it alone, it would wait for
            // memory, and memory would then idle during the others. A processor also drops requests that come too fast.
            let asked = asked_rows(U::MANY_REGISTERS, tile, tiles);
            let ahead = if asked.is_empty() { Ahead::nothing(o.x) } else { o.ahead.from(asked.start) };
            let o = &RowOperands { ahead, ..*o };
            // SAFETY: guaranteed by the caller.
            unsafe {
                match asked.len() {
                    TILE_ROWS => tokens_kernel::<U, TILE_ROWS>(u, o, panel, panel_end, token, count),
                    2 => tokens_kernel::<U, 2>(u, o, panel, panel_end, token, count),
                    _ => tokens_kernel::<U, 1>(u, o, panel, panel_end, token, count),
                }
            }
            token += count;
        }
    }
}

/// Returns whether `asked` is the number of rows to prefetch for a single tile of tokens.
const fn is_alone(asked: usize) -> bool {
    matches!(asked, TILE_ROWS | STREAMS)
}

/// Returns the rows ahead that tile `tile` of `tiles` tiles of tokens prefetches.
fn asked_rows(many_registers: bool, tile: usize, tiles: usize) -> Range<usize> {
    match (many_registers, tiles) {
        (_, 1) => 0..TILE_ROWS,
        (true, 2) => 2 * tile..2 * tile + 2,
        (true, 3) if tile == 0 => 0..2,
        (true, 3) => tile + 1..tile + 2,
        (true, _) => tile.min(TILE_ROWS)..(tile + 1).min(TILE_ROWS),
        // These tiles have two rows.
        (false, _) => tile.min(2)..(tile + 1).min(2),
    }
}

/// Computes rows `first .. end` of one panel for `count` tokens.
///
/// # Safety
/// The conditions of [`rows_kernel`] hold.
#[inline(always)]
unsafe fn tokens_kernel<U: Unit, const ASKED: usize>(
    u: U,
    o: &RowOperands<U::X, U::W>,
    first: usize,
    end: usize,
    token: usize,
    count: usize,
) {
    let many = U::MANY_REGISTERS;
    let alone = is_alone(ASKED);
    // SAFETY: guaranteed by the caller.
    unsafe {
        match count {
            6 if many => panel_kernel::<U, 6, ASKED>(u, o, first, end, token),
            5 if many => panel_kernel::<U, 5, ASKED>(u, o, first, end, token),
            4 if many => panel_kernel::<U, 4, ASKED>(u, o, first, end, token),
            3 if many => panel_kernel::<U, 3, ASKED>(u, o, first, end, token),
            2 if alone || !many => panel_kernel::<U, 2, ASKED>(u, o, first, end, token),
            1 if alone || !many => panel_kernel::<U, 1, ASKED>(u, o, first, end, token),
            _ => unreachable!("a tile of {count} tokens"),
        }
    }
}

/// Computes rows `first .. end` of one panel for `T` tokens.
///
/// # Safety
/// The conditions of [`rows_kernel`] hold.
#[inline(always)]
unsafe fn panel_kernel<U: Unit, const T: usize, const ASKED: usize>(
    u: U,
    o: &RowOperands<U::X, U::W>,
    first: usize,
    end: usize,
    token: usize,
) {
    // A block of columns of these tokens and of a tile of weights fits the L1 cache. Blocks bring nothing if the
    // weights are used for no other tokens.
    let column_bytes = T * size_of::<U::X>() + TILE_ROWS * size_of::<U::W>();
    let fitting = cache::sizes().first / 8 * 7 / column_bytes;
    let block = if is_alone(ASKED) { o.cols } else { (fitting / U::CHAIN).max(1) * U::CHAIN };
    for column in (0..o.cols).step_by(block) {
        // SAFETY: guaranteed by the caller; blocks are whole chains.
        unsafe { columns::<U, T, ASKED>(u, o, first, end, token, column..(column + block).min(o.cols)) };
    }
}

/// Computes columns `k`, from the start of a chain to the end of a chain or of the row, of rows `first .. end` for `T`
/// tokens.
///
/// # Safety
/// The conditions of [`rows_kernel`] hold.
#[inline(always)]
unsafe fn columns<U: Unit, const T: usize, const ASKED: usize>(
    u: U,
    o: &RowOperands<U::X, U::W>,
    first: usize,
    end: usize,
    token: usize,
    k: Range<usize>,
) {
    debug_assert!(k.start.is_multiple_of(U::CHAIN) && (k.end.is_multiple_of(U::CHAIN) || k.end == o.cols));
    let rows = if U::MANY_REGISTERS || T == 1 { TILE_ROWS } else { 2 };
    let tiles = (end - first) / rows;
    let (step, apart) = if ASKED == STREAMS { (1, tiles) } else { (rows, 1) };
    // SAFETY: guaranteed by the caller.
    unsafe {
        for row in (first..).step_by(step).take(tiles) {
            match rows {
                TILE_ROWS => tile::<U, TILE_ROWS, T, ASKED>(u, o, row, apart, token, k.clone()),
                // Rows are taken two by two, so that sums stay in registers.
                _ => tile::<U, 2, T, ASKED>(u, o, row, apart, token, k.clone()),
            }
        }
        for row in first + tiles * rows..end {
            tile::<U, 1, T, ASKED>(u, o, row, 1, token, k.clone());
        }
    }
}

/// Computes columns `k` of `R` rows, each `apart` rows from the one before, for `T` tokens. Prefetches `ASKED` of each
/// four rows ahead: all of them if there is one tile of tokens, or none for [`STREAMS`].
///
/// # Safety
/// The conditions of [`rows_kernel`] hold.
#[inline(always)]
unsafe fn tile<U: Unit, const R: usize, const T: usize, const ASKED: usize>(
    u: U,
    o: &RowOperands<U::X, U::W>,
    row: usize,
    apart: usize,
    token: usize,
    k: Range<usize>,
) {
    // SAFETY: `row + (R - 1) * apart < rows` and `token + T <= tokens`, so each pointer below stays within its operand;
    // loads of whole vectors end at `whole <= cols`, and the remainder is loaded as a part, or with the padding of the
    // activations. The chain before has written the sums that are added to.
    unsafe {
        let w: [*const U::W; R] = std::array::from_fn(|r| o.w.wrapping_add((row + r * apart) * o.cols));
        let x: [*const U::X; T] = std::array::from_fn(|t| o.x.wrapping_add((token + t) * o.x_cols));
        for first in k.clone().step_by(U::CHAIN) {
            let end = (first + U::CHAIN).min(k.end);
            let mut sums = [[u.zero(); R]; T];
            let whole = first + (end - first) / U::STEP * U::STEP;
            for k in (first..whole).step_by(U::STEP) {
                if ASKED == STREAMS && T > FOLLOWED_TOKENS {
                    for r in 0..R {
                        u.prefetch_second(w[r].add(k).cast::<u8>().wrapping_add(STREAM_AHEAD));
                    }
                } else {
                    // A row is often no longer than a page, where the hardware's own prefetcher stops.
                    for r in 0..if ASKED == TILE_ROWS { R } else { ASKED } {
                        u.prefetch_second(o.ahead.at(row + r, k));
                    }
                }
                let mut weights = [u.weights(w[0].add(k)); R];
                for r in 1..R {
                    weights[r] = u.weights(w[r].add(k));
                }
                for t in 0..T {
                    let activations = u.load(x[t].add(k));
                    for r in 0..R {
                        sums[t][r] = u.multiply_add(weights[r], activations, sums[t][r]);
                    }
                }
            }
            let rest = end - whole;
            if rest > 0 {
                for r in 0..R {
                    let weights = u.weights_part(w[r].add(whole), rest);
                    for t in 0..T {
                        let activations = u.load_part(x[t].add(whole), rest);
                        sums[t][r] = u.multiply_add(weights, activations, sums[t][r]);
                    }
                }
            }
            for t in 0..T {
                if ASKED != STREAMS {
                    u.put_sums(sums[t], &mut *o.out.at(token + t, row).cast::<[f32; R]>(), first > 0);
                    continue;
                }
                let mut all = [0.0; R];
                let out = |r: usize| o.out.at(token + t, row + r * apart);
                if first > 0 {
                    all = std::array::from_fn(|r| *out(r));
                }
                u.put_sums(sums[t], &mut all, first > 0);
                for r in 0..R {
                    *out(r) = all[r];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_of_tokens_ask_for_each_row_once() {
        for many_registers in [false, true] {
            for tiles in 1..15 {
                let asked: Vec<usize> = (0..tiles).flat_map(|tile| asked_rows(many_registers, tile, tiles)).collect();
                let rows = if many_registers || tiles == 1 { TILE_ROWS } else { 2 };
                assert_eq!(asked, (0..rows).collect::<Vec<_>>(), "{tiles} tiles, {many_registers}");
            }
        }
    }
}

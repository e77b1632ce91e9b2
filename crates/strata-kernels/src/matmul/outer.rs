//! Products of many tokens in f32, as outer products: lanes are rows of the weights, activations are broadcast.
//!
//! Each output has the sums that [`super::vector`] gives it: 16 chains over `k` in ascending order, one for each class of
//! columns that are the same modulo 16, then one reduction. Here a vector holds one chain of 16 rows, and all columns of a
//! class pass before those of the next, so that a tile loads 16 numbers for 28 multiply-adds. Classes come in the order in
//! which their sums are added up: whenever two sums that belong together are there they become one, and few have to wait.
//!
//! ```text
//! weights [step][32 rows], activations [step][14 tokens]  ->  sums [14 tokens][32 rows]      of one class
//! ```

use std::ops::Range;

use super::Output;
use crate::cache;
use crate::pool::Pool;
use crate::share::Share;
use crate::simd::{Bf16, Element, F16, F32, LANES, Simd, dispatch, load_part, store_part};
use crate::{DType, Level, Matrix};

/// Tokens from which on it pays to bring weights into order for them.
pub(crate) const TOKENS_MIN: usize = 24;

/// Most vectors of rows of a panel.
const PANEL_VECTORS: usize = 2;

/// Most tokens whose sums are kept at a time.
const TOKEN_BLOCK: usize = 512;

/// Sums that wait for their like: of 1, 2, 4 and 8 classes, and of the last class while it is under way.
const SLOTS: usize = 5;

/// Steps that are packed as one piece of work.
const PACK_STEPS: usize = 8;

/// Steps between two tests for the end.
const UNROLLED: usize = 4;

/// Numbers of the packed activations.
pub(crate) const fn packed_len(tokens: usize, cols: usize) -> usize {
    if tokens < TOKENS_MIN { 0 } else { tokens * cols.next_multiple_of(LANES) }
}

/// Numbers of a thread's work area: a panel's weights, the sums that wait, and room to begin at a cache line.
pub(crate) const fn work_len(tokens: usize, cols: usize) -> usize {
    let block = if tokens < TOKEN_BLOCK { tokens } else { TOKEN_BLOCK };
    let vectors = PANEL_VECTORS * (class_stride(cols.div_ceil(LANES)) * LANES + SLOTS * block) + 1;
    if tokens < TOKENS_MIN { 0 } else { vectors * LANES }
}

/// Steps from one class of a panel's weights to the next: never a power of two, at which all would share a few sets of
/// the cache.
const fn class_stride(steps: usize) -> usize {
    steps + 1
}

/// Most tokens of a tile: 14 of 2 vectors fill 31 of AVX-512's 32 registers, 6 of 1 vector 15 of AVX2's 16.
const fn tile_tokens<S: Simd>() -> usize {
    if S::MANY_REGISTERS { 14 } else { 6 }
}

/// Cuts `whole` into parts of about the same size, which is `most` at most.
fn parts(whole: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    let count = whole.len().div_ceil(most);
    (0..count).map(move |i| whole.start + whole.len() * i / count..whole.start + whole.len() * (i + 1) / count)
}

/// Where packed activations lie: `[block of tokens][class][tile of tokens][step][token of the tile]`, so that what is
/// multiplied one after the other lies together. Columns are padded to whole steps by zeros.
#[derive(Clone, Copy)]
struct Layout {
    tokens: usize,
    steps: usize,
}

impl Layout {
    fn new(tokens: usize, cols: usize) -> Self {
        Self { tokens, steps: cols.div_ceil(LANES) }
    }

    fn blocks(self) -> impl Iterator<Item = Range<usize>> {
        parts(0..self.tokens, TOKEN_BLOCK)
    }

    /// Where a step of a tile in `block` begins, in numbers.
    #[inline(always)]
    fn place(self, block: &Range<usize>, class: usize, tile: &Range<usize>, step: usize) -> usize {
        let tiles_begin = (block.start * LANES + class * block.len()) * self.steps;
        tiles_begin + (tile.start - block.start) * self.steps + step * tile.len()
    }
}

/// Brings `x` `[tokens, cols]` into the order that [`Layout`] says.
pub(crate) fn pack(pool: &Pool, level: Level, x: &[f32], cols: usize, packed: &mut [f32]) {
    let layout = Layout::new(x.len() / cols, cols);
    let packed = Share::new(&mut packed[..packed_len(layout.tokens, cols)]);
    let pieces = layout.steps.div_ceil(PACK_STEPS);
    // Moving four numbers takes about as long as a vector's multiply-adds of one.
    pool.split(pieces, 1, layout.tokens * PACK_STEPS * LANES / 4, |pieces| {
        let steps = pieces.start * PACK_STEPS..(pieces.end * PACK_STEPS).min(layout.steps);
        // SAFETY: the operands have the shapes that the layout names, and each step is in one thread's share only.
        dispatch!(level, pack_steps::<_>(layout: Layout, x: &[f32], cols: usize, steps: Range<usize>, packed: Share<'_, f32>));
    });
}

/// # Safety
/// The operands have the shapes that `layout` names, no other thread touches these `steps` of `packed`, and the level's
/// instructions exist.
#[inline(always)]
unsafe fn pack_steps<S: Simd>(layout: Layout, x: &[f32], cols: usize, steps: Range<usize>, packed: Share<'_, f32>) {
    for block in layout.blocks() {
        for tile in parts(block.clone(), tile_tokens::<S>()) {
            let row_at = |token| x[(tile.start + token) * cols..].as_ptr();
            for step in steps.clone() {
                // SAFETY: rows and columns lie in `x`, and the steps that are left of a class in the caller's share.
                unsafe {
                    let classes = columns::<S, F32>(row_at, tile.len(), step * LANES, cols);
                    for (class, tokens) in classes.into_iter().enumerate() {
                        let first = layout.place(&block, class, &tile, step);
                        let left = packed.slice(first, (steps.end - step) * tile.len());
                        match left.len() >= LANES {
                            // Lanes that are no tokens go where later steps will be.
                            true => S::store(tokens, left.as_mut_ptr()),
                            false => store_part::<S>(tokens, left.as_mut_ptr(), tile.len()),
                        }
                    }
                }
            }
        }
    }
}

/// Sixteen columns of up to 16 rows, a vector for each column; zeros where there is no row or column.
///
/// # Safety
/// `cols` elements are readable from `row_at(0 .. rows)` on, and the level's instructions exist.
#[inline(always)]
unsafe fn columns<S: Simd, E: Element>(
    row_at: impl Fn(usize) -> *const E::Bits,
    rows: usize,
    first: usize,
    cols: usize,
) -> [S::V; LANES] {
    // SAFETY: the caller's promise; of columns that are fewer, a part is loaded.
    unsafe {
        if rows == LANES && first + LANES <= cols {
            let mut vectors = [E::load::<S>(row_at(0).add(first)); LANES];
            for row in 1..LANES {
                vectors[row] = E::load::<S>(row_at(row).add(first));
            }
            return S::transpose(vectors);
        }
        let mut vectors = [S::splat(0.0); LANES];
        for row in 0..rows {
            vectors[row] = match first + LANES <= cols {
                true => E::load::<S>(row_at(row).add(first)),
                false => load_part::<S, E>(row_at(row).add(first), cols - first),
            };
        }
        S::transpose(vectors)
    }
}

/// Two times sixteen columns of 16 rows of bf16, each vector two neighbouring columns: half as much to be turned.
///
/// # Safety
/// `first + 32` elements are readable from `row_at(0 .. 16)` on, and the level's instructions exist.
#[inline(always)]
unsafe fn column_pairs<S: Simd, E: Element>(row_at: impl Fn(usize) -> *const E::Bits, first: usize) -> [S::V; LANES] {
    // SAFETY: the caller's promise; a vector is moved, never computed with.
    unsafe {
        let mut vectors = [S::load(row_at(0).add(first).cast()); LANES];
        for row in 1..LANES {
            vectors[row] = S::load(row_at(row).add(first).cast());
        }
        S::transpose(vectors)
    }
}

/// Rows `rows` of `w` for all tokens, whose activations [`pack`] has prepared; `work` has [`work_len`].
///
/// # Safety
/// `out` has all tokens and rows, and no other thread touches these columns of it.
pub(super) unsafe fn rows(
    level: Level,
    x: &[f32],
    tokens: usize,
    w: Matrix<'_>,
    rows: Range<usize>,
    out: Output,
    work: &mut [f32],
) {
    let cols = w.cols();
    assert!(rows.end <= w.rows() && x.len() >= packed_len(tokens, cols) && work.len() >= work_len(tokens, cols));
    let layout = Layout::new(tokens, cols);
    let line = work.as_ptr().align_offset(LANES * size_of::<f32>()).min(LANES);
    let (weights, sums) = work[line..].split_at_mut(PANEL_VECTORS * LANES * class_stride(layout.steps) * LANES);
    let (weights, sums) = (weights.as_mut_ptr(), sums.as_mut_ptr());
    let product = Product { layout, cols, x: x.as_ptr(), w: w.bytes().as_ptr(), weights, sums, out };
    match w.dtype() {
        DType::F32 => dispatch!(level, rows_kernel::<_, F32>(product: Product, rows: Range<usize>)),
        DType::F16 => dispatch!(level, rows_kernel::<_, F16>(product: Product, rows: Range<usize>)),
        DType::BF16 => dispatch!(level, rows_kernel::<_, Bf16>(product: Product, rows: Range<usize>)),
        quantised => unreachable!("{quantised} is not multiplied in f32"),
    }
}

/// A product's operands, and a thread's work area.
#[derive(Clone, Copy)]
struct Product {
    layout: Layout,
    cols: usize,
    /// As [`Layout`] says.
    x: *const f32,
    /// `[rows, cols]`, at any address
    w: *const u8,
    /// Of a panel, `[class, step, row]`
    weights: *mut f32,
    /// Of a panel and a block of tokens, `[slot, token, row]`
    sums: *mut f32,
    /// `[tokens, rows]`
    out: Output,
}

/// # Safety
/// The product describes memory of the shapes that it names, no other thread touches its work area or these columns of
/// its output, and the level's instructions exist.
#[inline(always)]
unsafe fn rows_kernel<S: Simd, E: Element>(product: Product, rows: Range<usize>) {
    let panel_rows = if S::MANY_REGISTERS { PANEL_VECTORS * LANES } else { LANES };
    for first in rows.clone().step_by(panel_rows) {
        let panel = first..(first + panel_rows).min(rows.end);
        // SAFETY: as the caller vouches.
        unsafe {
            match panel.len() > LANES {
                true => panel_kernel::<S, E, PANEL_VECTORS>(&product, panel),
                false => panel_kernel::<S, E, 1>(&product, panel),
            }
        }
    }
}

/// `rows`, which fill `V` vectors or less, for all tokens.
///
/// # Safety
/// As for [`rows_kernel`].
#[inline(always)]
unsafe fn panel_kernel<S: Simd, E: Element, const V: usize>(product: &Product, rows: Range<usize>) {
    let steps = product.layout.steps;
    // SAFETY: as the caller vouches; the work area has room for `V` vectors of all columns.
    unsafe {
        for vector in 0..V {
            let first = rows.start + vector * LANES;
            let row_at = |row| product.w.cast::<E::Bits>().wrapping_add((first + row) * product.cols);
            let count = (rows.end - first).min(LANES);
            let place =
                |class: usize, step| product.weights.add(((class * class_stride(steps) + step) * V + vector) * LANES);
            let mut step = 0;
            while E::IN_PAIRS && count == LANES && (step + 2) * LANES <= product.cols {
                for (pair, both) in column_pairs::<S, E>(row_at, step * LANES).into_iter().enumerate() {
                    let (class, step) = (2 * pair % LANES, step + 2 * pair / LANES);
                    S::store(S::bf16_first(both), place(class, step));
                    S::store(S::bf16_second(both), place(class + 1, step));
                }
                step += 2;
            }
            for step in step..steps {
                let classes = columns::<S, E>(row_at, count, step * LANES, product.cols);
                for (class, weights) in classes.into_iter().enumerate() {
                    S::store(weights, place(class, step));
                }
            }
        }
        // These steps of the weights, and of a tile's activations, fit the first-level cache.
        let step_bytes = (V * LANES + tile_tokens::<S>()) * size_of::<f32>();
        let block_steps = (cache::sizes().first / 4 * 3 / step_bytes).max(UNROLLED);
        for tokens in product.layout.blocks() {
            for visit in 0..LANES {
                for steps in parts(0..steps, block_steps) {
                    let block = Block { rows: rows.clone(), tokens: tokens.clone(), visit, steps };
                    for tile in parts(tokens.clone(), tile_tokens::<S>()) {
                        tile_kernel::<S, V>(product, &block, tile);
                    }
                }
            }
        }
    }
}

/// What meets within a panel.
struct Block {
    rows: Range<usize>,
    tokens: Range<usize>,
    /// How many classes came before.
    visit: usize,
    /// Of that class.
    steps: Range<usize>,
}

/// # Safety
/// As for [`rows_kernel`].
#[inline(always)]
unsafe fn tile_kernel<S: Simd, const V: usize>(product: &Product, block: &Block, tokens: Range<usize>) {
    // SAFETY: as the caller vouches. Tiles of about the same size have no fewer tokens where all are `TOKENS_MIN`.
    unsafe {
        match tokens.len() {
            14 => tile::<S, V, 14>(product, block, tokens),
            13 => tile::<S, V, 13>(product, block, tokens),
            12 => tile::<S, V, 12>(product, block, tokens),
            11 => tile::<S, V, 11>(product, block, tokens),
            10 => tile::<S, V, 10>(product, block, tokens),
            9 => tile::<S, V, 9>(product, block, tokens),
            6 => tile::<S, V, 6>(product, block, tokens),
            5 => tile::<S, V, 5>(product, block, tokens),
            other => unreachable!("a tile of {other} tokens"),
        }
    }
}

/// Some steps of a class, for `T` tokens.
///
/// # Safety
/// As for [`rows_kernel`].
#[inline(always)]
unsafe fn tile<S: Simd, const V: usize, const T: usize>(product: &Product, block: &Block, tokens: Range<usize>) {
    let Block { visit, ref steps, .. } = *block;
    // Classes come as 0, 8, 4, 12, 2, …: with a visit's bits reversed.
    let class = visit.reverse_bits() >> (usize::BITS - LANES.ilog2());
    // Sums of so many classes wait, 2^0, 2^1, … of them, that this class's become one with.
    let waiting = visit.trailing_ones() as usize;
    // SAFETY: steps, tokens and rows are within the product's shapes, and slots below `SLOTS`; what is stored behind the
    // last row stays in the work area.
    unsafe {
        let slot = |slot: usize, t: usize, v: usize| {
            let token = slot * block.tokens.len() + tokens.start - block.tokens.start + t;
            product.sums.add((token * V + v) * LANES)
        };
        let mut sums = [[S::splat(0.0); V]; T];
        if steps.start > 0 {
            for t in 0..T {
                for v in 0..V {
                    sums[t][v] = S::load(slot(waiting, t, v));
                }
            }
        }
        let first = class * class_stride(product.layout.steps) + steps.start;
        let mut weights = product.weights.add(first * V * LANES).cast_const();
        let mut x = product.x.add(product.layout.place(&block.tokens, class, &tokens, steps.start));
        for _ in 0..steps.len() / UNROLLED {
            for step in 0..UNROLLED {
                sums = multiply_add::<S, V, T>(weights.add(step * V * LANES), x.add(step * T), sums);
            }
            (weights, x) = (weights.add(UNROLLED * V * LANES), x.add(UNROLLED * T));
        }
        for step in 0..steps.len() % UNROLLED {
            sums = multiply_add::<S, V, T>(weights.add(step * V * LANES), x.add(step * T), sums);
        }
        let ends = steps.end == product.layout.steps;
        if ends {
            for before in 0..waiting {
                for t in 0..T {
                    for v in 0..V {
                        sums[t][v] = S::add(S::load(slot(before, t, v)), sums[t][v]);
                    }
                }
            }
        }
        let last = ends && visit + 1 == LANES;
        for t in 0..T {
            for v in 0..V {
                let first = block.rows.start + v * LANES;
                match last {
                    false => S::store(sums[t][v], slot(waiting, t, v)),
                    true if first + LANES <= block.rows.end => {
                        S::store(sums[t][v], product.out.at(tokens.start + t, first))
                    }
                    true => {
                        store_part::<S>(sums[t][v], product.out.at(tokens.start + t, first), block.rows.end - first)
                    }
                }
            }
        }
    }
}

/// One step.
///
/// # Safety
/// `V` vectors of weights and `T` activations are readable; the level's instructions exist.
#[inline(always)]
unsafe fn multiply_add<S: Simd, const V: usize, const T: usize>(
    weights: *const f32,
    x: *const f32,
    mut sums: [[S::V; V]; T],
) -> [[S::V; V]; T] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut lanes = [S::splat(0.0); V];
        for v in 0..V {
            lanes[v] = S::load(weights.add(v * LANES));
        }
        for t in 0..T {
            let activation = S::splat(*x.add(t));
            for v in 0..V {
                sums[t][v] = S::fma(lanes[v], activation, sums[t][v]);
            }
        }
        sums
    }
}

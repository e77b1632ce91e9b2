//! Matrix products: `out[t][r] = sum over k of x[t][k] * w[r][k] (+ bias[r])`.
//!
//! Each output is a sum whose order is fixed by the number of columns alone. Tiles, cache blocks and threads only
//! decide which sums run side by side: a row of the result is the same, bit for bit, whatever else is in the batch and
//! however many threads share the rows.

mod ahead;
pub(crate) mod bf16;
mod columns;
mod kernel;
pub(crate) mod panel;
pub(crate) mod tiles;
mod vector;
mod wanted;

use std::iter::Peekable;
use std::ops::Range;

use crate::activations::{Activations, Packed, PreparedActivations, work_len};
use crate::elementwise::{Activation, gate_piece};
use crate::pool::Pool;
use crate::share::Share;
use crate::{Level, Matrix, coded, quantized};

use ahead::Ahead;

pub use columns::Columns;
pub(crate) use columns::Output;
pub(crate) use kernel::{Form, Kernel};

/// The maximum number of groups of products in one sweep. Further groups take another sweep.
const GROUPS_MAX: usize = 16;

/// The number of rows that are never divided among threads: as many as the largest tile takes.
const ROW_GRANULE: usize = 32;

// A chunk of rows is at most a panel.
const _: () = assert!(panel::ROWS.is_multiple_of(ROW_GRANULE) && GATED_ROWS <= panel::ROWS);

/// Number of outputs that a gate is applied to at a time, while the outputs are still in the cache.
const GATED_ROWS: usize = panel::ROWS;

/// A product of the activations with a whole matrix, or with a band of its rows.
pub struct Product<'a> {
    /// The weights, `[rows, cols]`.
    pub weights: Matrix<'a>,
    /// The bias, if there is one: one row of `rows` elements of a plain type.
    pub bias: Option<Matrix<'a>>,
    /// The destination, `[tokens, rows]`.
    pub out: Columns<'a>,
}

/// Computes several products of the same activations. Consecutive products that need the activations in the same form
/// are computed together.
///
/// # Panics
/// Panics if the shapes disagree.
pub fn matmul<'p>(pool: &Pool, level: Level, x: &mut Activations<'_>, products: impl IntoIterator<Item = Product<'p>>) {
    let mut products = products.into_iter().map(|product| [product]).peekable();
    while let Some([form]) = products.peek().map(|products| forms_of(level, products)) {
        let (x, work) = x.prepare(pool, level, form);
        sweep(pool, level, &x, [form], &mut products, |thread, [product], rows| {
            // SAFETY: each chunk goes to one thread, and chunks have different rows.
            unsafe { product.rows(level, &x, rows, x.work_of(&work, thread)) };
        });
    }
}

/// Computes `gate.out = activation(x * gate) * (x * up)` for several pairs `[gate, up]`. Consecutive pairs that need
/// the activations in the same form are computed together. `up.out` serves as scratch memory.
///
/// # Panics
/// Panics if the shapes disagree.
pub fn matmul_gated<'p>(
    pool: &Pool,
    level: Level,
    activation: Activation,
    x: &mut Activations<'_>,
    pairs: impl IntoIterator<Item = [Product<'p>; 2]>,
) {
    let mut pairs = pairs.into_iter().peekable();
    while let Some(forms) = pairs.peek().map(|pair| forms_of(level, pair)) {
        if forms[0] != forms[1] {
            pairs.next().into_iter().for_each(|pair| gate_apart(pool, level, activation, x, pair));
            continue;
        }
        let (x, work) = x.prepare(pool, level, forms[0]);
        sweep(pool, level, &x, forms, &mut pairs, |thread, [gate, up], rows| {
            for first in rows.clone().step_by(GATED_ROWS) {
                let rows_here = first..(first + GATED_ROWS).min(rows.end);
                // SAFETY: each chunk goes to one thread, and chunks have different rows.
                unsafe {
                    gate.rows(level, &x, rows_here.clone(), x.work_of(&work, thread));
                    up.rows(level, &x, rows_here.clone(), x.work_of(&work, thread));
                    for token in 0..x.tokens {
                        let (gate, up) =
                            (gate.out.of(token, first, rows_here.len()), up.out.of(token, first, rows_here.len()));
                        gate_piece(level, activation, gate, up);
                    }
                }
            }
        });
    }
}

/// Computes [`matmul_gated`] for a pair of weights that need different forms of activations, one product after the
/// other.
fn gate_apart(pool: &Pool, level: Level, activation: Activation, x: &mut Activations<'_>, pair: [Product<'_>; 2]) {
    let [rows, up_rows] = pair.each_ref().map(|product| product.weights.rows());
    assert_eq!(rows, up_rows);
    let [gate, up] = pair.each_ref().map(|product| product.out.output());
    let tokens = x.tokens();
    matmul(pool, level, x, pair);
    pool.split(rows, GATED_ROWS, cost(tokens, 1), |share| {
        // SAFETY: shares of rows are disjoint.
        (0..tokens).for_each(|token| unsafe {
            let (gate, up) = (gate.of(token, share.start, share.len()), up.of(token, share.start, share.len()));
            gate_piece(level, activation, gate, up);
        });
    });
}

fn forms_of<const N: usize>(level: Level, products: &[Product<'_>; N]) -> [Form; N] {
    products.each_ref().map(|product| Form::of(level, product.weights.dtype()))
}

/// Returns the number of multiply-adds of `results` results, each a sum over `cols`.
fn cost(results: usize, cols: usize) -> usize {
    results.saturating_mul(cols)
}

/// Takes the next products that require the activations in `forms`, in groups of `N` with equal numbers of rows, and
/// calls `job(thread, group, rows)` for chunks of rows of each.
///
/// # Panics
/// Panics if the shapes disagree.
fn sweep<'p, const N: usize>(
    pool: &Pool,
    level: Level,
    x: &PreparedActivations<'_>,
    forms: [Form; N],
    groups: &mut Peekable<impl Iterator<Item = [Product<'p>; N]>>,
    job: impl Fn(usize, &[SweptProduct<'p>; N], Range<usize>) + Sync,
) {
    let mut swept = [const { None }; GROUPS_MAX];
    let (mut rows, mut groups_count) = (0, 0);
    for place in &mut swept {
        let Some(group) = groups.next_if(|group| forms_of(level, group) == forms) else { break };
        let parts = group.map(|product| SweptProduct::new(level, product, x));
        assert!(parts.iter().all(|part| part.weights.rows() == parts[0].weights.rows()));
        (rows, groups_count) = (rows + parts[0].weights.rows(), groups_count + 1);
        *place = Some((parts, Chunks::default()));
    }
    // Each thread gets work, as far as rows can be divided; for a single group, all threads get the same amount.
    let fair = rows.div_ceil(pool.threads());
    let multiple = if groups_count == 1 { pool.threads() } else { 1 };
    let mut count = 0;
    for (parts, chunks) in swept.iter_mut().flatten() {
        let most = parts.iter().fold(fair, |least, part| least.min(part.chunk_rows(x)));
        *chunks = Chunks::new(parts[0].weights.rows(), most, multiple, count);
        count = chunks.numbers.end;
    }
    pool.deal(count, cost(N * rows * x.tokens, x.cols), |thread, chunk| {
        let swept = swept.iter().flatten().find(|(_, chunks)| chunks.numbers.contains(&chunk));
        let (parts, chunks) = swept.expect("chunks are numbered through all products");
        job(thread, parts, chunks.rows_of(chunk));
    });
}

/// The rows of a product, or of several with the same rows, split into chunks of about equal size.
#[derive(Debug, Default)]
struct Chunks {
    rows: usize,
    /// The numbers of the chunks. All products of a sweep are numbered together.
    numbers: Range<usize>,
}

impl Chunks {
    /// Splits rows into chunks of about `most` rows, in whole granules. The number of chunks is a multiple of
    /// `multiple` if there are enough granules.
    fn new(rows: usize, most: usize, multiple: usize, first: usize) -> Self {
        let count = rows.div_ceil(most.max(1)).next_multiple_of(multiple.max(1));
        Self { rows, numbers: first..first + count.min(rows.div_ceil(ROW_GRANULE)) }
    }

    fn rows_of(&self, chunk: usize) -> Range<usize> {
        let granules = self.rows.div_ceil(ROW_GRANULE);
        let begin = |chunk: usize| (granules * chunk / self.numbers.len() * ROW_GRANULE).min(self.rows);
        let chunk = chunk - self.numbers.start;
        begin(chunk)..begin(chunk + 1)
    }
}

/// A product whose output is written by all threads together.
struct SweptProduct<'a> {
    kernel: Kernel,
    weights: Matrix<'a>,
    bias: Option<Matrix<'a>>,
    out: Output,
}

impl<'a> SweptProduct<'a> {
    fn new(level: Level, product: Product<'a>, x: &PreparedActivations<'_>) -> Self {
        let Product { weights, bias, out } = product;
        let rows = weights.rows();
        assert!(rows > 0 && weights.cols() == x.cols);
        assert!((out.tokens(), out.columns()) == (x.tokens, rows));
        if let Some(bias) = bias {
            assert!(bias.dtype().is_plain() && (bias.rows(), bias.cols()) == (1, rows));
        }
        let kernel = Kernel::of(level, weights.dtype(), x.tokens);
        Self { kernel, weights, bias, out: out.output() }
    }

    /// Returns the number of rows to compute at a time.
    fn chunk_rows(&self, x: &PreparedActivations<'_>) -> usize {
        self.kernel.chunk_rows(x.tokens, self.weights.row_bytes())
    }

    /// Computes `rows` of the product for all tokens.
    ///
    /// # Safety
    /// No other thread touches these columns of the output meanwhile.
    unsafe fn rows(&self, level: Level, x: &PreparedActivations<'_>, rows: Range<usize>, work: &mut [f32]) {
        let (decoded, work) = work.split_at_mut(coded::panel_len(x.cols));
        // SAFETY: the shapes were checked in `new`; the rest is guaranteed by the caller.
        unsafe {
            if self.weights.dtype().is_decoded() && !self.kernel.decodes() {
                let mut panel = coded::Panel::new(decoded, x.cols);
                let step = self.kernel.rows_decoded(self.weights.dtype(), x.tokens, x.cols);
                for first in rows.clone().step_by(step) {
                    let weights = panel.decode(level, self.weights, first..(first + step).min(rows.end));
                    let ahead = Ahead::decoded_next(self.weights, first + step);
                    x.multiply(self.kernel, level, weights, 0..weights.rows(), self.out.behind(first), ahead, work);
                }
            } else {
                let ahead = Ahead::in_place(self.weights);
                x.multiply(self.kernel, level, self.weights, rows.clone(), self.out, ahead, work);
            }
            if let Some(bias) = self.bias {
                add_bias(bias, self.out, x.tokens, rows);
            }
        }
    }
}

/// Adds the bias to the results in `share`.
///
/// # Safety
/// No other thread touches these columns of the output meanwhile.
unsafe fn add_bias(bias: Matrix<'_>, out: Output, tokens: usize, share: Range<usize>) {
    // Widens a piece at a time on the stack: this runs in every pass and must not allocate.
    let mut piece = [0.0f32; 64];
    for first in share.clone().step_by(piece.len()) {
        let count = piece.len().min(share.end - first);
        bias.columns(first..first + count).widen_row(0, &mut piece[..count]);
        for token in 0..tokens {
            for (i, value) in piece[..count].iter().enumerate() {
                // SAFETY: `first + i` is in the caller's share of rows, `token` below `tokens`.
                unsafe { *out.at(token, first + i) += value };
            }
        }
    }
}

impl PreparedActivations<'_> {
    /// Computes the products of `rows` of `weights` with all tokens. The memory `work` has the elements that the form
    /// needs, and `ahead` says what is read next.
    ///
    /// # Safety
    /// `out` has all tokens and rows, and no other thread touches these columns of it.
    #[expect(clippy::too_many_arguments, reason = "what a kernel needs")]
    unsafe fn multiply(
        &self,
        kernel: Kernel,
        level: Level,
        w: Matrix<'_>,
        rows: Range<usize>,
        out: Output,
        ahead: Ahead,
        work: &mut [f32],
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match (kernel, &self.packed) {
                (Kernel::Rows, Packed::Plain(x)) => vector::rows(level, x, w, rows, out, ahead),
                (Kernel::Panels, Packed::Plain(x)) => panel::rows(level, x, w, rows, out, work),
                (Kernel::DotRows, Packed::Bf16(x)) => bf16::rows(level, x, self.tokens, w, rows, out, ahead),
                (Kernel::CodedRows, Packed::Bf16(x)) => bf16::coded_rows(level, x, self.tokens, w, rows, out),
                (Kernel::DotPanels, Packed::Bf16(x)) => bf16::panel_rows(level, x, self.tokens, w, rows, out, work),
                (Kernel::Tiles, Packed::Tiles(x)) => tiles::rows(level, x, self.tokens, w, rows, out, work),
                (Kernel::Bytes(..), Packed::Bytes(x)) => quantized::rows(x, w, rows, out),
                (kernel, _) => unreachable!("{kernel:?} reads another form of activations"),
            }
        }
    }

    /// Returns the thread's own part of the work area.
    fn work_of<'w>(&self, work: &Share<'w, f32>, thread: usize) -> &'w mut [f32] {
        let len = work_len(self.tokens, self.cols);
        // SAFETY: each thread has its own part, and uses it for one chunk at a time.
        unsafe { work.slice(thread * len, len) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_are_all_rows_once_in_equal_parts(
            rows in 1usize..3000, most in 0usize..300, multiple in 1usize..9, first in 0usize..50,
        ) {
            let chunks = Chunks::new(rows, most, multiple, first);
            prop_assert_eq!(chunks.numbers.start, first);
            let ranges: Vec<_> = chunks.numbers.clone().map(|chunk| chunks.rows_of(chunk)).collect();
            let mut end = 0;
            for range in &ranges {
                prop_assert!(range.start == end && range.start.is_multiple_of(ROW_GRANULE) && !range.is_empty());
                prop_assert!(range.len() <= most.max(1).next_multiple_of(ROW_GRANULE));
                end = range.end;
            }
            prop_assert_eq!(end, rows);
            let granules = || ranges.iter().map(|range| range.len().div_ceil(ROW_GRANULE));
            prop_assert!(granules().max().unwrap() - granules().min().unwrap() <= 1, "{:?}", ranges);
            let wanted = rows.div_ceil(most.max(1)).next_multiple_of(multiple);
            prop_assert_eq!(ranges.len(), wanted.min(rows.div_ceil(ROW_GRANULE)));
        }
    }
}

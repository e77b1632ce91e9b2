//! Matrix products: `out[t][r] = sum over k of x[t][k] * w[r][k] (+ bias[r])`.
//!
//! Each output is a sum whose order is fixed by the number of columns alone. Tiles, cache blocks and threads only decide
//! which sums run side by side: a row of the result is the same bit for bit whatever else is in the batch, and however
//! many threads share the rows.

mod ahead;
pub(crate) mod bf16;
mod columns;
pub(crate) mod panel;
pub(crate) mod tiles;
mod vector;

use std::ops::Range;

use crate::activations::{Activations, Form, Packed, Prepared, work_len};
use crate::elementwise::{Activation, gate_piece};
use crate::pool::Pool;
use crate::share::Share;
use crate::{DType, Level, Matrix, cache, coded, quantized};

use ahead::Ahead;

pub use columns::Columns;
pub(crate) use columns::Output;

/// Columns that one chain of sums in f32 takes; the sums of longer rows' chains are added up in order.
const CHAIN: usize = 512;

/// Products of one sweep; more are computed in several.
const PRODUCTS_MAX: usize = 16;

/// Rows that are never divided among threads: what the largest tile takes at a time.
const ROW_GRANULE: usize = 32;

/// Tokens from which a product is bound by arithmetic rather than by reading weights.
const MANY_TOKENS: usize = 64;

/// Rows of a chunk of work where tokens are many, so that its outputs stay in the cache.
const CHUNK_ROWS: usize = panel::ROWS;

/// Weights of a chunk of work where tokens are few: long enough to be read at full speed.
const CHUNK_BYTES: usize = 256 << 10;

/// Outputs that a gate is applied to at a time, while they are still in the cache.
const GATED_ROWS: usize = panel::ROWS;

/// One product of a set of activations, with a whole matrix or with a band of its rows.
pub struct Product<'a> {
    /// `[rows, cols]`
    pub weights: Matrix<'a>,
    /// One row of `rows`, of a plain type.
    pub bias: Option<Matrix<'a>>,
    /// `[tokens, rows]`
    pub out: Columns<'a>,
}

/// Computes several products of the same activations, in one sweep of the threads over the rows of all.
///
/// # Panics
/// If the shapes disagree.
pub fn matmul<'p>(pool: &Pool, level: Level, x: &mut Activations<'_>, products: impl IntoIterator<Item = Product<'p>>) {
    let mut products = products.into_iter().peekable();
    while let Some(form) = products.peek().map(|product| form_of(level, product)) {
        let (x, work) = x.prepare(pool, level, form);
        let mut sweeps = [None; PRODUCTS_MAX];
        let mut chunks = 0;
        let mut rows = 0;
        for sweep in &mut sweeps {
            let Some(product) = products.next_if(|product| form_of(level, product) == form) else { break };
            let next = Sweep::new(product, &x, pool.threads(), chunks);
            (chunks, rows) = (next.end_chunk, rows + next.weights.rows());
            *sweep = Some(next);
        }
        pool.deal(chunks, cost(rows * x.tokens, x.cols), |thread, chunk| {
            let sweep = sweeps.iter().flatten().find(|sweep| chunk < sweep.end_chunk);
            let sweep = sweep.expect("chunks are numbered through all sweeps");
            // SAFETY: each chunk is dealt to one thread, and chunks have rows of their own.
            unsafe { sweep.rows(level, &x, sweep.rows_of(chunk), x.work_of(&work, thread)) };
        });
    }
}

/// Computes `gate.out = activation(x * gate) * (x * up)`; `up.out` is scratch.
///
/// # Panics
/// If the shapes disagree.
pub fn matmul_gated(
    pool: &Pool,
    level: Level,
    activation: Activation,
    x: &mut Activations<'_>,
    gate: Product<'_>,
    up: Product<'_>,
) {
    assert_eq!(gate.weights.rows(), up.weights.rows());
    let (rows, tokens) = (gate.weights.rows(), x.tokens());
    let form = form_of(level, &gate);
    if form != form_of(level, &up) {
        let outputs = [gate.out.output(), up.out.output()];
        matmul(pool, level, x, [gate, up]);
        let [gate, up] = outputs;
        return pool.split(rows, GATED_ROWS, cost(tokens, 1), |share| {
            // SAFETY: shares of rows are disjoint.
            (0..tokens).for_each(|token| unsafe {
                gate_piece(level, activation, gate.at(token, share.start), up.at(token, share.start), share.len());
            });
        });
    }
    let (x, work) = x.prepare(pool, level, form);
    let [gate, up] = [gate, up].map(|product| Sweep::new(product, &x, pool.threads(), 0));
    // Of both matrices, chunks have the rows that the larger one's bytes ask for.
    let chunk_rows = gate.chunk_rows.min(up.chunk_rows);
    pool.deal(rows.div_ceil(chunk_rows), cost(2 * rows * tokens, x.cols), |thread, chunk| {
        let end = ((chunk + 1) * chunk_rows).min(rows);
        for first in (chunk * chunk_rows..end).step_by(GATED_ROWS) {
            let rows_here = first..(first + GATED_ROWS).min(end);
            // SAFETY: each chunk is dealt to one thread, and chunks have rows of their own.
            unsafe {
                gate.rows(level, &x, rows_here.clone(), x.work_of(&work, thread));
                up.rows(level, &x, rows_here.clone(), x.work_of(&work, thread));
                for token in 0..tokens {
                    let (gate, up) = (gate.out.at(token, first), up.out.at(token, first));
                    gate_piece(level, activation, gate, up, rows_here.len());
                }
            }
        }
    });
}

fn form_of(level: Level, product: &Product<'_>) -> Form {
    Form::of(level, product.weights.dtype())
}

/// Multiply-adds of so many results, each a sum over `cols`.
fn cost(results: usize, cols: usize) -> usize {
    results.saturating_mul(cols)
}

/// One product, cut into chunks of rows.
#[derive(Clone, Copy)]
struct Sweep<'a> {
    weights: Matrix<'a>,
    bias: Option<Matrix<'a>>,
    out: Output,
    chunk_rows: usize,
    /// Its chunks are numbered `first_chunk .. end_chunk` among those of all products of a sweep.
    first_chunk: usize,
    end_chunk: usize,
}

impl<'a> Sweep<'a> {
    fn new(product: Product<'a>, x: &Prepared<'_>, threads: usize, first_chunk: usize) -> Self {
        let weights = product.weights;
        let rows = weights.rows();
        assert!(rows > 0 && weights.cols() == x.cols);
        assert!((product.out.tokens(), product.out.columns()) == (x.tokens, rows));
        if let Some(bias) = product.bias {
            assert!(bias.dtype().is_plain() && (bias.rows(), bias.cols()) == (1, rows));
        }
        let many = x.widens() || x.tokens >= MANY_TOKENS;
        let wished = if many { CHUNK_ROWS } else { CHUNK_BYTES / weights.row_bytes() };
        // Each thread gets something to do, and a small product is not cut finer than that.
        let fair = rows.div_ceil(threads);
        let chunk_rows = wished.min(fair).max(1).next_multiple_of(ROW_GRANULE);
        let end_chunk = first_chunk + rows.div_ceil(chunk_rows);
        let out = product.out.output();
        Self { weights, bias: product.bias, out, chunk_rows, first_chunk, end_chunk }
    }

    fn rows_of(&self, chunk: usize) -> Range<usize> {
        let first = (chunk - self.first_chunk) * self.chunk_rows;
        first..(first + self.chunk_rows).min(self.weights.rows())
    }

    /// Computes `rows` of the product for all tokens.
    ///
    /// # Safety
    /// No other thread touches these columns of the output meanwhile.
    unsafe fn rows(&self, level: Level, x: &Prepared<'_>, rows: Range<usize>, work: &mut [f32]) {
        let (decoded, work) = work.split_at_mut(coded::panel_len(x.cols));
        // SAFETY: the shapes were checked in `new`; the rest is the caller's promise.
        unsafe {
            if matches!(self.weights.dtype(), DType::CodedBf16 { .. }) && !x.widens() {
                let mut panel = coded::Panel::new(decoded, x.cols);
                let step = x.rows_decoded();
                for first in rows.clone().step_by(step) {
                    let weights = panel.decode(level, self.weights, first..(first + step).min(rows.end));
                    let ahead = Ahead::of(self.weights, first + step);
                    x.multiply(level, weights, 0..weights.rows(), self.out.behind(first), ahead, work);
                }
            } else {
                let ahead = Ahead::of(self.weights, vector::TILE_ROWS);
                x.multiply(level, self.weights, rows.clone(), self.out, ahead, work);
            }
            if let Some(bias) = self.bias {
                add_bias(bias, self.out, x.tokens, rows);
            }
        }
    }
}

/// # Safety
/// No other thread touches these columns of the output meanwhile.
unsafe fn add_bias(bias: Matrix<'_>, out: Output, tokens: usize, share: Range<usize>) {
    // A piece at a time, widened on the stack: this runs in every pass and must not allocate.
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

impl Prepared<'_> {
    /// Whether products widen or decode weights themselves, a panel at a time.
    fn widens(&self) -> bool {
        matches!(self.packed, Packed::Plain(_) | Packed::Bf16(_)) && self.tokens >= panel::TOKENS_MIN
    }

    /// How many rows of coded weights to decode at a time: those of few tokens, which use them once, are still in the
    /// first-level cache then.
    fn rows_decoded(&self) -> usize {
        if self.tokens > vector::TILE_TOKENS || matches!(self.packed, Packed::Tiles(_)) {
            return coded::PANEL_ROWS;
        }
        let fitting = cache::sizes().first / 2 / (self.cols * size_of::<u16>());
        (fitting / vector::TILE_ROWS * vector::TILE_ROWS).clamp(vector::TILE_ROWS, coded::PANEL_ROWS)
    }

    /// The products of `rows` of `weights` with all tokens; `work` has what the form asks for. `ahead` are the rows that
    /// are read after row 0 and those that it is multiplied with.
    ///
    /// # Safety
    /// `out` has all tokens and rows, and no other thread touches these columns of it.
    unsafe fn multiply(
        &self,
        level: Level,
        w: Matrix<'_>,
        rows: Range<usize>,
        out: Output,
        ahead: Ahead,
        work: &mut [f32],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.packed {
                Packed::Plain(numbers) if self.widens() => {
                    panel::rows(panel::Operands::new(level, w, (numbers, self.cols), out, work), rows);
                }
                Packed::Plain(numbers) => vector::rows(level, numbers, w, rows, out, ahead),
                Packed::Bf16(numbers) if self.widens() => {
                    let x = (&numbers[..self.tokens * bf16::padded(self.cols)], bf16::padded(self.cols));
                    bf16::panel_rows(panel::Operands::new(level, w, x, out, work), rows);
                }
                Packed::Bf16(numbers) => bf16::rows(level, numbers, self.tokens, w, rows, out, ahead),
                Packed::Tiles(numbers) => tiles::rows(level, numbers, self.tokens, w, rows, out, work),
                Packed::Bytes(numbers) => quantized::rows(numbers, w, rows, out),
            }
        }
    }

    /// The thread's own part of the work area.
    fn work_of<'w>(&self, work: &Share<'w, f32>, thread: usize) -> &'w mut [f32] {
        let len = work_len(self.tokens, self.cols);
        // SAFETY: each thread has its own, and uses it in one chunk at a time.
        unsafe { work.slice(thread * len, len) }
    }
}

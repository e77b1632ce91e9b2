//! Computes products whose sums have the order of a GPU's subgroups. Results that the host computes beside a GPU then
//! have the bits that the GPU would have computed (`interbed-device/shaders/product.comp`).
//!
//! Thread `l` of a subgroup of `S` threads takes the columns `8 u .. 8 u + 8` for `u = l, l + S, …` and adds their
//! products one after the other, with one rounding each or with two ([`SubgroupOrder::fused`]). The threads' sums are
//! added up as `l + (l + S / 2)`, then `S / 4`, and so on. Here the threads of a subgroup are lanes, so both operands
//! are transposed: element `i` of the eight of all lanes is adjacent.

use crate::matmul::Output;
use crate::pool::Pool;
use crate::share::Share;
use crate::simd::{Simd, dispatch};
use crate::{DType, Level, Matrix, Product};

/// The number of columns that a thread takes at a time.
const COLUMNS: usize = 8;

/// The number of rows that are dealt to a thread of the pool at a time.
const CHUNK_ROWS: usize = 16;

/// The maximum number of threads of a subgroup on any GPU.
const SUBGROUP_MAX: usize = 128;

/// The order and the rounding with which a GPU subgroup adds up the terms of a dot product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubgroupOrder {
    /// The number of threads in a subgroup, which is a power of two from 2 to 128.
    pub threads: usize,
    /// Whether a multiply-add is rounded only once (fused). GPU drivers may round once or twice.
    pub fused: bool,
}

/// The activations of some tokens, transposed for subgroups of a certain size.
pub struct SubgroupActivations {
    order: SubgroupOrder,
    cols: usize,
    tokens: usize,
    /// The activations, `[tokens, cols]`, in the order of [`turn`].
    turned: Vec<f32>,
    /// A row of weights for each thread, unchanged and transposed.
    work: Vec<f32>,
}

impl SubgroupActivations {
    /// Creates empty activations for sums in this order.
    ///
    /// # Panics
    /// Panics if `order.threads` is not a power of two from 2 to 128.
    pub fn new(order: SubgroupOrder) -> Self {
        let threads = order.threads;
        assert!(threads.is_power_of_two() && (2..=SUBGROUP_MAX).contains(&threads), "subgroups of {threads}");
        Self { order, cols: 0, tokens: 0, turned: Vec::new(), work: Vec::new() }
    }

    /// Returns whether [`multiply`](Self::multiply) supports weights of this type.
    pub fn multiplies(dtype: DType) -> bool {
        !matches!(dtype, DType::CodedBf16 { .. })
    }

    /// Replaces the activations with `x`, `[tokens, cols]`.
    ///
    /// # Panics
    /// Panics if `x` is not whole rows of `cols` elements.
    pub fn set(&mut self, x: &[f32], cols: usize) {
        assert!(cols > 0 && x.len().is_multiple_of(cols));
        (self.cols, self.tokens) = (cols, x.len() / cols);
        self.turned.resize(x.len(), 0.0);
        for (from, to) in x.chunks_exact(cols).zip(self.turned.chunks_exact_mut(cols)) {
            turn(from, to, self.order.threads);
        }
    }

    /// Multiplies the activations by the weights of each product, adds the bias, and writes the results to the
    /// product's `out`.
    ///
    /// # Panics
    /// Panics if the shapes disagree, or the type of the weights is not supported ([`multiplies`](Self::multiplies)).
    pub fn multiply<'p>(&mut self, pool: &Pool, level: Level, products: impl IntoIterator<Item = Product<'p>>) {
        let Self { order, cols, tokens, turned, work } = self;
        let (order, cols, tokens) = (*order, *cols, *tokens);
        work.resize(pool.threads() * 2 * cols, 0.0);
        for Product { weights, bias, out } in products {
            assert!(weights.cols() == cols && (out.tokens(), out.columns()) == (tokens, weights.rows()));
            assert!(Self::multiplies(weights.dtype()), "{} is not multiplied in subgroups", weights.dtype());
            let (rows, out, work) = (weights.rows(), out.output(), Share::new(work));
            let turned: &[f32] = turned;
            pool.deal(rows.div_ceil(CHUNK_ROWS), rows * cols * tokens, |thread, chunk| {
                // SAFETY: each thread has its own work area.
                let work = unsafe { work.slice(thread * 2 * cols, 2 * cols) };
                let rows = chunk * CHUNK_ROWS..((chunk + 1) * CHUNK_ROWS).min(rows);
                for row in rows {
                    let bias = bias.map_or(0.0, |bias| {
                        let mut number = [0.0];
                        bias.columns(row..row + 1).widen_row(0, &mut number);
                        number[0]
                    });
                    let job = RowJob { weights, row, bias, turned, tokens, out };
                    row_of(level, order, job, work);
                }
            });
        }
    }
}

/// A row of a product.
#[derive(Clone, Copy)]
struct RowJob<'a> {
    weights: Matrix<'a>,
    row: usize,
    bias: f32,
    /// The activations in the order of [`turn`].
    turned: &'a [f32],
    tokens: usize,
    out: Output,
}

impl RowJob<'_> {
    /// Adds up the lanes' sums and writes the row's result for `token`.
    #[inline(always)]
    fn put(&self, token: usize, sums: &mut [f32]) {
        let mut half = sums.len() / 2;
        while half > 0 {
            let (low, high) = sums.split_at_mut(half);
            for (low, high) in low.iter_mut().zip(&*high) {
                *low += *high;
            }
            half /= 2;
        }
        // SAFETY: `multiply` has checked that the output has all tokens and rows, and deals each row to one thread.
        unsafe { *self.out.at(token, self.row) = sums[0] + self.bias };
    }
}

/// Transposes a row: of each `S` groups of eight, element 0 of all groups comes first, then element 1, and so on. The
/// remainder of a row is transposed as for a smaller subgroup. A row whose length is no multiple of eight stays
/// unchanged, because its threads take one column at a time.
#[inline(always)]
fn turn(from: &[f32], to: &mut [f32], subgroup: usize) {
    if !from.len().is_multiple_of(COLUMNS) {
        return to.copy_from_slice(from);
    }
    let step = subgroup * COLUMNS;
    for (from, to) in from.chunks(step).zip(to.chunks_mut(step)) {
        let lanes = from.len() / COLUMNS;
        for (lane, unit) in from.as_chunks::<COLUMNS>().0.iter().enumerate() {
            for (i, number) in unit.iter().enumerate() {
                to[i * lanes + lane] = *number;
            }
        }
    }
}

/// The number of lanes, known at compile time.
trait Lanes: Copy {
    const COUNT: usize;
    type Sums: AsMut<[f32]>;
    fn zero() -> Self::Sums;
}

macro_rules! lanes {
    ($name:ident, $count:literal) => {
        #[derive(Clone, Copy)]
        struct $name;
        impl Lanes for $name {
            const COUNT: usize = $count;
            type Sums = [f32; $count];
            #[inline(always)]
            fn zero() -> Self::Sums {
                [0.0; $count]
            }
        }
    };
}
lanes!(Lanes8, 8);
lanes!(Lanes16, 16);
lanes!(Lanes32, 32);
lanes!(Lanes64, 64);

/// The rounding of the addition of a product to a sum: once or twice.
trait Rounding: Copy {
    fn add_product(a: f32, b: f32, sum: f32) -> f32;
}

#[derive(Clone, Copy)]
struct Fused;
#[derive(Clone, Copy)]
struct Apart;

impl Rounding for Fused {
    #[inline(always)]
    fn add_product(a: f32, b: f32, sum: f32) -> f32 {
        a.mul_add(b, sum)
    }
}

impl Rounding for Apart {
    #[inline(always)]
    fn add_product(a: f32, b: f32, sum: f32) -> f32 {
        a * b + sum
    }
}

fn row_of(level: Level, order: SubgroupOrder, job: RowJob<'_>, work: &mut [f32]) {
    macro_rules! row {
        ($lanes:ident, $rounding:ident) => {
            dispatch!(level, row_kernel::<_, $lanes, $rounding>(job: RowJob<'_>, work: &mut [f32]))
        };
    }
    match (order.threads, order.fused) {
        (8, true) => row!(Lanes8, Fused),
        (8, false) => row!(Lanes8, Apart),
        (16, true) => row!(Lanes16, Fused),
        (16, false) => row!(Lanes16, Apart),
        (32, true) => row!(Lanes32, Fused),
        (32, false) => row!(Lanes32, Apart),
        (64, true) => row!(Lanes64, Fused),
        (64, false) => row!(Lanes64, Apart),
        (other, true) => any_row::<Fused>(job, work, other),
        (other, false) => any_row::<Apart>(job, work, other),
    }
}

/// Computes one row for all tokens. The memory `work` has room for two rows of weights.
#[inline(always)]
fn row_kernel<S: Simd, L: Lanes, R: Rounding>(_: S, job: RowJob<'_>, work: &mut [f32]) {
    let cols = job.weights.cols();
    let (wide, turned) = work.split_at_mut(cols);
    job.weights.widen_row(job.row, wide);
    turn(wide, turned, L::COUNT);
    let width = if cols.is_multiple_of(COLUMNS) { COLUMNS } else { 1 };
    let whole = cols / (L::COUNT * width) * (L::COUNT * width);
    for (token, x) in job.turned.chunks_exact(cols).enumerate().take(job.tokens) {
        let mut all = L::zero();
        let sums = all.as_mut();
        for (w, x) in turned[..whole].chunks_exact(L::COUNT).zip(x[..whole].chunks_exact(L::COUNT)) {
            for lane in 0..L::COUNT {
                sums[lane] = R::add_product(w[lane], x[lane], sums[lane]);
            }
        }
        add_rest::<R>(&turned[whole..], &x[whole..], width, sums);
        job.put(token, sums);
    }
}

/// Computes one row like [`row_kernel`], for a number of lanes that is known only at run time.
fn any_row<R: Rounding>(job: RowJob<'_>, work: &mut [f32], subgroup: usize) {
    let cols = job.weights.cols();
    let (wide, turned) = work.split_at_mut(cols);
    job.weights.widen_row(job.row, wide);
    turn(wide, turned, subgroup);
    let width = if cols.is_multiple_of(COLUMNS) { COLUMNS } else { 1 };
    for (token, x) in job.turned.chunks_exact(cols).enumerate().take(job.tokens) {
        let mut sums = [0.0; SUBGROUP_MAX];
        let sums = &mut sums[..subgroup];
        for (w, x) in turned.chunks(subgroup * width).zip(x.chunks(subgroup * width)) {
            add_rest::<R>(w, x, width, sums);
        }
        job.put(token, sums);
    }
}

/// Adds the last columns of a row, which only the first lanes have.
#[inline(always)]
fn add_rest<R: Rounding>(w: &[f32], x: &[f32], width: usize, sums: &mut [f32]) {
    let lanes = w.len() / width;
    if lanes == 0 {
        return;
    }
    for (w, x) in w.chunks_exact(lanes).zip(x.chunks_exact(lanes)) {
        for (sum, (w, x)) in sums.iter_mut().zip(w.iter().zip(x)) {
            *sum = R::add_product(*w, *x, *sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::Columns;

    /// Simulates the threads of a subgroup one after the other.
    fn as_the_gpu(w: &[f32], x: &[f32], SubgroupOrder { threads: subgroup, fused }: SubgroupOrder, bias: f32) -> f32 {
        let add = |sum: f32, k: usize| if fused { w[k].mul_add(x[k], sum) } else { w[k] * x[k] + sum };
        let width = if w.len().is_multiple_of(COLUMNS) { COLUMNS } else { 1 };
        let mut sums: Vec<f32> = (0..subgroup)
            .map(|lane| {
                let units = (lane..w.len() / width).step_by(subgroup);
                units.flat_map(|unit| unit * width..(unit + 1) * width).fold(0.0, add)
            })
            .collect();
        while sums.len() > 1 {
            let high = sums.split_off(sums.len() / 2);
            sums.iter_mut().zip(high).for_each(|(low, high)| *low += high);
        }
        sums[0] + bias
    }

    #[test]
    fn sums_have_the_order_of_subgroups_at_every_level() {
        let pool = Pool::new(NonZeroUsize::new(2).unwrap());
        let mut state = 1u64;
        let mut number = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 20) as f32 - 8.0
        };
        let orders = [4, 8, 16, 32, 64, 128].map(|threads| [true, false].map(|fused| SubgroupOrder { threads, fused }));
        for order in orders.into_iter().flatten() {
            for (cols, rows, tokens) in [(8, 1, 1), (264, 5, 3), (1024, 33, 2), (1000, 20, 1), (77, 3, 4), (4096, 2, 1)]
            {
                let w: Vec<f32> = (0..rows * cols).map(|_| number()).collect();
                let x: Vec<f32> = (0..tokens * cols).map(|_| number()).collect();
                let bias: Vec<f32> = (0..rows).map(|_| number()).collect();
                let weights = Matrix::new(DType::F32, rows, cols, bytemuck::cast_slice(&w));
                let bias_row = Matrix::new(DType::F32, 1, rows, bytemuck::cast_slice(&bias));
                for level in Level::available() {
                    let mut out = vec![f32::NAN; tokens * rows];
                    let mut activations = SubgroupActivations::new(order);
                    activations.set(&x, cols);
                    let product = Product { weights, bias: Some(bias_row), out: Columns::new(&mut out, rows) };
                    activations.multiply(&pool, level, [product]);
                    for (token, out) in out.chunks(rows).enumerate() {
                        for (row, &out) in out.iter().enumerate() {
                            let (w, x) = (&w[row * cols..][..cols], &x[token * cols..][..cols]);
                            let expected = as_the_gpu(w, x, order, bias[row]);
                            assert_eq!(out.to_bits(), expected.to_bits(), "{order:?} {cols} {level:?}");
                        }
                    }
                }
            }
        }
    }
}

//! Computes the root-mean-square norm.

use crate::elementwise::add_kernel;
use crate::pool::Pool;
use crate::simd::{LANES, Simd, dispatch, load_few, store_few};
use crate::{Level, Share};

/// Computes `out[row] = x[row] / sqrt(mean(x[row]^2) + epsilon) * weight` for each row of `weight.len()` elements.
///
/// # Panics
/// Panics if the lengths disagree.
pub fn rms_norm(pool: &Pool, level: Level, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let cols = weight.len();
    assert!(x.len() == out.len() && x.len().is_multiple_of(cols));
    let out = Share::new(out);
    pool.split(x.len() / cols, 1, 2 * cols, |rows| {
        for row in rows {
            let x = &x[row * cols..(row + 1) * cols];
            // SAFETY: each row is in one thread's share only.
            let out = unsafe { out.slice(row * cols, cols) };
            norm_row(level, x, weight, epsilon, out);
        }
    });
}

/// Computes `sum += branch * scale`, and writes the [`rms_norm`] of the sum to `out`. Both steps handle one row at a
/// time. The results are bit-identical to those of two separate operations.
///
/// - `sum`, `branch`, `out`: `[rows, weight.len()]`
///
/// # Panics
/// Panics if the lengths disagree.
#[expect(clippy::too_many_arguments, reason = "an operation with this many operands")]
pub fn add_and_norm(
    pool: &Pool,
    level: Level,
    sum: &mut [f32],
    branch: &[f32],
    scale: f32,
    weight: &[f32],
    epsilon: f32,
    out: &mut [f32],
) {
    let cols = weight.len();
    assert!(sum.len() == out.len() && branch.len() == out.len() && sum.len().is_multiple_of(cols));
    let rows = sum.len() / cols;
    let (sum, out) = (Share::new(sum), Share::new(out));
    pool.split(rows, 1, 3 * cols, |rows| {
        for row in rows {
            let branch = &branch[row * cols..(row + 1) * cols];
            // SAFETY: each row is in one thread's share only.
            let (sum, out) = unsafe { (sum.slice(row * cols, cols), out.slice(row * cols, cols)) };
            dispatch!(level, add_kernel::<_>(sum: &mut [f32], branch: &[f32], scale: f32));
            norm_row(level, sum, weight, epsilon, out);
        }
    });
}

/// Computes the [`rms_norm`] of each head in place. `x` is `[rows, weight.len()]`, such as
/// `[tokens * heads, head_dim]`.
///
/// # Panics
/// Panics if the lengths disagree.
pub fn rms_norm_heads(pool: &Pool, level: Level, x: &mut [f32], weight: &[f32], epsilon: f32) {
    rms_norm_groups(pool, level, x, weight.len(), weight, epsilon);
}

/// Computes the [`rms_norm`] of each row of `x` `[rows, cols]` in place. Rows take the rows of `weight`
/// `[groups, cols]` in turns.
///
/// # Panics
/// Panics if the lengths disagree.
pub fn rms_norm_groups(pool: &Pool, level: Level, x: &mut [f32], cols: usize, weight: &[f32], epsilon: f32) {
    assert!(x.len().is_multiple_of(cols) && !weight.is_empty() && weight.len().is_multiple_of(cols));
    let (heads, weights) = (x.len() / cols, weight.len() / cols);
    let x = Share::new(x);
    pool.split(heads, 16, 2 * cols, |rows| {
        for row in rows {
            // SAFETY: each row is in one thread's share only.
            let x = unsafe { x.slice(row * cols, cols) };
            let weight = &weight[row % weights * cols..][..cols];
            dispatch!(level, norm_in_place::<_>(x: &mut [f32], weight: &[f32], epsilon: f32));
        }
    });
}

fn norm_row(level: Level, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    dispatch!(level, norm_kernel::<_>(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]));
}

#[inline(always)]
fn norm_kernel<S: Simd>(s: S, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let scale = scale_of(s, x, epsilon);
    let ((x, x_rest), (weights, weight_rest)) = (x.as_chunks::<LANES>(), weight.as_chunks::<LANES>());
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    assert!(weights.len() == x.len() && out.len() == x.len());
    for i in 0..x.len() {
        s.store(s.mul(s.mul(s.load(&x[i]), scale), s.load(&weights[i])), &mut out[i]);
    }
    if !x_rest.is_empty() {
        store_few(s, s.mul(s.mul(load_few(s, x_rest), scale), load_few(s, weight_rest)), out_rest);
    }
}

#[inline(always)]
fn norm_in_place<S: Simd>(s: S, x: &mut [f32], weight: &[f32], epsilon: f32) {
    let scale = scale_of(s, x, epsilon);
    let ((x, x_rest), (weights, weight_rest)) = (x.as_chunks_mut::<LANES>(), weight.as_chunks::<LANES>());
    assert!(weights.len() == x.len());
    for i in 0..x.len() {
        s.store(s.mul(s.mul(s.load(&x[i]), scale), s.load(&weights[i])), &mut x[i]);
    }
    if !x_rest.is_empty() {
        store_few(s, s.mul(s.mul(load_few(s, x_rest), scale), load_few(s, weight_rest)), x_rest);
    }
}

/// Computes the factor of a row, `1 / sqrt(mean(x^2) + epsilon)`, in all lanes.
#[inline(always)]
fn scale_of<S: Simd>(s: S, x: &[f32], epsilon: f32) -> S::V {
    let (vectors, rest) = x.as_chunks::<LANES>();
    let mut squares = s.splat(0.0);
    for v in vectors {
        let v = s.load(v);
        squares = s.fma(v, v, squares);
    }
    if !rest.is_empty() {
        let tail = load_few(s, rest);
        squares = s.fma(tail, tail, squares);
    }
    s.splat(1.0 / (s.sum(squares) / x.len() as f32 + epsilon).sqrt())
}

//! Root-mean-square norm.

use crate::elementwise::add_kernel;
use crate::pool::Pool;
use crate::simd::{F32, LANES, Simd, dispatch, load_part, store_part};
use crate::{Level, Share};

/// `out[row] = x[row] / sqrt(mean(x[row]^2) + epsilon) * weight`, for each row of `weight.len()` elements.
///
/// # Panics
/// If the lengths disagree.
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

/// `sum += branch * scale`, then [`rms_norm`] of the sum into `out`, while each row is at hand: the same bits as one
/// after the other.
///
/// - `sum`, `branch`, `out`: `[rows, weight.len()]`
///
/// # Panics
/// If the lengths disagree.
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

/// [`rms_norm`] of each head in place: `x` is `[rows, weight.len()]`, such as `[tokens * heads, head_dim]`.
///
/// # Panics
/// If the lengths disagree.
pub fn rms_norm_heads(pool: &Pool, level: Level, x: &mut [f32], weight: &[f32], epsilon: f32) {
    let cols = weight.len();
    assert!(x.len().is_multiple_of(cols));
    let heads = x.len() / cols;
    let x = Share::new(x);
    pool.split(heads, 16, 2 * cols, |rows| {
        for row in rows {
            // SAFETY: each row is in one thread's share only.
            let x = unsafe { x.slice(row * cols, cols) };
            let (from, to, weight) = (x.as_ptr(), x.as_mut_ptr(), weight.as_ptr());
            dispatch!(level, norm_kernel::<_>(from: *const f32, weight: *const f32, cols: usize, epsilon: f32, to: *mut f32));
        }
    });
}

fn norm_row(level: Level, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let (from, weight, cols, to) = (x.as_ptr(), weight.as_ptr(), x.len(), out.as_mut_ptr());
    dispatch!(level, norm_kernel::<_>(from: *const f32, weight: *const f32, cols: usize, epsilon: f32, to: *mut f32));
}

/// # Safety
/// `cols` elements are readable at `x` and `weight` and writable at `out`, which may be `x`.
#[inline(always)]
unsafe fn norm_kernel<S: Simd>(x: *const f32, weight: *const f32, cols: usize, epsilon: f32, out: *mut f32) {
    let whole = cols / LANES * LANES;
    // SAFETY: whole vectors end at `whole <= cols`; the tail is moved element by element.
    unsafe {
        let mut squares = S::splat(0.0);
        for k in (0..whole).step_by(LANES) {
            let v = S::load(x.add(k));
            squares = S::fma(v, v, squares);
        }
        let tail = load_part::<S, F32>(x.add(whole), cols - whole);
        squares = S::fma(tail, tail, squares);
        let scale = S::splat(1.0 / (S::sum(squares) / cols as f32 + epsilon).sqrt());
        for k in (0..whole).step_by(LANES) {
            let v = S::mul(S::load(x.add(k)), scale);
            S::store(S::mul(v, S::load(weight.add(k))), out.add(k));
        }
        let weight = load_part::<S, F32>(weight.add(whole), cols - whole);
        store_part::<S>(S::mul(S::mul(tail, scale), weight), out.add(whole), cols - whole);
    }
}

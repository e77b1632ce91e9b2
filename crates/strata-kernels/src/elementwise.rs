//! Operations that treat each element by itself: activations, residual sums, scaling.

use crate::pool::Pool;
use crate::share::Share;
use crate::simd::{F32, LANES, Simd, dispatch, exp, load_part, store_part};
use crate::{Level, Matrix};

/// The function between the two products of a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// Gaussian error linear unit, exact.
    Gelu,
    /// The same, by its tanh approximation.
    GeluTanh,
}

/// An exponential and a division are worth about so many multiply-adds.
const ELEMENT_COST: usize = 16;

/// Elements of a share: small enough to balance, large enough that starting it costs nothing.
const GRANULE: usize = 4096;

/// `gate[i] = activation(gate[i]) * up[i]`.
///
/// # Panics
/// If the lengths differ.
pub fn gated_activation(pool: &Pool, level: Level, activation: Activation, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    let count = gate.len();
    let gate = Share::new(gate);
    pool.split(count, GRANULE, ELEMENT_COST, |range| {
        // SAFETY: ranges of a split are disjoint; `up` has the elements that `gate` has.
        unsafe {
            let gate = gate.slice(range.start, range.len());
            gate_piece(level, activation, gate.as_mut_ptr(), up[range].as_ptr(), gate.len());
        }
    });
}

/// [`gated_activation`] of `count` elements on this thread.
///
/// # Safety
/// `count` elements are writable at `gate` and readable at `up`, and nothing else writes them meanwhile.
pub(crate) unsafe fn gate_piece(level: Level, activation: Activation, gate: *mut f32, up: *const f32, count: usize) {
    match activation {
        Activation::Silu => dispatch!(level, silu_kernel::<_>(gate: *mut f32, up: *const f32, count: usize)),
        Activation::GeluTanh => dispatch!(level, gelu_tanh_kernel::<_>(gate: *mut f32, up: *const f32, count: usize)),
        Activation::Gelu => {
            // SAFETY: the caller's promise.
            let (gate, up) =
                unsafe { (std::slice::from_raw_parts_mut(gate, count), std::slice::from_raw_parts(up, count)) };
            for (gate, up) in gate.iter_mut().zip(up) {
                *gate = 0.5 * *gate * (1.0 + libm::erff(*gate * std::f32::consts::FRAC_1_SQRT_2)) * up;
            }
        }
    }
}

/// `sum[i] += branch[i] * scale`.
///
/// # Panics
/// If the lengths differ.
pub fn add_scaled(pool: &Pool, level: Level, sum: &mut [f32], branch: &[f32], scale: f32) {
    assert_eq!(sum.len(), branch.len());
    let count = sum.len();
    let sum = Share::new(sum);
    pool.split(count, GRANULE, 1, |range| {
        // SAFETY: ranges of a split are disjoint.
        let sum = unsafe { sum.slice(range.start, range.len()) };
        let branch = &branch[range];
        dispatch!(level, add_kernel::<_>(sum: &mut [f32], branch: &[f32], scale: f32));
    });
}

/// `out[row] = matrix[row_at(row)] * multiplier`, for each row of `matrix.cols()` elements.
///
/// # Panics
/// If the matrix has no such row, or `out` is no whole number of rows.
pub fn gather_rows(
    pool: &Pool,
    matrix: Matrix<'_>,
    row_at: impl Fn(usize) -> usize + Sync,
    multiplier: f32,
    out: &mut [f32],
) {
    let cols = matrix.cols();
    assert!(out.len().is_multiple_of(cols));
    let rows = out.len() / cols;
    let out = Share::new(out);
    pool.split(rows, 1, 2 * cols, |range| {
        for row in range {
            // SAFETY: each row is in one thread's share only.
            let out = unsafe { out.slice(row * cols, cols) };
            matrix.widen_row(row_at(row), out);
            scale(out, multiplier);
        }
    });
}

/// `x[i] *= scale`.
pub fn scale(x: &mut [f32], scale: f32) {
    if scale != 1.0 {
        x.iter_mut().for_each(|x| *x *= scale);
    }
}

/// # Safety
/// None: it is compiled under a level's instructions, which the compiler then uses.
#[inline(always)]
unsafe fn add_kernel<S: Simd>(sum: &mut [f32], branch: &[f32], scale: f32) {
    let _: Option<S> = None;
    for (sum, branch) in sum.iter_mut().zip(branch) {
        *sum += branch * scale;
    }
}

/// # Safety
/// `count` elements are readable at `up` and writable at `gate`.
#[inline(always)]
unsafe fn silu_kernel<S: Simd>(gate: *mut f32, up: *const f32, count: usize) {
    // SAFETY: the caller's promise.
    unsafe { gated::<S>(gate, up, count, S::splat(0.0), S::splat(1.0)) }
}

/// `0.5 (1 + tanh u)` is `sigmoid(2u)`, with `u = sqrt(2 / pi) (x + 0.044715 x^3)`.
///
/// # Safety
/// As for [`silu_kernel`].
#[inline(always)]
unsafe fn gelu_tanh_kernel<S: Simd>(gate: *mut f32, up: *const f32, count: usize) {
    const TWICE_ROOT: f32 = 1.595_769;
    // SAFETY: the caller's promise.
    unsafe { gated::<S>(gate, up, count, S::splat(TWICE_ROOT * 0.044_715), S::splat(TWICE_ROOT)) }
}

/// `gate = gate * sigmoid(cubic * gate^3 + linear * gate) * up`.
///
/// # Safety
/// As for [`silu_kernel`].
#[inline(always)]
unsafe fn gated<S: Simd>(gate: *mut f32, up: *const f32, count: usize, cubic: S::V, linear: S::V) {
    let whole = count / LANES * LANES;
    // SAFETY: whole vectors end at `whole <= count`; the tail is moved element by element.
    unsafe {
        for i in (0..whole).step_by(LANES) {
            S::store(gated_lanes::<S>(S::load(gate.add(i)), S::load(up.add(i)), cubic, linear), gate.add(i));
        }
        let rest = count - whole;
        if rest > 0 {
            let x = load_part::<S, F32>(gate.add(whole), rest);
            let up = load_part::<S, F32>(up.add(whole), rest);
            store_part::<S>(gated_lanes::<S>(x, up, cubic, linear), gate.add(whole), rest);
        }
    }
}

/// # Safety
/// The level's instructions exist.
#[inline(always)]
unsafe fn gated_lanes<S: Simd>(x: S::V, up: S::V, cubic: S::V, linear: S::V) -> S::V {
    // SAFETY: arithmetic on lanes only.
    unsafe {
        let minus = S::splat(-1.0);
        let u = S::mul(x, S::fma(S::mul(x, x), cubic, linear));
        let denominator = S::add(S::splat(1.0), exp::<S>(S::mul(u, minus)));
        S::mul(S::div(x, denominator), up)
    }
}

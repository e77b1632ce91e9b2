//! Computes elementwise operations: activation functions, residual sums, scaling, and gathering of rows.

use crate::pool::Pool;
use crate::share::Share;
use crate::simd::{LANES, Simd, dispatch, exp, load_few, store_few};
use crate::{Level, Matrix};

/// The activation function of a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// The function `x * sigmoid(x)`.
    Silu,
    /// The exact Gaussian error linear unit.
    Gelu,
    /// The Gaussian error linear unit in its tanh approximation.
    GeluTanh,
    /// The activation of gpt-oss: `x * sigmoid(1.702 * x) * (1 + up)`, with `x` clamped to at most 7 and `up` clamped
    /// to -7 ..= 7.
    ClampedSwish,
    /// `max(x, 0)^2`.
    SquaredRelu,
    /// The function `sigmoid(x) = 1 / (1 + e^-x)`, by which a gate lets a part of its partner through.
    Sigmoid,
}

impl Activation {
    /// The factor of `x` in the sigmoid of [`Activation::ClampedSwish`].
    pub const CLAMPED_SLOPE: f32 = 1.702;
    /// The limit at which [`Activation::ClampedSwish`] clamps its inputs.
    pub const CLAMPED_LIMIT: f32 = 7.0;
}

/// The cost of an exponential and a division, in multiply-adds.
const ELEMENT_COST: usize = 16;

/// Elements of a thread's smallest share: few enough for an even division, and so many that starting a share costs
/// nothing.
const GRANULE: usize = 4096;

/// Computes `gate[i] = activation(gate[i]) * up[i]`, or the corresponding formula of [`Activation::ClampedSwish`].
///
/// # Panics
/// Panics if the lengths differ.
pub fn gated_activation(pool: &Pool, level: Level, activation: Activation, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    let count = gate.len();
    let gate = Share::new(gate);
    pool.split(count, GRANULE, ELEMENT_COST, |range| {
        // SAFETY: ranges of a split are disjoint.
        let gate = unsafe { gate.slice(range.start, range.len()) };
        gate_piece(level, activation, gate, &up[range]);
    });
}

/// Computes `x[i] = activation(x[i])`, for feed-forward networks without a gate. The result is that of
/// [`gated_activation`] if every `up[i]` is 1.
pub fn activate(pool: &Pool, level: Level, activation: Activation, x: &mut [f32]) {
    const ONES: [f32; 256] = [1.0; 256];
    let count = x.len();
    let x = Share::new(x);
    pool.split(count, GRANULE, ELEMENT_COST, |range| {
        // SAFETY: ranges of a split are disjoint.
        let x = unsafe { x.slice(range.start, range.len()) };
        x.chunks_mut(ONES.len()).for_each(|piece| gate_piece(level, activation, piece, &ONES[..piece.len()]));
    });
}

/// Computes [`gated_activation`] on the calling thread.
///
/// # Panics
/// Panics if the lengths differ.
pub(crate) fn gate_piece(level: Level, activation: Activation, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    match activation {
        Activation::Silu => dispatch!(level, silu_kernel::<_>(gate: &mut [f32], up: &[f32])),
        Activation::GeluTanh => dispatch!(level, gelu_tanh_kernel::<_>(gate: &mut [f32], up: &[f32])),
        Activation::ClampedSwish => dispatch!(level, clamped_kernel::<_>(gate: &mut [f32], up: &[f32])),
        Activation::SquaredRelu => dispatch!(level, squared_relu_kernel::<_>(gate: &mut [f32], up: &[f32])),
        Activation::Sigmoid => dispatch!(level, sigmoid_kernel::<_>(gate: &mut [f32], up: &[f32])),
        Activation::Gelu => {
            for (gate, up) in gate.iter_mut().zip(up) {
                *gate = 0.5 * *gate * (1.0 + libm::erff(*gate * std::f32::consts::FRAC_1_SQRT_2)) * up;
            }
        }
    }
}

/// Computes `sum[i] += branch[i] * scale`.
///
/// # Panics
/// Panics if the lengths differ.
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

/// Computes `out[t] = sum over s of factors[t][s] * from[places[t][s]]` for rows of `width` elements. The terms are
/// added in the order of `s`.
///
/// - `places`, `factors`: `[rows of out, terms per row]`
///
/// # Panics
/// Panics if `places` names a row that `from` does not have, or the lengths disagree.
pub fn combine_rows(
    pool: &Pool,
    level: Level,
    from: &[f32],
    width: usize,
    places: &[u32],
    factors: &[f32],
    out: &mut [f32],
) {
    let rows = out.len() / width;
    assert!(rows > 0 && out.len() == rows * width && places.len().is_multiple_of(rows));
    assert_eq!(places.len(), factors.len());
    let each = places.len() / rows;
    let out = Share::new(out);
    pool.split(rows, 1, 2 * each * width, |range| {
        for row in range {
            // SAFETY: each row is in one thread's share only.
            let sum = unsafe { out.slice(row * width, width) };
            sum.fill(0.0);
            let terms = places[row * each..].iter().zip(&factors[row * each..]).take(each);
            for (&place, &scale) in terms {
                let branch = &from[place as usize * width..][..width];
                dispatch!(level, add_kernel::<_>(sum: &mut [f32], branch: &[f32], scale: f32));
            }
        }
    });
}

/// Computes `out[row] = matrix[row_at(row)] * multiplier` for each row of `out`. A row has `matrix.cols()` elements.
///
/// # Panics
/// Panics if `row_at` returns a row that the matrix does not have, or `out` is not whole rows.
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

/// Computes `x[i] = bound * tanh(x[i] / bound)`.
pub fn cap(pool: &Pool, level: Level, x: &mut [f32], bound: f32) {
    let count = x.len();
    let x = Share::new(x);
    pool.split(count, GRANULE, ELEMENT_COST, |range| {
        // SAFETY: ranges of a split are disjoint.
        let x = unsafe { x.slice(range.start, range.len()) };
        dispatch!(level, cap_kernel::<_>(x: &mut [f32], bound: f32));
    });
}

/// Computes `x[i] *= scale`.
pub fn scale(x: &mut [f32], scale: f32) {
    if scale != 1.0 {
        x.iter_mut().for_each(|x| *x *= scale);
    }
}

/// Computes `sum[i] += branch[i] * scale`, compiled for a level's instructions, with which the compiler vectorizes the
/// loop.
#[inline(always)]
pub(crate) fn add_kernel<S: Simd>(_: S, sum: &mut [f32], branch: &[f32], scale: f32) {
    for (sum, branch) in sum.iter_mut().zip(branch) {
        *sum += branch * scale;
    }
}

#[inline(always)]
fn cap_kernel<S: Simd>(s: S, x: &mut [f32], bound: f32) {
    let (vectors, rest) = x.as_chunks_mut::<LANES>();
    for x in vectors {
        s.store(cap_lanes(s, s.load(x), bound), x);
    }
    if !rest.is_empty() {
        store_few(s, cap_lanes(s, load_few(s, rest), bound), rest);
    }
}

/// Computes `bound * tanh(x / bound)` of one vector. With `t = tanh(u / 2)`, by the continued fraction of tanh up to
/// its seventh term, `tanh(u)` is `2t / (1 + t^2)`: within 4e-7 of its value, also near 0, where an exponential would
/// lose digits. NaN stays NaN, because it is the second operand of each comparison.
#[inline(always)]
fn cap_lanes<S: Simd>(s: S, x: S::V, bound: f32) -> S::V {
    // Beyond 10, tanh is 1 to within rounding.
    const HALF_MAX: f32 = 5.0;
    let half = s.max(s.splat(-HALF_MAX), s.min(s.splat(HALF_MAX), s.mul(x, s.splat(0.5 / bound))));
    let square = s.mul(half, half);
    let upper = s.fma(square, s.add(square, s.splat(378.0)), s.splat(17_325.0));
    let upper = s.mul(half, s.fma(square, upper, s.splat(135_135.0)));
    let lower = s.fma(square, s.fma(square, s.splat(28.0), s.splat(3150.0)), s.splat(62_370.0));
    let t = s.div(upper, s.fma(square, lower, s.splat(135_135.0)));
    s.mul(s.div(s.add(t, t), s.fma(t, t, s.splat(1.0))), s.splat(bound))
}

#[inline(always)]
fn silu_kernel<S: Simd>(s: S, gate: &mut [f32], up: &[f32]) {
    gated(s, gate, up, s.splat(0.0), s.splat(1.0));
}

/// Computes tanh-approximated GELU, where `0.5 (1 + tanh u)` equals `sigmoid(2u)`, with
/// `u = sqrt(2 / pi) (x + 0.044715 x^3)`.
#[inline(always)]
fn gelu_tanh_kernel<S: Simd>(s: S, gate: &mut [f32], up: &[f32]) {
    const TWICE_ROOT: f32 = 1.595_769;
    gated(s, gate, up, s.splat(TWICE_ROOT * 0.044_715), s.splat(TWICE_ROOT));
}

/// Squares what is above zero. NaN stays NaN, as comparisons with it are false.
#[inline(always)]
fn squared_relu_kernel<S: Simd>(_: S, gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        let x = if *gate < 0.0 { 0.0 } else { *gate };
        *gate = x * x * up;
    }
}

#[inline(always)]
fn sigmoid_kernel<S: Simd>(s: S, gate: &mut [f32], up: &[f32]) {
    let (gates, gate_rest) = gate.as_chunks_mut::<LANES>();
    let (ups, up_rest) = up.as_chunks::<LANES>();
    for (gate, up) in gates.iter_mut().zip(ups) {
        s.store(sigmoid_lanes(s, s.load(gate), s.load(up)), gate);
    }
    if !gate_rest.is_empty() {
        store_few(s, sigmoid_lanes(s, load_few(s, gate_rest), load_few(s, up_rest)), gate_rest);
    }
}

/// Computes `sigmoid(x) * up` of one vector. The last term adds nothing to a finite `x`, and NaN to any other, as
/// [`exp`] knows no NaN.
#[inline(always)]
fn sigmoid_lanes<S: Simd>(s: S, x: S::V, up: S::V) -> S::V {
    let share = s.div(up, s.add(s.splat(1.0), exp(s, s.mul(x, s.splat(-1.0)))));
    s.fma(x, s.splat(0.0), share)
}

#[inline(always)]
fn clamped_kernel<S: Simd>(s: S, gate: &mut [f32], up: &[f32]) {
    let (gates, gate_rest) = gate.as_chunks_mut::<LANES>();
    let (ups, up_rest) = up.as_chunks::<LANES>();
    for (gate, up) in gates.iter_mut().zip(ups) {
        s.store(clamped_lanes(s, s.load(gate), s.load(up)), gate);
    }
    if !gate_rest.is_empty() {
        let (x, up) = (load_few(s, gate_rest), load_few(s, up_rest));
        store_few(s, clamped_lanes(s, x, up), gate_rest);
    }
}

/// Computes clamped swish of one vector. NaN stays NaN, because it is the second operand of each comparison.
#[inline(always)]
fn clamped_lanes<S: Simd>(s: S, x: S::V, up: S::V) -> S::V {
    let limit = s.splat(Activation::CLAMPED_LIMIT);
    let x = s.min(limit, x);
    let up = s.max(s.splat(-Activation::CLAMPED_LIMIT), s.min(limit, up));
    gated_lanes(s, x, s.add(up, s.splat(1.0)), s.splat(0.0), s.splat(Activation::CLAMPED_SLOPE))
}

/// Computes `gate = gate * sigmoid(cubic * gate^3 + linear * gate) * up`.
#[inline(always)]
fn gated<S: Simd>(s: S, gate: &mut [f32], up: &[f32], cubic: S::V, linear: S::V) {
    let (gates, gate_rest) = gate.as_chunks_mut::<LANES>();
    let (ups, up_rest) = up.as_chunks::<LANES>();
    for (gate, up) in gates.iter_mut().zip(ups) {
        s.store(gated_lanes(s, s.load(gate), s.load(up), cubic, linear), gate);
    }
    if !gate_rest.is_empty() {
        let (x, up) = (load_few(s, gate_rest), load_few(s, up_rest));
        store_few(s, gated_lanes(s, x, up, cubic, linear), gate_rest);
    }
}

#[inline(always)]
fn gated_lanes<S: Simd>(s: S, x: S::V, up: S::V, cubic: S::V, linear: S::V) -> S::V {
    let minus = s.splat(-1.0);
    let u = s.mul(x, s.fma(s.mul(x, x), cubic, linear));
    let denominator = s.add(s.splat(1.0), exp(s, s.mul(u, minus)));
    s.mul(s.div(x, denominator), up)
}

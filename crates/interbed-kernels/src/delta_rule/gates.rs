//! What the delta rule needs of each token before its state is known: queries and keys of length one, and gates.

use std::ops::Range;

use super::{DecayForm, DeltaRule};
use crate::pool::Pool;
use crate::simd::{LANES, Simd, dispatch, load_few, store_few};
use crate::{Level, Matrix, Share, StateShape};

/// The cost of the functions of one head's gates, in multiply-adds.
const GATE_COST: usize = 200;

/// The number of heads whose rates and biases are read at a time.
const HEADS: usize = 64;

/// The number beyond which the softplus is taken to be the identity, as others do.
const SOFTPLUS_LIMIT: f32 = 20.0;

/// Normalizes queries and keys of all tokens and scales the queries; replaces `a` by the factors with which heads keep
/// their state, and `b` by the shares of what heads learn.
pub(super) fn open_gates(
    pool: &Pool,
    level: Level,
    shape: &StateShape,
    rule: &DeltaRule,
    [qkv, a, b]: [&mut [f32]; 3],
    [rates, bias]: [Matrix<'_>; 2],
) {
    let (heads, width, keys) = (shape.heads, rule.width(shape), rule.key_heads * shape.key_width);
    let scale = 1.0 / (shape.key_width as f32).sqrt();
    let tokens = qkv.len() / width;
    let (qkv, a, b) = (Share::new(qkv), Share::new(a), Share::new(b));
    pool.split(tokens, 1, 4 * keys + GATE_COST * heads, |tokens| {
        for token in tokens.clone() {
            // SAFETY: each token is in one thread's share only.
            let row = unsafe { qkv.slice(token * width, 2 * keys) };
            for (index, head) in row.chunks_exact_mut(shape.key_width).enumerate() {
                let (factor, epsilon) = (if index < rule.key_heads { scale } else { 1.0 }, rule.epsilon);
                dispatch!(level, normalize::<_>(head: &mut [f32], factor: f32, epsilon: f32));
            }
        }
        for first in (0..heads).step_by(HEADS) {
            let own = first..heads.min(first + HEADS);
            let [rates, bias] = [rates, bias].map(|vector| widened::<HEADS>(vector, &own));
            for token in tokens.clone() {
                // SAFETY: as above.
                let [a, b] = unsafe { [a, b].map(|gates| gates.slice(token * heads + own.start, own.len())) };
                for head in 0..own.len() {
                    let rate = match rule.decay {
                        DecayForm::Logarithm => -libm::expf(rates[head]),
                        DecayForm::NegativeRate => rates[head],
                    };
                    a[head] = libm::expf(rate * softplus(a[head] + bias[head]));
                    b[head] = 1.0 / (1.0 + libm::expf(-b[head]));
                }
            }
        }
    });
}

/// Converts the elements `own` of a vector, at most `N`, to f32.
pub(crate) fn widened<const N: usize>(vector: Matrix<'_>, own: &Range<usize>) -> [f32; N] {
    let mut out = [0.0; N];
    vector.columns(own.clone()).widen_row(0, &mut out[..own.len()]);
    out
}

/// Computes `log(1 + e^x)`.
pub(crate) fn softplus(x: f32) -> f32 {
    if x > SOFTPLUS_LIMIT { x } else { libm::log1pf(libm::expf(x)) }
}

/// Computes `x *= factor / sqrt(sum of x^2 + epsilon)`.
#[inline(always)]
fn normalize<S: Simd>(s: S, x: &mut [f32], factor: f32, epsilon: f32) {
    let (vectors, rest) = x.as_chunks_mut::<LANES>();
    let mut squares = s.splat(0.0);
    for v in &*vectors {
        let v = s.load(v);
        squares = s.fma(v, v, squares);
    }
    if !rest.is_empty() {
        let tail = load_few(s, rest);
        squares = s.fma(tail, tail, squares);
    }
    let scale = s.splat(factor / (s.sum(squares) + epsilon).sqrt());
    for v in vectors {
        s.store(s.mul(s.load(v), scale), v);
    }
    if !rest.is_empty() {
        store_few(s, s.mul(load_few(s, rest), scale), rest);
    }
}

//! Computes the gated delta rule: a linear attention whose memory of a sequence is one matrix for each value head.
//!
//! For each token, a head's matrix `S` `[key_width, value_width]` decays, and is corrected so that the token's key
//! finds the token's value: `S = decay * S`, `S += k (beta * (v - k S))`, `out = q S`. Columns of the matrix never mix,
//! so work is divided into slices of columns, each of which goes through all tokens of a pass while it stays in the L1
//! cache. The tokens of a sequence are computed one after the other at every length, so that the state after a token
//! does not depend on how a prompt was cut into passes. The order of every sum is fixed by the width of a key.

mod gates;
mod slice;

use crate::pool::Pool;
use crate::state::States;
use crate::state_slices::Slice;
use crate::{KvBytesMut, Level, Matrix, Share, StateLayer, StateShape, StateSpan};
use gates::open_gates;
pub(crate) use gates::{softplus, widened};
use slice::{Operands, advance_slice};

/// The rule by which value heads share key heads, if there are more of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeySharing {
    /// Value heads side by side share a key head: value head `j` has key head `j / (value heads / key heads)`. Hugging
    /// Face models use this rule.
    Neighbours,
    /// Value head `j` has key head `j % (key heads)`. The Qwen3.5 families in GGUF files use this rule.
    Strided,
}

impl KeySharing {
    /// Returns the key head of a value head.
    pub fn key_head(self, value_head: usize, value_heads: usize, key_heads: usize) -> usize {
        match self {
            Self::Neighbours => value_head / (value_heads / key_heads),
            Self::Strided => value_head % key_heads,
        }
    }
}

/// The form in which files store the rates at which heads forget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DecayForm {
    /// The stored number is the logarithm of the rate (`A_log` of Hugging Face models).
    Logarithm,
    /// The stored number is the negative rate, `-exp(A_log)` (`ssm_a` of GGUF files).
    NegativeRate,
}

/// The parameters of one layer's gated delta rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeltaRule {
    /// The number of key heads, a divisor of the number of value heads.
    pub key_heads: usize,
    /// The rule by which value heads share key heads.
    pub sharing: KeySharing,
    /// The form of the rates.
    pub decay: DecayForm,
    /// Added to the square sums by which queries and keys are normalized.
    pub epsilon: f32,
}

impl DeltaRule {
    /// Returns the number of elements of a token's queries, keys and values together.
    pub fn width(&self, shape: &StateShape) -> usize {
        2 * self.key_heads * shape.key_width + shape.heads * shape.value_width
    }
}

/// The operands of [`delta_rule`]. Queries, keys and gates are changed in place, and are of no use afterwards.
pub struct DeltaOperands<'a> {
    /// The queries, keys and values of each token: `[tokens, q | k | v]`, with `[key_heads, key_width]` elements of
    /// queries and of keys, and `[value_heads, value_width]` elements of values.
    pub qkv: &'a mut [f32],
    /// How much each head forgets, before the softplus: `[tokens, value_heads]`.
    pub a: &'a mut [f32],
    /// How much each head learns, before the sigmoid: `[tokens, value_heads]`.
    pub b: &'a mut [f32],
    /// The rates of the heads, in the form that [`DeltaRule::decay`] names: `[value_heads]`, of a plain type.
    pub rates: Matrix<'a>,
    /// Added to `a`: `[value_heads]`, of a plain type.
    pub bias: Matrix<'a>,
    /// The result, `[tokens, value_heads, value_width]`.
    pub out: &'a mut [f32],
}

/// Computes the gated delta rule for all tokens of a batch. Begins with the state `from` of each span, or with zeros,
/// and writes the state after [`StateSpan::stored_after`] tokens of the span to `to`.
///
/// - `blocks`: the memory of all blocks, with the states of the spans
///
/// # Panics
/// Panics if the lengths disagree, or a span names a block that does not exist or is another span's. In these cases,
/// nothing has been written.
pub fn delta_rule(
    pool: &Pool,
    level: Level,
    layer: &StateLayer,
    blocks: KvBytesMut<'_>,
    spans: &[StateSpan],
    rule: &DeltaRule,
    operands: DeltaOperands<'_>,
) {
    let states = States::new(layer, blocks, spans);
    let shape = states.shape();
    let DeltaOperands { qkv, a, b, rates, bias, out } = operands;
    let tokens: usize = spans.iter().map(|span| span.tokens).sum();
    let (heads, width) = (shape.heads, rule.width(&shape));
    assert!(rule.key_heads > 0 && heads.is_multiple_of(rule.key_heads));
    assert!(qkv.len() == tokens * width && out.len() == tokens * heads * shape.value_width);
    assert!(a.len() == tokens * heads && b.len() == a.len());
    assert!([rates, bias].iter().all(|vector| vector.rows() == 1 && vector.cols() == heads));
    open_gates(pool, level, &shape, rule, [&mut *qkv, &mut *a, &mut *b], [rates, bias]);
    let cost = 3 * tokens * heads * shape.key_width * shape.value_width;
    let operands = Operands { states, spans, rule, qkv, decays: a, betas: b, out: Share::new(out) };
    pool.deal(heads * Slice::of_each_head(shape.value_width), cost, |_, item| {
        advance_slice(level, &operands, Slice::of(item, shape.value_width));
    });
}

//! Computes a selective state space, as Mamba-2 has it: the memory of a sequence is one matrix for each head, which
//! decays by a factor that each token chooses.
//!
//! For each token, a head's matrix `S` `[state_width, head_width]` decays and takes the token in:
//! `S = exp(rate * step) * S + B (step * x)`, and the result is `C S + skip * x`. `B` and `C` are shared by groups of
//! heads. The tokens of a sequence are computed one after the other at every length, so that the state after a token
//! does not depend on how a prompt was cut into passes. The order of every sum is fixed by the width of a state.

mod slice;
mod steps;

use crate::pool::Pool;
use crate::state::States;
use crate::state_slices::Slice;
use crate::{DecayForm, KvBytesMut, Level, Matrix, Share, StateLayer, StateShape, StateSpan};
use slice::{Operands, advance_slice};
use steps::find_steps;

/// The parameters of one layer's state space. In the layer's [`StateShape`], the key width is the width of a state, and
/// the value width is the width of a head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StateSpace {
    /// The number of groups, a divisor of the number of heads. Neighbouring heads belong to one group.
    pub groups: usize,
    /// The form of the rates.
    pub decay: DecayForm,
    /// The smallest and the largest step that a token takes. The second is not below the first and may be infinite.
    pub limits: [f32; 2],
}

impl StateSpace {
    /// Returns the number of elements of a token's `x`, `B` and `C` together.
    pub fn width(&self, shape: &StateShape) -> usize {
        shape.heads * shape.value_width + 2 * self.groups * shape.key_width
    }
}

/// The operands of [`state_space`]. Steps are changed in place, and are of no use afterwards.
pub struct StateSpaceOperands<'a> {
    /// What each token brings: `[tokens, x | B | C]`, with `[heads, head_width]` elements of `x`, and
    /// `[groups, state_width]` elements of `B` and of `C`.
    pub xbc: &'a [f32],
    /// How far each head steps, before the softplus: `[tokens, heads]`.
    pub steps: &'a mut [f32],
    /// Room for a factor for each step: `[tokens, heads]`.
    pub decays: &'a mut [f32],
    /// The rates of the heads, in the form that [`StateSpace::decay`] names: `[heads]`, of a plain type.
    pub rates: Matrix<'a>,
    /// Added to the steps: `[heads]`, of a plain type.
    pub bias: Matrix<'a>,
    /// The factors with which `x` is added to the results: `[heads]`, of a plain type.
    pub skip: Matrix<'a>,
    /// The result, `[tokens, heads, head_width]`.
    pub out: &'a mut [f32],
}

/// Computes the state space for all tokens of a batch. Begins with the state `from` of each span, or with zeros, and
/// writes the state after [`StateSpan::stored_after`] tokens of the span to `to`.
///
/// - `blocks`: the memory of all blocks, with the states of the spans
///
/// # Panics
/// Panics if the lengths disagree, or a span names a block that does not exist or is another span's. In these cases,
/// nothing has been written.
pub fn state_space(
    pool: &Pool,
    level: Level,
    layer: &StateLayer,
    blocks: KvBytesMut<'_>,
    spans: &[StateSpan],
    space: &StateSpace,
    operands: StateSpaceOperands<'_>,
) {
    let states = States::new(layer, blocks, spans);
    let shape = states.shape();
    let StateSpaceOperands { xbc, steps, decays, rates, bias, skip, out } = operands;
    let tokens: usize = spans.iter().map(|span| span.tokens).sum();
    let heads = shape.heads;
    assert!(space.groups > 0 && heads.is_multiple_of(space.groups) && space.limits[0] <= space.limits[1]);
    assert!(xbc.len() == tokens * space.width(&shape) && out.len() == tokens * heads * shape.value_width);
    assert!(steps.len() == tokens * heads && decays.len() == steps.len());
    assert!([rates, bias, skip].iter().all(|vector| vector.rows() == 1 && vector.cols() == heads));
    find_steps(pool, heads, space, [&mut *steps, &mut *decays], [rates, bias]);
    let cost = 2 * tokens * heads * shape.key_width * shape.value_width;
    let operands = Operands { states, spans, space, xbc, steps, decays, skip, out: Share::new(out) };
    pool.deal(heads * Slice::of_each_head(shape.value_width), cost, |_, item| {
        advance_slice(level, &operands, Slice::of(item, shape.value_width));
    });
}

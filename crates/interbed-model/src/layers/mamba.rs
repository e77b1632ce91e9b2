//! A selective state space: a convolution, and a memory of the tokens so far that decays as each token chooses.

use interbed_device::{Command, PassNeeds, Tensor, TensorArea};
use interbed_kernels::{Activation, StateShape, StateSpace};
use interbed_weights::{Access, GroupSpec, Role, TensorId};

use super::branch_norm::{BranchNorm, Seat};
use super::tensors::LayerTensors;
use super::{Layer, Place};
use crate::blueprint;
use crate::kept::{Kept, KeptPlace};
use crate::pass::{ForwardError, Linear, NormWeight, Pass, PassSize};

/// A state space of one layer.
pub(super) struct Mamba {
    spec: GroupSpec,
    norm: BranchNorm,
    /// Makes the gate of the result.
    gate: Linear,
    /// Makes what is convolved: the heads, and what a token writes to states and reads from them.
    row: Linear,
    /// Makes the step of each head.
    step: Linear,
    /// `[channels, 1, taps]`
    taps: TensorId,
    /// Of the convolution, `[channels]`, if it has one.
    bias: Option<TensorId>,
    /// `[heads]`
    rates: TensorId,
    /// Added to the steps, `[heads]`.
    bias_of_steps: TensorId,
    /// The factors with which heads are added to the results, `[heads]`.
    skip: TensorId,
    /// The norm of the gated result. Each group has a part of the weight.
    norm_of_result: NormWeight,
    output: Linear,
    space: StateSpace,
    state: StateShape,
    /// Whether this is the last layer that keeps anything for a sequence; after it, only rows whose logits are wanted
    /// are kept.
    is_last: bool,
}

/// Tensors that the layer uses within a pass.
struct Scratch {
    gate: Tensor,
    row: Tensor,
    step: Tensor,
    /// Room for a factor of each step.
    decay: Tensor,
    result: Tensor,
}

impl Mamba {
    /// Makes the state space of a branch at `place`, in a model whose hidden states are `hidden` wide.
    pub(super) fn new(hidden: usize, (seat, mamba): (Seat<'_>, &blueprint::Mamba), place: Place) -> Self {
        let &blueprint::Mamba { heads, head_width, state_width, groups, .. } = mamba;
        let (channels, inner) = (mamba.row_width(), mamba.inner_width());
        let mut tensors = LayerTensors::of_layer(place, "state space", Role::Attention);
        let norm = BranchNorm::new(seat, hidden, &mut tensors);
        let mut input =
            |name: &str, rows| tensors.linear(&format!("mamba.in_proj_{name}"), [rows, hidden], false, Access::Sweep);
        let [gate, row, step] = [input("z", inner), input("xbc", channels), input("dt", heads)];
        let taps = tensors.kernel("mamba.conv1d.weight", [channels, mamba.convolution]);
        let bias = mamba.convolution_bias.then(|| tensors.vector("mamba.conv1d.bias", channels));
        let [rates, bias_of_steps, skip] =
            ["A_log", "dt_bias", "D"].map(|name| tensors.vector(&format!("mamba.{name}"), heads));
        let weight = tensors.vector(&format!("{}.weight", mamba.norm.name), inner);
        let norm_of_result = NormWeight { weight, offset: mamba.norm.offset, epsilon: mamba.norm.epsilon };
        let output = tensors.linear("mamba.out_proj", [hidden, inner], false, Access::Sweep);
        let space = StateSpace { groups, decay: mamba.decay, limits: mamba.step_limits };
        let rows = mamba.convolution - 1;
        let state = StateShape { rows, channels, heads, key_width: state_width, value_width: head_width };
        Self {
            spec: tensors.finish(),
            norm,
            gate,
            row,
            step,
            taps,
            bias,
            rates,
            bias_of_steps,
            skip,
            norm_of_result,
            output,
            space,
            state,
            is_last: false,
        }
    }

    /// Marks this layer as the last one that keeps anything for a sequence if `is_last`.
    pub(super) fn last_if(self, is_last: bool) -> Self {
        Self { is_last, ..self }
    }

    fn scratch(&self, rows: usize, area: &mut TensorArea) -> Scratch {
        let mut take = |width| area.take(rows * width);
        Scratch {
            gate: take(self.gate.rows),
            row: take(self.row.rows),
            step: take(self.step.rows),
            decay: take(self.step.rows),
            result: take(self.gate.rows),
        }
    }
}

impl Layer for Mamba {
    fn spec(&self) -> &GroupSpec {
        &self.spec
    }

    fn keeps(&self) -> Vec<Kept> {
        vec![Kept::State(self.state)]
    }

    fn plan(&self, size: &PassSize, needs: &mut PassNeeds) {
        let mut area = needs.tensors.shared();
        self.scratch(size.tokens, &mut area);
        needs.tensors.reserve(&area);
        needs.product_cols = needs.product_cols.max(self.row.cols).max(self.output.cols);
        self.norm.plan(needs);
        needs.norm_cols = needs.norm_cols.max(self.gate.rows);
    }

    fn compute(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError> {
        let Scratch { gate, row, step, decay, result } = self.scratch(pass.rows(), &mut pass.area());
        let x = self.norm.begin(pass)?;
        pass.products(x, [&self.gate, &self.row, &self.step], [gate, row, step], None)?;
        let KeptPlace { group, index } = pass.kept(0);
        let (layer, sequences) = (pass.blocks.states(group).layer(index), pass.batch.states());
        let (weights, bias) = (&pass.weights.vector(self.taps), self.bias.map(|bias| pass.weights.vector(bias)));
        pass.submit(&[Command::Convolve { layer, sequences, weights, bias: bias.as_ref(), x: row }])?;
        let [rates, bias, skip] =
            &[self.rates, self.bias_of_steps, self.skip].map(|vector| pass.weights.vector(vector));
        let (space, xbc, steps, decays, out) = (self.space, row, step, decay, result);
        pass.submit(&[Command::StateSpace { layer, sequences, space, rates, bias, skip, xbc, steps, decays, out }])?;
        let (width, columns, activation) = (self.gate.rows, 0..self.gate.rows, Activation::Silu);
        pass.submit(&[Command::Gate { gate, up: result, width, columns, activation }])?;
        let NormWeight { weight, offset, epsilon } = self.norm_of_result;
        let weight = &pass.weights.vector(weight).in_rows(space.groups);
        pass.submit(&[Command::Norm { x: gate, weight, offset, epsilon, out: gate }])?;
        let normed = if self.is_last { pass.keep_wanted_rows(gate, width)? } else { gate };
        let branch = pass.branch();
        pass.products(normed, [&self.output], [branch], None)?;
        self.norm.end(pass)
    }
}

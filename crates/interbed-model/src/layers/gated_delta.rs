//! The gated delta rule: a convolution, and a memory of the tokens so far that decays and is corrected by each token.

use interbed_device::{Command, PassNeeds, Tensor, TensorArea};
use interbed_kernels::{Activation, DeltaRule, StateShape};
use interbed_weights::{Access, GroupSpec, Role, TensorId};

use super::branch_norm::{BranchNorm, Seat};
use super::tensors::LayerTensors;
use super::{Layer, Place};
use crate::blueprint;
use crate::kept::{Kept, KeptPlace};
use crate::pass::{ForwardError, Linear, NormWeight, Pass, PassSize};

/// A gated delta rule of one layer.
pub(super) struct GatedDelta {
    spec: GroupSpec,
    norm: BranchNorm,
    /// Makes queries, keys and values of all heads, which are convolved together.
    qkv: Linear,
    /// Makes the gate of the result.
    gate: Linear,
    /// Makes the strength of each value head's update.
    strength: Linear,
    /// Makes the step by which each value head decays.
    step: Linear,
    /// `[channels, 1, taps]`
    taps: TensorId,
    /// `[value heads]`
    rates: TensorId,
    /// Added to the steps, `[value heads]`.
    bias: TensorId,
    /// The norm of each value head's result.
    norm_of_result: NormWeight,
    output: Linear,
    rule: DeltaRule,
    state: StateShape,
    /// Whether this is the last layer that keeps anything for a sequence; after it, only rows whose logits are wanted
    /// are kept.
    is_last: bool,
}

/// Tensors that the layer uses within a pass.
struct Scratch {
    qkv: Tensor,
    gate: Tensor,
    strength: Tensor,
    step: Tensor,
    result: Tensor,
}

impl GatedDelta {
    /// Makes the rule of a branch at `place`, in a model whose hidden states are `hidden` wide.
    pub(super) fn new(hidden: usize, (seat, delta): (Seat<'_>, &blueprint::GatedDelta), place: Place) -> Self {
        let blueprint::GatedDelta { key_heads, value_heads, key_width, value_width, .. } = *delta;
        let (channels, values) = (delta.row_width(), delta.values_width());
        let mut tensors = LayerTensors::of_layer(place, "delta rule", Role::Attention);
        let norm = BranchNorm::new(seat, hidden, &mut tensors);
        let mut input = |name: &str, rows| {
            tensors.linear(&format!("linear_attn.in_proj_{name}"), [rows, hidden], false, Access::Sweep)
        };
        let [qkv, gate] = [input("qkv", channels), input("z", values)];
        let [strength, step] = [input("b", value_heads), input("a", value_heads)];
        let taps = tensors.kernel("linear_attn.conv1d.weight", [channels, delta.convolution]);
        let [rates, bias] =
            ["A_log", "dt_bias"].map(|name| tensors.vector(&format!("linear_attn.{name}"), value_heads));
        let weight = tensors.vector(&format!("{}.weight", delta.norm.name), value_width);
        let norm_of_result = NormWeight { weight, offset: delta.norm.offset, epsilon: delta.norm.epsilon };
        let output = tensors.linear("linear_attn.out_proj", [hidden, values], false, Access::Sweep);
        let rule = DeltaRule { key_heads, sharing: delta.sharing, decay: delta.decay, epsilon: delta.epsilon };
        let rows = delta.convolution - 1;
        let state = StateShape { rows, channels, heads: value_heads, key_width, value_width };
        Self {
            spec: tensors.finish(),
            norm,
            qkv,
            gate,
            strength,
            step,
            taps,
            rates,
            bias,
            norm_of_result,
            output,
            rule,
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
            qkv: take(self.qkv.rows),
            gate: take(self.gate.rows),
            strength: take(self.strength.rows),
            step: take(self.step.rows),
            result: take(self.gate.rows),
        }
    }
}

impl Layer for GatedDelta {
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
        needs.product_cols = needs.product_cols.max(self.qkv.cols).max(self.output.cols);
        self.norm.plan(needs);
        needs.norm_cols = needs.norm_cols.max(self.state.value_width);
    }

    fn compute(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError> {
        let Scratch { qkv, gate, strength, step, result } = self.scratch(pass.rows(), &mut pass.area());
        let x = self.norm.begin(pass)?;
        let inputs = [&self.qkv, &self.gate, &self.strength, &self.step];
        pass.products(x, inputs, [qkv, gate, strength, step], None)?;
        let KeptPlace { group, index } = pass.kept(0);
        let (layer, sequences) = (pass.blocks.states(group).layer(index), pass.batch.states());
        let weights = &pass.weights.vector(self.taps);
        pass.submit(&[Command::Convolve { layer, sequences, weights, bias: None, x: qkv }])?;
        let (rates, bias) = (&pass.weights.vector(self.rates), &pass.weights.vector(self.bias));
        let (rule, a, b) = (self.rule, step, strength);
        pass.submit(&[Command::DeltaRule { layer, sequences, rule, rates, bias, qkv, a, b, out: result }])?;
        let NormWeight { weight, offset, epsilon } = self.norm_of_result;
        let weight = &pass.weights.vector(weight);
        let width = self.gate.rows;
        pass.submit(&[
            Command::Norm { x: result, weight, offset, epsilon, out: result },
            Command::Gate { gate, up: result, width, columns: 0..width, activation: Activation::Silu },
        ])?;
        let gated = if self.is_last { pass.keep_wanted_rows(gate, width)? } else { gate };
        let branch = pass.branch();
        pass.products(gated, [&self.output], [branch], None)?;
        self.norm.end(pass)
    }
}

//! The feed-forward network that all tokens go through: a gated product, then one back to the hidden width.

use interbed_device::{PassNeeds, Tensor, TensorArea};
use interbed_kernels::Activation;
use interbed_weights::{Access, GroupSpec, Role};

use super::branch_norm::BranchNorm;
use super::tensors::LayerTensors;
use super::{Layer, LayerState, Place};
use crate::blueprint::{Branch, Dense};
use crate::pass::{ForwardError, Linear, Pass, PassSize};

/// A feed-forward network that all tokens go through.
pub(super) struct DenseFfn {
    spec: GroupSpec,
    norm: BranchNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl DenseFfn {
    /// Makes the network of a branch at `place`, in a model whose hidden states are `hidden` wide.
    pub(super) fn new(hidden: usize, (branch, dense): (&Branch, &Dense), place: Place) -> Self {
        let (inner, has_bias) = (dense.width, dense.bias);
        let mut tensors = LayerTensors::of_layer(place, "ffn", Role::FeedForward);
        let norm = BranchNorm::new(branch, hidden, &mut tensors);
        let gate = tensors.linear("mlp.gate_proj", [inner, hidden], has_bias, Access::Sweep);
        // The activation takes a row of gate together with the same row of up.
        let up = tensors.linear("mlp.up_proj", [inner, hidden], has_bias, Access::SweepBeside);
        let down = tensors.linear("mlp.down_proj", [hidden, inner], has_bias, Access::Sweep);
        Self { spec: tensors.finish(), norm, gate, up, down, activation: dense.activation }
    }

    /// Takes room for the products with the gate and up matrices.
    fn scratch(&self, rows: usize, area: &mut TensorArea) -> [Tensor; 2] {
        [(); 2].map(|()| area.take(rows * self.gate.rows))
    }
}

impl Layer for DenseFfn {
    fn spec(&self) -> &GroupSpec {
        &self.spec
    }

    fn state(&self) -> LayerState {
        LayerState::Nothing
    }

    fn plan(&self, size: &PassSize, needs: &mut PassNeeds) {
        let mut area = needs.tensors.shared();
        self.scratch(size.tokens, &mut area);
        needs.tensors.reserve(&area);
        needs.product_cols = needs.product_cols.max(self.gate.cols).max(self.down.cols);
        self.norm.plan(needs);
    }

    fn compute(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError> {
        let [gate, up] = self.scratch(pass.rows(), &mut pass.area());
        let x = self.norm.begin(pass)?;
        pass.products(x, [&self.gate, &self.up], [gate, up], Some(self.activation))?;
        let branch = pass.branch();
        pass.products(gate, [&self.down], [branch], None)?;
        self.norm.end(pass)
    }
}

//! The feed-forward network that all tokens go through: a product with a gate or without one, an activation, then a
//! product back to the hidden width.

use interbed_device::{Command, PassNeeds, Tensor, TensorArea};
use interbed_kernels::Activation;
use interbed_weights::{Access, GroupSpec, Role};

use super::branch_norm::{BranchNorm, Seat};
use super::tensors::LayerTensors;
use super::{Layer, Place};
use crate::blueprint::Dense;
use crate::kept::Kept;
use crate::pass::{ForwardError, Linear, Pass, PassSize};

/// A feed-forward network that all tokens go through.
pub(super) struct DenseFfn {
    spec: GroupSpec,
    norm: BranchNorm,
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl DenseFfn {
    /// Makes the network of a branch at `place`, in a model whose hidden states are `hidden` wide.
    pub(super) fn new(hidden: usize, (seat, dense): (Seat<'_>, &Dense), place: Place) -> Self {
        let (inner, has_bias) = (dense.width, dense.bias);
        let mut tensors = LayerTensors::of_layer(place, "ffn", Role::FeedForward);
        let norm = BranchNorm::new(seat, hidden, &mut tensors);
        let mut input = |name, access| tensors.linear(name, [inner, hidden], has_bias, access);
        let gate = dense.gated.then(|| input("mlp.gate_proj", Access::Sweep));
        // The activation takes a row of gate together with the same row of up.
        let up = input("mlp.up_proj", if dense.gated { Access::SweepBeside } else { Access::Sweep });
        let down = tensors.linear("mlp.down_proj", [hidden, inner], has_bias, Access::Sweep);
        Self { spec: tensors.finish(), norm, gate, up, down, activation: dense.activation }
    }

    /// Takes room for the product with the up matrix, and for that with the gate if there is one.
    fn scratch(&self, rows: usize, area: &mut TensorArea) -> (Tensor, Option<Tensor>) {
        let mut take = || area.take(rows * self.up.rows);
        (take(), self.gate.map(|_| take()))
    }
}

impl Layer for DenseFfn {
    fn spec(&self) -> &GroupSpec {
        &self.spec
    }

    fn keeps(&self) -> Vec<Kept> {
        Vec::new()
    }

    fn plan(&self, size: &PassSize, needs: &mut PassNeeds) {
        let mut area = needs.tensors.shared();
        self.scratch(size.tokens, &mut area);
        needs.tensors.reserve(&area);
        needs.product_cols = needs.product_cols.max(self.up.cols).max(self.down.cols);
        self.norm.plan(needs);
    }

    fn compute(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError> {
        let (up, gate) = self.scratch(pass.rows(), &mut pass.area());
        let x = self.norm.begin(pass)?;
        let inner = match (&self.gate, gate) {
            (Some(matrix), Some(gate)) => {
                pass.products(x, [matrix, &self.up], [gate, up], Some(self.activation))?;
                gate
            }
            _ => {
                pass.products(x, [&self.up], [up], None)?;
                pass.submit(&[Command::Activate { x: up, activation: self.activation }])?;
                up
            }
        };
        let branch = pass.branch();
        pass.products(inner, [&self.down], [branch], None)?;
        self.norm.end(pass)
    }
}

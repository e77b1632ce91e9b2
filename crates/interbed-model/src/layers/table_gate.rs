//! A network whose inner numbers are multiplied by a row that the token has in a table.

use interbed_device::{Command, PassNeeds, Tensor, TensorArea};
use interbed_kernels::Activation;
use interbed_weights::{Access, GroupSpec, Role};

use super::branch_norm::{BranchNorm, Seat};
use super::tensors::LayerTensors;
use super::{Layer, Place};
use crate::blueprint::TableLookup;
use crate::kept::Kept;
use crate::pass::{ForwardError, Linear, Pass, PassSize};

/// The network of one layer.
pub(super) struct TableGate {
    spec: GroupSpec,
    norm: BranchNorm,
    gate: Linear,
    output: Linear,
    activation: Activation,
    /// The index of the row among those of a token.
    row: usize,
}

impl TableGate {
    /// Makes the network of a branch at `place`, in a model whose hidden states are `hidden` wide.
    pub(super) fn new(hidden: usize, (seat, lookup): (Seat<'_>, &TableLookup), place: Place) -> Self {
        let mut tensors = LayerTensors::of_layer(place, "table", Role::FeedForward);
        let norm = BranchNorm::new(seat, hidden, &mut tensors);
        let mut linear = |name: &str, shape| tensors.linear(name, shape, false, Access::Sweep);
        let gate = linear("per_layer_input_gate", [lookup.width, hidden]);
        let output = linear("per_layer_projection", [hidden, lookup.width]);
        Self { spec: tensors.finish(), norm, gate, output, activation: lookup.activation, row: lookup.row }
    }

    /// Takes room for the product with the gate, and for the row of the table.
    fn scratch(&self, rows: usize, area: &mut TensorArea) -> [Tensor; 2] {
        [(); 2].map(|()| area.take(rows * self.gate.rows))
    }
}

impl Layer for TableGate {
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
        needs.product_cols = needs.product_cols.max(self.gate.cols).max(self.output.cols);
        self.norm.plan(needs);
    }

    fn compute(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError> {
        let [gate, up] = self.scratch(pass.rows(), &mut pass.area());
        let x = self.norm.begin(pass)?;
        pass.products(x, [&self.gate], [gate], None)?;
        let (width, activation) = (self.gate.rows, self.activation);
        pass.take_table_row(self.row, width, up)?;
        pass.submit(&[Command::Gate { gate, up, width, columns: 0..width, activation }])?;
        let branch = pass.branch();
        pass.products(gate, [&self.output], [branch], None)?;
        self.norm.end(pass)
    }
}

//! A gated convolution over the last few tokens, whose last inputs are kept.

use interbed_device::{Command, PassNeeds, Tensor, TensorArea};
use interbed_kernels::StateShape;
use interbed_weights::{Access, GroupSpec, Role, TensorId};

use super::branch_norm::{BranchNorm, Seat};
use super::tensors::LayerTensors;
use super::{Layer, Place};
use crate::blueprint;
use crate::kept::{Kept, KeptPlace};
use crate::pass::{ForwardError, Linear, Pass, PassSize};

/// A gated convolution of one layer.
pub(super) struct ShortConvolution {
    spec: GroupSpec,
    norm: BranchNorm,
    /// Makes the three projections of a token: two whose product is convolved, with one between them that multiplies
    /// the result.
    input: Linear,
    /// `[channels, 1, taps]`
    taps: TensorId,
    /// Added to each result of the convolution, if the model has it: `[channels]`.
    bias: Option<TensorId>,
    output: Linear,
    state: StateShape,
    /// Whether this is the last layer that keeps anything for a sequence; after it, only rows whose logits are wanted
    /// are kept.
    is_last: bool,
}

impl ShortConvolution {
    /// Makes the convolution of a branch at `place`, in a model whose hidden states are `hidden` wide.
    pub(super) fn new(
        hidden: usize,
        (seat, convolution): (Seat<'_>, &blueprint::ShortConvolution),
        place: Place,
    ) -> Self {
        let blueprint::ShortConvolution { rows: taps, width, bias: has_bias } = *convolution;
        let mut tensors = LayerTensors::of_layer(place, "convolution", Role::Attention);
        let norm = BranchNorm::new(seat, hidden, &mut tensors);
        let input = tensors.linear("conv.in_proj", [3 * width, hidden], has_bias, Access::Sweep);
        let state = StateShape { rows: taps - 1, channels: width, ..StateShape::default() };
        let taps = tensors.kernel("conv.conv.weight", [width, taps]);
        let bias = has_bias.then(|| tensors.vector("conv.conv.bias", width));
        let output = tensors.linear("conv.out_proj", [hidden, width], has_bias, Access::Sweep);
        Self { spec: tensors.finish(), norm, input, taps, bias, output, state, is_last: false }
    }

    /// Marks this layer as the last one that keeps anything for a sequence if `is_last`.
    pub(super) fn last_if(self, is_last: bool) -> Self {
        Self { is_last, ..self }
    }

    /// Takes room for the projections, and for the result of the convolution.
    fn scratch(&self, rows: usize, area: &mut TensorArea) -> [Tensor; 2] {
        [self.input.rows, self.output.cols].map(|width| area.take(rows * width))
    }
}

impl Layer for ShortConvolution {
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
        needs.product_cols = needs.product_cols.max(self.input.cols).max(self.output.cols);
        self.norm.plan(needs);
    }

    fn compute(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError> {
        let [projections, out] = self.scratch(pass.rows(), &mut pass.area());
        let x = self.norm.begin(pass)?;
        pass.products(x, [&self.input], [projections], None)?;
        let KeptPlace { group, index } = pass.kept(0);
        let (layer, sequences) = (pass.blocks.states(group).layer(index), pass.batch.states());
        let (weights, bias) = (&pass.weights.vector(self.taps), self.bias.map(|bias| pass.weights.vector(bias)));
        let bias = bias.as_ref();
        pass.submit(&[Command::ShortConvolution { layer, sequences, weights, bias, projections, out }])?;
        let convolved = if self.is_last { pass.keep_wanted_rows(out, self.output.cols)? } else { out };
        let branch = pass.branch();
        pass.products(convolved, [&self.output], [branch], None)?;
        self.norm.end(pass)
    }
}

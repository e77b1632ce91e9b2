//! A feed-forward network of experts, of which each token goes through those that its router chooses, and a shared one
//! that all tokens go through, if there is one.
//!
//! The products of each token and expert are kept apart and added in the order of the token's choice, so that results
//! do not depend on which expert is computed first, nor on who shares the pass.

use interbed_device::{Command, PassNeeds, Tensor, TensorArea, Weights};
use interbed_kernels::Activation;
use interbed_weights::{Access, EXPERT_MATRICES_MAX, GroupSpec, Role, TensorId};

use super::branch_norm::Seat;
use super::chooser::{Chooser, Outlook};
use super::tensors::LayerTensors;
use super::{Layer, Place};
use crate::blueprint::Mixture;
use crate::kept::Kept;
use crate::pass::{Choice, ForwardError, Linear, Pass, PassSize};

/// Most rows for which a layer looks ahead: those of a few decoding sequences. A chunk of a prompt needs nearly all
/// experts anyway.
const LOOKING_ROWS: usize = 32;

/// A feed-forward network made of experts.
pub(super) struct MoeFfn {
    spec: GroupSpec,
    group: usize,
    chooser: Chooser,
    /// The chooser of the next mixture, if there is one.
    next: Option<Chooser>,
    expert_width: usize,
    /// Biases of the gate, up and down matrices: each tensor holds those of all experts, one after the other.
    biases: Option<[TensorId; EXPERT_MATRICES_MAX]>,
    shared: Option<Shared>,
    /// Whether experts have a gate matrix.
    is_gated: bool,
    hidden: usize,
    activation: Activation,
}

/// The shared expert.
struct Shared {
    /// Product whose sigmoid multiplies the shared expert's result, if the model has it.
    factor: Option<Linear>,
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
}

/// Tensors that the layer uses within a pass.
struct Scratch {
    choice: Choice,
    /// Copies of the rows that go through one expert, `[rows, hidden]`.
    taken: Tensor,
    /// Products with the gate matrix, `[rows, widest]`.
    gate: Tensor,
    /// Products with the up matrix, `[rows, widest]`.
    up: Tensor,
    /// Results of all experts, in the order of [`Routes`](crate::routes::Routes): `[rows * chosen (+ rows), hidden]`.
    results: Tensor,
    /// Room to guess what the next mixture will choose, if there are few rows.
    outlook: Option<Outlook>,
}

impl MoeFfn {
    /// Makes the mixture of a branch at `place`, in a model whose hidden states are `hidden` wide; `behind` is the next
    /// mixture.
    pub(super) fn new(
        hidden: usize,
        of: (Seat<'_>, &Mixture),
        place: Place,
        behind: Option<((Seat<'_>, &Mixture), Place)>,
    ) -> Self {
        let ((_, mixture), width) = (of, of.1.expert_width);
        let mut tensors = tensors_of(place);
        let chooser = Chooser::new(hidden, of, place.group, &mut tensors);
        let next = behind.map(|(next, place)| Chooser::new(hidden, next, place.group, &mut tensors_of(place)));
        let biases = mixture.biases.then(|| {
            [("gate", width), ("up", width), ("down", hidden)].map(|(matrix, rows)| {
                tensors.vector(&format!("mlp.experts.all.{matrix}_proj.bias"), mixture.experts * rows)
            })
        });
        let shared = mixture.shared.map(|shared| {
            // The activation takes a row of gate together with the same row of up.
            let beside = if mixture.gated { Access::SweepBeside } else { Access::Sweep };
            let mut linear =
                |name: &str, shape, access| tensors.linear(&format!("mlp.shared_expert{name}"), shape, false, access);
            Shared {
                factor: shared.gated.then(|| linear("_gate", [1, hidden], Access::Sweep)),
                gate: mixture.gated.then(|| linear("s.gate_proj", [shared.width, hidden], Access::Sweep)),
                up: linear("s.up_proj", [shared.width, hidden], beside),
                down: linear("s.down_proj", [hidden, shared.width], Access::Sweep),
            }
        });
        for expert in 0..mixture.experts {
            let matrices = [("gate", [width, hidden]), ("up", [width, hidden]), ("down", [hidden, width])];
            for (matrix, shape) in matrices.into_iter().skip(usize::from(!mixture.gated)) {
                let name = format!("mlp.experts.{expert}.{matrix}_proj.weight");
                tensors.matrix(&name, shape, Access::Expert { number: expert as u32, chosen: mixture.chosen as u32 });
            }
        }
        Self {
            spec: tensors.finish(),
            group: place.group,
            chooser,
            next,
            expert_width: width,
            biases,
            shared,
            is_gated: mixture.gated,
            hidden,
            activation: mixture.activation,
        }
    }

    fn scratch(&self, rows: usize, area: &mut TensorArea) -> Scratch {
        let widest = self.shared.as_ref().map_or(0, |shared| shared.up.rows).max(self.expert_width);
        let slots = self.chooser.chosen + usize::from(self.shared.is_some());
        let shared = self.shared.as_ref().map(|shared| shared.factor.is_some());
        let choice = self.chooser.choice(rows, shared, area);
        let outlook = self.next.as_ref().filter(|_| rows <= LOOKING_ROWS).map(|next| next.outlook(rows, area));
        let mut take = |width: usize| area.take(rows.saturating_mul(width));
        Scratch {
            choice,
            taken: take(self.hidden),
            gate: take(widest),
            up: take(widest),
            results: take(slots.saturating_mul(self.hidden)),
            outlook,
        }
    }

    /// Chooses experts for all rows, and computes the factors of the shared expert.
    fn route(
        &self,
        pass: &mut Pass<'_>,
        x: Tensor,
        Scratch { choice, taken, .. }: &Scratch,
    ) -> Result<(), ForwardError> {
        self.chooser.multiply(pass, x, *taken, choice)?;
        if let (Some(shared), Some(Some(out))) = (&self.shared, choice.shared)
            && let Some(factor) = &shared.factor
        {
            pass.products(x, [factor], [out], None)?;
        }
        self.chooser.choose(pass, choice)
    }

    fn compute_shared(
        &self,
        shared: &Shared,
        pass: &mut Pass<'_>,
        x: Tensor,
        scratch: &Scratch,
    ) -> Result<(), ForwardError> {
        let (rows, width) = (pass.rows(), shared.up.rows);
        let [gate, up] = [scratch.gate, scratch.up].map(|tensor| tensor.first(rows * width));
        let inner = match &shared.gate {
            Some(matrix) => {
                pass.products(x, [matrix, &shared.up], [gate, up], Some(self.activation))?;
                gate
            }
            None => {
                pass.products(x, [&shared.up], [up], None)?;
                pass.submit(&[Command::Activate { x: up, activation: self.activation }])?;
                up
            }
        };
        let first = rows * self.chooser.chosen * self.hidden;
        let out = scratch.results.part(first..first + rows * self.hidden);
        pass.products(inner, [&shared.down], [out], None)
    }

    /// Computes the rows `own` that go through an expert of these matrices up to its down matrix, in `gate` and `up`.
    /// Returns the matrix that is left, with the tensor that it multiplies.
    fn begin_expert<'a>(
        &self,
        pass: &mut Pass<'_>,
        own: Tensor,
        matrices: &'a [Weights],
        [gate, up]: [Tensor; 2],
        [of_gate, of_up]: [Option<Weights>; 2],
    ) -> Result<(&'a Weights, Tensor), ForwardError> {
        match matrices {
            [gates, ups, downs] if self.is_gated => {
                let products = [(gates, of_gate, gate), (ups, of_up, up)];
                pass.multiply_whole(own, self.hidden, &products, Some(self.activation))?;
                Ok((downs, gate))
            }
            [ups, downs] if !self.is_gated => {
                pass.multiply_whole(own, self.hidden, &[(ups, of_up, up)], None)?;
                pass.submit(&[Command::Activate { x: up, activation: self.activation }])?;
                Ok((downs, up))
            }
            _ => unreachable!("an expert has the matrices that its spec lists"),
        }
    }
}

impl Layer for MoeFfn {
    fn spec(&self) -> &GroupSpec {
        &self.spec
    }

    fn keeps(&self) -> Vec<Kept> {
        Vec::new()
    }

    fn plan(&self, size: &PassSize, needs: &mut PassNeeds) {
        for rows in [size.tokens, size.tokens.min(LOOKING_ROWS)] {
            let mut area = needs.tensors.shared();
            self.scratch(rows, &mut area);
            needs.tensors.reserve(&area);
        }
        let shared = self.shared.as_ref().map_or(0, |shared| shared.down.cols);
        needs.product_cols = needs.product_cols.max(self.hidden).max(self.expert_width).max(shared);
        self.chooser.plan(needs);
    }

    fn compute(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError> {
        // Experts are not read for a row of which nothing is wanted.
        if pass.is_over() {
            return Ok(());
        }
        let (rows, hidden, width) = (pass.rows(), self.hidden, self.expert_width);
        let scratch = self.scratch(rows, &mut pass.area());
        let x = self.chooser.norm.begin(pass)?;
        self.route(pass, x, &scratch)?;
        pass.tell_routes(self.group, self.spec.layer, self.chooser.chosen);
        // Experts are read while everything that needs no expert is computed.
        pass.visit_experts(self.group)?;
        if let (Some(next), Some(outlook)) = (&self.next, &scratch.outlook) {
            next.look_ahead(pass, outlook)?;
        }
        if let Some(shared) = &self.shared {
            self.compute_shared(shared, pass, x, &scratch)?;
        }
        pass.each_expert(|pass, number, matrices| {
            let (first, count) = pass.rows_of_expert(number);
            let own = match count == rows {
                // Every row goes through this expert, so none has to be copied.
                true => x,
                false => {
                    let taken = scratch.taken.first(count * hidden);
                    pass.take_rows_of_expert(number, x, hidden, taken)?;
                    taken
                }
            };
            let [gate, up] = [scratch.gate, scratch.up].map(|tensor| tensor.first(count * width));
            let out = scratch.results.part(first * hidden..(first + count) * hidden);
            let bias = |pass: &Pass<'_>, matrix: usize, rows: usize| {
                let all = pass.weights.vector(self.biases?[matrix]);
                Some(all.columns(number as usize * rows..(number as usize + 1) * rows))
            };
            let [of_gate, of_up, of_down] = [(0, width), (1, width), (2, hidden)].map(|(i, rows)| bias(pass, i, rows));
            let (downs, inner) = self.begin_expert(pass, own, matrices, [gate, up], [of_gate, of_up])?;
            pass.multiply_whole(inner, width, &[(downs, of_down, out)], None)
        })?;
        let branch = pass.branch();
        pass.combine_experts(scratch.results, hidden, branch)?;
        self.chooser.norm.end(pass)
    }
}

/// Makes an empty list for the tensors of the mixture at `place`.
fn tensors_of(place: Place) -> LayerTensors {
    LayerTensors::of_layer(place, "experts", Role::FeedForward)
}

//! Choice of the experts of a mixture: the norm of its branch, products with the router's matrix, and a rule that
//! chooses by the products.

use interbed_device::{Command, PassNeeds, Tensor, TensorArea};
use interbed_weights::{Access, TensorId};

use super::branch_norm::{BranchNorm, Seat};
use super::tensors::LayerTensors;
use crate::blueprint::{Mixture, Router};
use crate::pass::{Choice, ForwardError, Linear, NormWeight, Pass};

/// Numbers in a cache line.
const LINE: usize = 16;

/// Chooses the experts of one mixture.
pub(super) struct Chooser {
    /// Index of the mixture's layer in the model's list of layers.
    group: usize,
    /// The norms of the layer's branch.
    pub norm: BranchNorm,
    gate: Linear,
    /// The norm of what the router reads, and the number that its result is multiplied by; `None` if the router reads
    /// what the experts read.
    own_norm: Option<(NormWeight, f32)>,
    bias: Option<TensorId>,
    /// The learned factors of the experts' weights.
    factors: Option<TensorId>,
    router: Router,
    /// Number of experts in the mixture.
    pub experts: usize,
    /// Number of experts that are chosen for each token.
    pub chosen: usize,
}

/// Tensors with which an earlier layer predicts the choice of experts in a later mixture.
pub struct Outlook {
    normed: Tensor,
    choice: Choice,
}

impl Chooser {
    /// Creates the chooser of a mixture layer. `group` is the layer's index in the model's list of layers. The chooser
    /// adds its tensors to `tensors` before the layer adds any others.
    pub fn new(hidden: usize, (seat, mixture): (Seat<'_>, &Mixture), group: usize, tensors: &mut LayerTensors) -> Self {
        let norm = BranchNorm::new(seat, hidden, tensors);
        let shape = [mixture.experts, hidden];
        let gate = tensors.linear("mlp.gate", shape, mixture.biases, Access::Sweep);
        let bias =
            mixture.router.choice_bias.then(|| tensors.vector("mlp.gate.e_score_correction_bias", mixture.experts));
        let own_norm = mixture.router.own_norm.map(|norm| {
            let weight = tensors.vector("mlp.gate.scale", hidden);
            (NormWeight { weight, offset: 0.0, epsilon: norm.epsilon }, norm.factor)
        });
        let (experts, chosen) = (mixture.experts, mixture.chosen);
        let factors = mixture.router.expert_factors.then(|| tensors.vector("mlp.gate.per_expert_scale", experts));
        Self { group, norm, gate, own_norm, bias, factors, router: mixture.router.clone(), experts, chosen }
    }

    /// Reserves the tensors for choosing the experts of `rows` rows. `shared` is `None` if the mixture has no shared
    /// expert. Otherwise, the flag says whether the shared expert's result is multiplied by a factor for each row.
    pub fn choice(&self, rows: usize, shared: Option<bool>, area: &mut TensorArea) -> Choice {
        let has_factors = shared == Some(true);
        let of_vector = |vector: Option<TensorId>| if vector.is_some() { self.experts } else { 0 };
        let sizes = [of_vector(self.bias), of_vector(self.factors), if has_factors { rows } else { 0 }];
        // Each part begins on a cache line.
        let rooms = sizes.map(|len| len.next_multiple_of(LINE));
        let starts = [0, rooms[0], rooms[0] + rooms[1]];
        let begin: usize = rooms.iter().sum();
        let all = area.take(begin.saturating_add(rows.saturating_mul(self.experts)));
        let [bias, factors, of_shared] = [0, 1, 2].map(|part| all.part(starts[part]..starts[part] + sizes[part]));
        Choice {
            all,
            logits: all.part(begin..all.len()),
            bias: self.bias.map(|vector| (vector, bias)),
            factors: self.factors.map(|vector| (vector, factors)),
            shared: shared.map(|_| has_factors.then_some(of_shared)),
        }
    }

    /// Multiplies all rows of `x` by the router's matrix, and writes the products to `choice`. `x` is what the experts
    /// read. If the router reads something else, it is computed in `room`, which is as large as `x`.
    ///
    /// # Errors
    /// Fails if weights cannot be read, or if the device failed.
    pub fn multiply(&self, pass: &mut Pass<'_>, x: Tensor, room: Tensor, choice: &Choice) -> Result<(), ForwardError> {
        let x = self.own_input(pass, room)?.unwrap_or(x);
        pass.products(x, [&self.gate], [choice.logits], None)
    }

    /// Computes what the router reads in `out`, if this is not what the experts read.
    fn own_input(&self, pass: &mut Pass<'_>, out: Tensor) -> Result<Option<Tensor>, ForwardError> {
        let Some((NormWeight { weight, offset, epsilon }, by)) = self.own_norm else { return Ok(None) };
        let (x, weight) = (pass.hidden(), &pass.weights.vector(weight));
        pass.submit(&[Command::Norm { x, weight, offset, epsilon, out }, Command::Scale { x: out, by }])?;
        Ok(Some(out))
    }

    /// Chooses experts for all rows from the router's products. [`multiply`](Self::multiply) must have computed the
    /// products.
    ///
    /// # Errors
    /// Fails if the device failed.
    pub fn choose(&self, pass: &mut Pass<'_>, choice: &Choice) -> Result<(), ForwardError> {
        Ok(pass.route(&self.router, [self.chosen, self.experts], choice)?)
    }

    /// Reserves the tensors with which [`look_ahead`](Self::look_ahead) predicts the experts of `rows` rows.
    pub fn outlook(&self, rows: usize, area: &mut TensorArea) -> Outlook {
        let normed = area.take(rows.saturating_mul(self.gate.cols));
        Outlook { normed, choice: self.choice(rows, None, area) }
    }

    /// Adds to `needs` the memory for the norm and for products with the router's matrix.
    pub fn plan(&self, needs: &mut PassNeeds) {
        needs.product_cols = needs.product_cols.max(self.gate.cols);
        self.norm.plan(needs);
    }

    /// Predicts which experts this mixture will choose, and reports them to the source of weights, which may prefetch
    /// them. An earlier layer calls this method. The layers in between change the hidden states little, so most of the
    /// prediction is right. No result depends on the prediction.
    ///
    /// # Errors
    /// Fails if the device failed.
    pub fn look_ahead(&self, pass: &mut Pass<'_>, outlook: &Outlook) -> Result<(), ForwardError> {
        if !pass.weights.looks_ahead(self.group) {
            return Ok(());
        }
        let x = |pass: &mut Pass<'_>| match self.own_input(pass, outlook.normed)? {
            Some(x) => Ok(x),
            None => self.norm.peek(pass, outlook.normed),
        };
        if pass.products_out_of_turn(x, &self.gate, outlook.choice.logits)? {
            pass.guess_experts(self.group, &self.router, [self.chosen, self.experts], &outlook.choice)?;
        }
        Ok(())
    }
}

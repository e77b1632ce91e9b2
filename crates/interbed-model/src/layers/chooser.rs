//! What chooses the experts of a mixture: the norm of its branch, products with the router's matrix, and a rule.

use interbed_device::{PassNeeds, Tensor, TensorArea};
use interbed_weights::{Access, TensorId};

use super::branch_norm::BranchNorm;
use super::tensors::LayerTensors;
use crate::blueprint::{Branch, Mixture, Router};
use crate::pass::{Choice, ForwardError, Linear, Pass};

/// Numbers in a cache line.
const LINE: usize = 16;

/// See the module.
pub(super) struct Chooser {
    /// The index of its layer in the model's list.
    group: usize,
    /// The norm of the layer's branch.
    pub norm: BranchNorm,
    gate: Linear,
    bias: Option<TensorId>,
    router: Router,
    /// How many experts there are.
    pub experts: usize,
    /// How many of them each token goes through.
    pub chosen: usize,
}

/// A chooser's own tensors, with which it looks ahead.
pub struct Outlook {
    normed: Tensor,
    choice: Choice,
}

impl Chooser {
    /// The chooser of the layer at index `group` of the model's list, whose `tensors` begin with these.
    pub fn new(
        hidden: usize,
        (branch, mixture): (&Branch, &Mixture),
        group: usize,
        tensors: &mut LayerTensors,
    ) -> Self {
        let norm = BranchNorm::new(branch, hidden, tensors);
        let shape = [mixture.experts, hidden];
        let gate = tensors.linear("mlp.gate", shape, mixture.biases, Access::Sweep);
        let bias =
            mixture.router.choice_bias.then(|| tensors.vector("mlp.gate.e_score_correction_bias", mixture.experts));
        let (experts, chosen) = (mixture.experts, mixture.chosen);
        Self { group, norm, gate, bias, router: mixture.router.clone(), experts, chosen }
    }

    /// What `rows` rows choose by. `shared` says whether a shared expert, if there is one, has factors of its own.
    pub fn choice(&self, rows: usize, shared: Option<bool>, area: &mut TensorArea) -> Choice {
        let has_factors = shared == Some(true);
        let (bias, factors) = (if self.bias.is_some() { self.experts } else { 0 }, if has_factors { rows } else { 0 });
        // Each part begins on a cache line.
        let [bias_room, factor_room] = [bias, factors].map(|len| len.next_multiple_of(LINE));
        let logits = rows.saturating_mul(self.experts);
        let all = area.take(bias_room.saturating_add(factor_room).saturating_add(logits));
        let begin = bias_room + factor_room;
        Choice {
            all,
            logits: all.part(begin..all.len()),
            bias: self.bias.map(|vector| (vector, all.first(bias))),
            shared: shared.map(|_| has_factors.then(|| all.part(bias_room..bias_room + factors))),
        }
    }

    /// Computes the router's products of all rows.
    ///
    /// # Errors
    /// If weights cannot be read, or the device failed.
    pub fn multiply(&self, pass: &mut Pass<'_>, x: Tensor, choice: &Choice) -> Result<(), ForwardError> {
        pass.products(x, [&self.gate], [choice.logits], None)
    }

    /// Has the rule choose, once the products are there.
    ///
    /// # Errors
    /// If the device failed.
    pub fn choose(&self, pass: &mut Pass<'_>, choice: &Choice) -> Result<(), ForwardError> {
        Ok(pass.route(&self.router, [self.chosen, self.experts], choice)?)
    }

    /// Room to look ahead with `rows` rows.
    pub fn outlook(&self, rows: usize, area: &mut TensorArea) -> Outlook {
        let normed = area.take(rows.saturating_mul(self.gate.cols));
        Outlook { normed, choice: self.choice(rows, None, area) }
    }

    /// Adds to `needs` what it needs, which is all for products with its matrix.
    pub fn plan(&self, needs: &mut PassNeeds) {
        needs.product_cols = needs.product_cols.max(self.gate.cols);
        self.norm.plan(needs);
    }

    /// From a layer below: tells the source of weights what this one would choose if the hidden states came to it as
    /// they are now. What the layers between add to them is little beside what they are already, so that most of it is
    /// what it will choose. Nothing that is computed depends on it.
    ///
    /// # Errors
    /// If the device failed.
    pub fn look_ahead(&self, pass: &mut Pass<'_>, outlook: &Outlook) -> Result<(), ForwardError> {
        if !pass.weights.looks_ahead(self.group) {
            return Ok(());
        }
        let x = |pass: &mut Pass<'_>| self.norm.peek(pass, outlook.normed);
        if pass.products_out_of_turn(x, &self.gate, outlook.choice.logits)? {
            pass.guess_experts(self.group, &self.router, [self.chosen, self.experts], &outlook.choice)?;
        }
        Ok(())
    }
}

//! The feed-forward network that all tokens go through: a gated product, then one back to the hidden width.

use strata_device::{PassNeeds, Tensor, TensorArea};
use strata_kernels::Activation;
use strata_weights::{Access, GroupSpec, Role, TensorId};

use super::tensors::LayerTensors;
use super::{Layer, LayerState};
use crate::config::ModelConfig;
use crate::pass::{ForwardError, Linear, Pass, PassSize};

/// See the module.
pub struct DenseFfn {
    spec: GroupSpec,
    norm: TensorId,
    gate: Linear,
    up: Linear,
    down: Linear,
    activation: Activation,
    epsilon: f32,
    /// The factor of the layer's result before it is added to the hidden states.
    residual: f32,
}

impl DenseFfn {
    /// The network of decoder layer `layer`, at index `group` of the model's list.
    pub fn new(config: &ModelConfig, group: usize, layer: usize) -> Self {
        let (hidden, inner, has_bias) = (config.hidden_size, config.intermediate_size, config.mlp_bias);
        let name = format!("layer {layer}, ffn");
        let mut tensors = LayerTensors::new(group, name, Role::FeedForward, layer, format!("model.layers.{layer}."));
        let norm = tensors.vector("post_attention_layernorm.weight", hidden);
        let gate = tensors.linear("mlp.gate_proj", [inner, hidden], has_bias, Access::Sweep);
        // The activation takes a row of gate together with the same row of up.
        let up = tensors.linear("mlp.up_proj", [inner, hidden], has_bias, Access::SweepBeside);
        let down = tensors.linear("mlp.down_proj", [hidden, inner], has_bias, Access::Sweep);
        let (activation, epsilon, residual) = (config.activation, config.rms_norm_eps, config.residual_multiplier);
        Self { spec: tensors.finish(), norm, gate, up, down, activation, epsilon, residual }
    }

    /// The results of gate and up.
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
        needs.norm_cols = needs.norm_cols.max(self.gate.cols);
    }

    fn compute(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError> {
        let [gate, up] = self.scratch(pass.rows(), &mut pass.area());
        let normed = pass.norm(self.norm, self.epsilon)?;
        pass.products(normed, [&self.gate, &self.up], [gate, up], Some(self.activation))?;
        let branch = pass.branch();
        pass.products(gate, [&self.down], [branch], None)?;
        pass.add_branch(self.residual);
        Ok(())
    }
}

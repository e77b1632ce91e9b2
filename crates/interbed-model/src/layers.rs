//! A model as a list of layers, each of a kind. A kind says which tensors a layer has, what state it keeps for a
//! sequence, what memory a pass needs for it, and how it computes. Each kind is a file in `layers/`; which layers a
//! model has follows from its configuration, in this file.

mod attention;
mod branch_norm;
mod chooser;
mod dense_ffn;
mod embedding;
mod head;
mod moe_ffn;
mod tensors;

use interbed_device::PassNeeds;
use interbed_kernels::KvShape;
use interbed_weights::GroupSpec;

use crate::config::ModelConfig;
use crate::pass::{ForwardError, Pass, PassSize};
use attention::Attention;
use dense_ffn::DenseFfn;
use embedding::Embedding;
use head::Head;
use moe_ffn::MoeFfn;

pub use embedding::EMBEDDING_TENSOR;
pub use head::{HEAD_TENSOR, LOGIT_ROWS};

/// One layer of a model, of any kind.
pub trait Layer: Send + Sync {
    /// The tensors of the layer. The layer's handles name them by the layer's index in the list and the tensor's in the
    /// spec.
    fn spec(&self) -> &GroupSpec;

    /// What the layer keeps for each sequence from pass to pass.
    fn state(&self) -> LayerState;

    /// Adds to `needs` what passes of this `size` need.
    fn plan(&self, size: &PassSize, needs: &mut PassNeeds);

    /// Has the device compute the layer.
    ///
    /// # Errors
    /// If weights cannot be read, or the device failed.
    fn compute(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError>;
}

/// What a layer keeps for a sequence. A prefix of a sequence counts as computed once the states of all layers exist:
/// the KV blocks of its tokens and, for a layer that needs one, a snapshot of the layer's state after the last of these
/// tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerState {
    /// Nothing: each token is computed by itself.
    Nothing,
    /// Keys and values of every token, in KV blocks.
    Kv {
        /// The heads.
        shape: KvShape,
        /// How many positions a token sees, itself included; `None` means all.
        window: Option<usize>,
    },
}

/// All layers of a model, in the order of a pass.
pub fn layers_of(config: &ModelConfig) -> Vec<Box<dyn Layer>> {
    let mut layers: Vec<Box<dyn Layer>> = vec![Box::new(Embedding::new(config, 0))];
    for layer in 0..config.num_layers {
        let kv_layer = layers.iter().filter(|layer| matches!(layer.state(), LayerState::Kv { .. })).count();
        layers.push(Box::new(Attention::new(config, layers.len(), layer, kv_layer)));
        layers.push(match &config.mixture {
            Some(mixture) if mixture.layers[layer] => Box::new(MoeFfn::new(config, mixture, layers.len(), layer)),
            _ => Box::new(DenseFfn::new(config, layers.len(), layer)),
        });
    }
    layers.push(Box::new(Head::new(config, layers.len())));
    layers
}

/// The tensors that a model needs, in the order of a pass.
pub fn group_specs(config: &ModelConfig) -> Vec<GroupSpec> {
    layers_of(config).iter().map(|layer| layer.spec().clone()).collect()
}

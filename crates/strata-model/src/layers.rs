//! A model as a list of layers, each of a kind: what tensors it has, what state it keeps for a sequence, what memory a
//! pass needs for it, and how it computes. A kind is a file in `layers/`; which of them a model is made of follows from
//! its configuration, here.

mod attention;
mod dense_ffn;
mod embedding;
mod head;
mod tensors;

use strata_device::PassNeeds;
use strata_kernels::KvShape;
use strata_weights::GroupSpec;

use crate::config::ModelConfig;
use crate::pass::{ForwardError, Pass, PassSize};
use attention::Attention;
use dense_ffn::DenseFfn;
use embedding::Embedding;
use head::Head;

pub use embedding::EMBEDDING_TENSOR;
pub use head::HEAD_TENSOR;

/// One layer of a model, of any kind.
pub trait Layer: Send + Sync {
    /// The tensors that it has. The layer's handles name them by the layer's place in the list, and theirs in the spec.
    fn spec(&self) -> &GroupSpec;

    /// What it keeps for each sequence from pass to pass.
    fn state(&self) -> LayerState;

    /// Asks for what passes of this `size` need.
    fn plan(&self, size: &PassSize, needs: &mut PassNeeds);

    /// Has the device compute it.
    ///
    /// # Errors
    /// Weights could not be had, or the device failed.
    fn compute(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError>;
}

/// What a layer keeps for a sequence. A prefix of a sequence is computed once all of its layers' states are there: the
/// KV blocks of those tokens and, where a layer needs one, a snapshot of its state behind the last of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerState {
    /// Nothing: each token is computed by itself.
    Nothing,
    /// Keys and values of every token, in KV blocks.
    Kv(KvShape),
}

/// All layers of a model, in the order of a pass.
pub fn layers_of(config: &ModelConfig) -> Vec<Box<dyn Layer>> {
    let mut layers: Vec<Box<dyn Layer>> = vec![Box::new(Embedding::new(config, 0))];
    for layer in 0..config.num_layers {
        let kv_layer = layers.iter().filter(|layer| matches!(layer.state(), LayerState::Kv(_))).count();
        layers.push(Box::new(Attention::new(config, layers.len(), layer, kv_layer)));
        layers.push(Box::new(DenseFfn::new(config, layers.len(), layer)));
    }
    layers.push(Box::new(Head::new(config, layers.len())));
    layers
}

/// The tensors that a model needs, in the order of a pass.
pub fn group_specs(config: &ModelConfig) -> Vec<GroupSpec> {
    layers_of(config).iter().map(|layer| layer.spec().clone()).collect()
}

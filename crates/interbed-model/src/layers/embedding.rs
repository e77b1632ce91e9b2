//! The embedding: looks up a row of a table for each token, at the beginning of a pass.

use interbed_device::PassNeeds;
use interbed_weights::{Access, GroupSpec, Role, TensorId};

use super::Layer;
use super::tensors::LayerTensors;
use crate::blueprint::Blueprint;
use crate::kept::Kept;
use crate::pass::{ForwardError, Pass, PassSize};

/// Name of the embedding's tensor. A tied head uses this tensor too.
pub const EMBEDDING_TENSOR: &str = "model.embed_tokens.weight";

/// The layer that looks up the embedding of each token.
pub(super) struct Embedding {
    spec: GroupSpec,
    /// `[vocab, hidden]`
    table: TensorId,
    hidden: usize,
    multiplier: f32,
}

impl Embedding {
    /// Creates the embedding layer. `group` is the layer's index in the model's list of layers.
    pub fn new(blueprint: &Blueprint, group: usize) -> Self {
        let mut tensors = LayerTensors::new(group, "embedding", Role::Embedding, 0, "");
        let table = tensors.matrix(EMBEDDING_TENSOR, [blueprint.vocab_size, blueprint.hidden_size], Access::Rows);
        let (hidden, multiplier) = (blueprint.hidden_size, blueprint.embedding_factor);
        Self { table, hidden, multiplier, spec: tensors.finish() }
    }
}

impl Layer for Embedding {
    fn spec(&self) -> &GroupSpec {
        &self.spec
    }

    fn keeps(&self) -> Vec<Kept> {
        Vec::new()
    }

    fn plan(&self, _size: &PassSize, _needs: &mut PassNeeds) {}

    fn compute(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError> {
        pass.look_up(self.table, self.multiplier, pass.hidden(), self.hidden)
    }
}

//! A model as a list of layers, each of some kind. The kind decides which tensors a layer has, what state it keeps for
//! a sequence, what memory a pass needs for it, and how it computes. Each kind is a file in `layers/`; this file makes
//! the list of layers from a model's blueprint.

mod attention;
mod branch_norm;
mod chooser;
mod dense_ffn;
mod embedding;
mod gated_delta;
mod head;
mod moe_ffn;
mod tensors;

use interbed_device::PassNeeds;
use interbed_weights::GroupSpec;

use crate::blueprint::{Blueprint, Branch, Part};
use crate::kept::Kept;
use crate::pass::{ForwardError, Pass, PassSize};
use attention::Attention;
use dense_ffn::DenseFfn;
use embedding::Embedding;
use gated_delta::GatedDelta;
use head::Head;
use moe_ffn::MoeFfn;

pub use embedding::EMBEDDING_TENSOR;
pub use head::{HEAD_TENSOR, LOGIT_ROWS};

/// A layer of a model, such as the embedding, an attention layer, a feed-forward network or the head.
pub trait Layer: Send + Sync {
    /// Returns the specs of the layer's tensors. A tensor's handle has the layer's index in the list and the tensor's
    /// index in this spec.
    fn spec(&self) -> &GroupSpec;

    /// Returns what the layer keeps for each sequence from pass to pass. [`Pass::kept`] says where the layer finds it.
    fn keeps(&self) -> Vec<Kept>;

    /// Adds to `needs` the memory that passes of this `size` need for the layer.
    fn plan(&self, size: &PassSize, needs: &mut PassNeeds);

    /// Has the device compute the layer.
    ///
    /// # Errors
    /// Fails if weights cannot be read, or if the device failed.
    fn compute(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError>;
}

/// Position of a layer in a model.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// The layer's index in the model's list of layers.
    group: usize,
    /// Number of the decoder layer that the layer belongs to.
    layer: usize,
}

/// Returns all layers of a model, in the order in which a forward pass computes them.
///
/// # Panics
/// Panics if the blueprint has a part that no layer can compute. [`Blueprint::refuse_uncomputed`] finds such parts.
pub fn layers_of(blueprint: &Blueprint) -> Vec<Box<dyn Layer>> {
    let branches: Vec<(Place, &Branch)> = {
        let all = blueprint.layers.iter().enumerate();
        let all = all.flat_map(|(layer, of)| of.branches.iter().map(move |branch| (layer, branch)));
        all.enumerate().map(|(index, (layer, branch))| (Place { group: index + 1, layer }, branch)).collect()
    };
    let hidden = blueprint.hidden_size;
    let mut layers: Vec<Box<dyn Layer>> = vec![Box::new(Embedding::new(blueprint, 0))];
    // After the last layer that keeps anything, no token depends on another.
    let last = branches.iter().rposition(|(_, branch)| !branch.part.states().is_empty());
    for (index, &(place, branch)) in branches.iter().enumerate() {
        layers.push(match &branch.part {
            Part::Attention(attention) => {
                Box::new(Attention::new(blueprint, (branch, attention), place).last_if(last == Some(index)))
            }
            Part::GatedDelta(delta) => {
                Box::new(GatedDelta::new(hidden, (branch, delta), place).last_if(last == Some(index)))
            }
            Part::Dense(dense) => Box::new(DenseFfn::new(hidden, (branch, dense), place)),
            Part::Mixture(mixture) => {
                let behind = branches[index + 1..].iter().find_map(|(place, branch)| match &branch.part {
                    Part::Mixture(mixture) => Some(((*branch, mixture), *place)),
                    _ => None,
                });
                Box::new(MoeFfn::new(hidden, (branch, mixture), place, behind))
            }
            _ => panic!("a blueprint with parts that no layer computes is refused before its layers are built"),
        });
    }
    let place = Place { group: layers.len(), layer: blueprint.layers.len() };
    layers.push(Box::new(Head::new(blueprint, place)));
    layers
}

/// Returns the specs of all tensors that a model needs, in the order in which a forward pass uses them.
///
/// # Panics
/// Panics if [`layers_of`] panics for this blueprint.
pub fn group_specs(blueprint: &Blueprint) -> Vec<GroupSpec> {
    layers_of(blueprint).iter().map(|layer| layer.spec().clone()).collect()
}

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
mod mamba;
mod moe_ffn;
mod short_convolution;
mod table_gate;
mod table_rows;
mod tensors;

use interbed_device::PassNeeds;
use interbed_weights::GroupSpec;

use crate::blueprint::{Blueprint, Branch, KvRows, Part, State};
use crate::kept::Kept;
use crate::pass::{ForwardError, Pass, PassSize};
use attention::Attention;
use branch_norm::Seat;
use dense_ffn::DenseFfn;
use embedding::Embedding;
use gated_delta::GatedDelta;
use head::Head;
use mamba::Mamba;
use moe_ffn::MoeFfn;
use short_convolution::ShortConvolution;
use table_gate::TableGate;
use table_rows::TableRows;

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
    let hidden = blueprint.hidden_size;
    let mut layers: Vec<Box<dyn Layer>> = vec![Box::new(Embedding::new(blueprint, 0))];
    for table in &blueprint.tables {
        let projection = table.projection.expect("other tables are refused before layers are built");
        let place = Place { group: layers.len(), layer: 0 };
        layers.push(Box::new(TableRows::new([blueprint.vocab_size, hidden], (table, projection), place)));
    }
    let seats = seats_of(blueprint, layers.len());
    // Behind the last layer that keeps anything for a sequence, only those rows are needed whose results are wanted.
    let last = seats.iter().rposition(|(_, seat)| keeps_rows(&seat.branch.part));
    for (index, &(place, seat)) in seats.iter().enumerate() {
        let is_last = last == Some(index);
        layers.push(match &seat.branch.part {
            Part::Attention(attention) => {
                let source = match attention.rows {
                    KvRows::Own => None,
                    KvRows::Of(layer) => {
                        seats.iter().find(|(place, _)| place.layer == layer).map(|(place, _)| place.group)
                    }
                };
                Box::new(Attention::new(blueprint, (seat, attention), place, source).last_if(is_last))
            }
            Part::GatedDelta(delta) => Box::new(GatedDelta::new(hidden, (seat, delta), place).last_if(is_last)),
            Part::Convolution(convolution) => {
                Box::new(ShortConvolution::new(hidden, (seat, convolution), place).last_if(is_last))
            }
            Part::Mamba(mamba) => Box::new(Mamba::new(hidden, (seat, mamba), place).last_if(is_last)),
            Part::Dense(dense) => Box::new(DenseFfn::new(hidden, (seat, dense), place)),
            Part::Table(lookup) => Box::new(TableGate::new(hidden, (seat, lookup), place)),
            Part::Mixture(mixture) => {
                let behind = seats[index + 1..].iter().find_map(|&(place, seat)| match &seat.branch.part {
                    Part::Mixture(mixture) => Some(((seat, mixture), place)),
                    _ => None,
                });
                Box::new(MoeFfn::new(hidden, (seat, mixture), place, behind))
            }
            _ => panic!("a blueprint with parts that no layer computes is refused before its layers are built"),
        });
    }
    let place = Place { group: layers.len(), layer: blueprint.layers.len() };
    layers.push(Box::new(Head::new(blueprint, place)));
    layers
}

/// Returns the branches that are computed by a layer each, in order: the terms of a sum come one after the other. The
/// first of these layers has the index `first` in the model's list.
fn seats_of(blueprint: &Blueprint, first: usize) -> Vec<(Place, Seat<'_>)> {
    let mut seats = Vec::new();
    for (number, layer) in blueprint.layers.iter().enumerate() {
        for branch in &layer.branches {
            let terms: Vec<(&Branch, Option<(&Branch, bool)>)> = match &branch.part {
                Part::Sum(terms) => {
                    let last = terms.len() - 1;
                    terms.iter().enumerate().map(|(term, inner)| (inner, Some((branch, term == last)))).collect()
                }
                _ => vec![(branch, None)],
            };
            for (branch, sum) in terms {
                let place = Place { group: first + seats.len(), layer: number };
                seats.push((place, Seat { branch, sum, has_factor: false }));
            }
        }
        if let Some((_, seat)) = seats.last_mut() {
            seat.has_factor = layer.has_factor;
        }
    }
    seats
}

/// Returns whether a part keeps something of its own for each sequence.
fn keeps_rows(part: &Part) -> bool {
    part.states().iter().any(|state| !matches!(state, State::SharedKv { .. }))
}

/// Returns the specs of all tensors that a model needs, in the order in which a forward pass uses them.
///
/// # Panics
/// Panics if [`layers_of`] panics for this blueprint.
pub fn group_specs(blueprint: &Blueprint) -> Vec<GroupSpec> {
    layers_of(blueprint).iter().map(|layer| layer.spec().clone()).collect()
}

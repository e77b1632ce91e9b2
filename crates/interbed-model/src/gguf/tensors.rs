//! Check that a GGUF file has no tensors that its model does not use.

use std::collections::HashSet;

use interbed_weights::{GroupSpec, gguf_name};

use super::GgufModel;
use crate::config::ConfigProblem;
use crate::families::{FACTORS, FACTORS_LONG, FACTORS_SHORT};

/// Refuses tensors that the model's groups do not ask for: a model with such tensors computes something else.
pub(super) fn check(model: &GgufModel<'_>, specs: &[GroupSpec]) -> Result<(), ConfigProblem> {
    let wanted: HashSet<&str> = specs.iter().flat_map(|group| &group.tensors).map(|spec| spec.name.as_str()).collect();
    // Layers behind the last guess at further tokens; they are counted, and not computed.
    let layers = specs.last().map_or(0, |head| head.layer);
    let guesses = |name: &str| {
        let layer = ["model.layers.", "blk."].iter().find_map(|prefix| name.strip_prefix(prefix));
        let layer = layer.and_then(|rest| rest.split_once('.')).and_then(|(layer, _)| layer.parse().ok());
        layer.is_some_and(|layer: usize| layer >= layers) && guessing_layers(model) > 0
    };
    let mut others = model.catalog.tensors().map(|(name, _)| name);
    match others.find(|name| !wanted.contains(name) && !is_beside_the_weights(name) && !guesses(name)) {
        None => Ok(()),
        Some(name) => {
            let shown: String = name.chars().take(120).collect();
            Err(ConfigProblem::UnwantedTensor { tensor: gguf_name(&shown).unwrap_or(shown) })
        }
    }
}

/// Whether a tensor may be there without being a weight of the model: rope's frequencies as old converters stored them,
/// which follow from the metadata.
fn is_beside_the_weights(name: &str) -> bool {
    [FACTORS, FACTORS_SHORT, FACTORS_LONG].contains(&name)
        || name.strip_suffix(".attn_rot_embd.weight").is_some_and(|block| block.starts_with("blk."))
}

/// Returns the number of layers behind the last decoder layer that guess at further tokens.
fn guessing_layers(model: &GgufModel<'_>) -> u64 {
    let name = model.metadata.text("general.architecture").ok().flatten().unwrap_or_default();
    model.metadata.count(&format!("{name}.nextn_predict_layers")).ok().flatten().unwrap_or(0)
}

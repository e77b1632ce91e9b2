//! Qwen 1.5 and 2 with mixtures, and a shared expert behind a gate.

use interbed_kernels::RopeStyle;
use serde_json::Value;

use super::qwen2;
use super::shared::habits::{Bias, Habits};
use super::shared::experts::{self, EXACT};
use super::shared::windows;
use super::{Family, GgufForm, GgufWriting};
use crate::blueprint::{Blueprint, Mixture, SharedExpert};
use crate::config_error::ConfigProblem;
use crate::keys::json::Fields;

pub(super) static FAMILY: Family = Family {
    name: "Qwen2Moe",
    model_types: &["qwen2_moe"],
    gguf: Some(
        GgufForm::new(&["qwen2moe"], RopeStyle::Halves)
            .written(GgufWriting { has_expert_width: true, ..GgufWriting::PLAIN }),
    ),
    habits: Habits { input_bias: Bias::Stated("qkv_bias", true), has_experts: true, ..qwen2::HABITS },
    read: |keys, mut decoder| {
        keys.json().map(windows::refuse).transpose()?;
        let router = experts::softmax(experts::normalises(keys, false, false)?.then_some(EXACT));
        experts::refuse_other_routers(keys, &router)?;
        let chosen = experts::chosen(keys, "num_experts_per_tok", 4)?;
        let shared = experts::shared_width(keys, 5632, decoder.inner)?;
        let mixture = Mixture {
            experts: experts::count(keys, "num_experts", 60)?,
            chosen,
            expert_width: experts::width(keys, "moe_intermediate_size", 1408, decoder.inner / chosen)?,
            activation: decoder.activation,
            router,
            gated: true,
            biases: false,
            shared: Some(SharedExpert { width: shared, gated: true }),
        };
        let layers = match keys.json() {
            Some(fields) => sparse_layers(fields, decoder.layers)?,
            None => vec![true; decoder.layers],
        };
        decoder.use_experts(keys, mixture, layers)?;
        Ok(decoder.blueprint())
    },
    ..Family::PLAIN
};

/// Reads which layers have experts: every `decoder_sparse_step`-th, except those in `mlp_only_layers`.
pub(super) fn sparse_layers(fields: &Fields<'_>, num_layers: usize) -> Result<Vec<bool>, ConfigProblem> {
    let step = fields.count("decoder_sparse_step", 1..=Blueprint::LAYERS_MAX)?.unwrap_or(1);
    let mut layers: Vec<bool> = (1..=num_layers).map(|layer| layer.is_multiple_of(step)).collect();
    match fields.get("mlp_only_layers") {
        None => {}
        Some(Value::Array(dense)) => {
            for layer in dense {
                let Some(layer) = layer.as_u64() else {
                    return Err(fields.wrong_type("mlp_only_layers", "a list of layers", layer));
                };
                if let Some(is_mixture) = usize::try_from(layer).ok().and_then(|layer| layers.get_mut(layer)) {
                    *is_mixture = false;
                }
            }
        }
        Some(other) => return Err(fields.wrong_type("mlp_only_layers", "a list of layers", other)),
    }
    Ok(layers)
}

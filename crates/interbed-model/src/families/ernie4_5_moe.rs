//! Ernie 4.5 with mixtures: rotated pairs are neighbours.

use interbed_kernels::RopeStyle;

use super::shared::habits::Habits;
use super::shared::experts::{self, EXPERTS_MAX};
use super::{Family, GgufForm};
use crate::blueprint::{Blueprint, Floor, Mixture, Router};
use crate::config_error::ConfigProblem;
use crate::keys::{Keys, key};

pub(super) static FAMILY: Family = Family {
    name: "Ernie45Moe",
    model_types: &["ernie4_5_moe"],
    gguf: Some(GgufForm::new(&["ernie4_5-moe"], RopeStyle::Neighbours)),
    habits: Habits {
        vocab_size: 103_424,
        inner: 12_288,
        kv_heads: Some(4),
        positions: 131_072,
        epsilon: 1e-5,
        theta: 500_000.0,
        is_tied: true,
        has_experts: true,
        ..Habits::PLAIN
    },
    read: |keys, mut decoder| {
        for rope in &mut decoder.ropes {
            rope.style = RopeStyle::Neighbours;
        }
        let expert_width = experts::width(keys, "moe_intermediate_size", 1536, decoder.inner)?;
        let least = keys.number(key("moe_norm_min", ""), |least| least > 0.0, "a number above 0")?.unwrap_or(1e-12);
        let router = Router { choice_bias: true, ..experts::softmax(Some(Floor::Least(least as f32))) };
        experts::refuse_other_routers(keys, &router)?;
        let shared = experts::optional(keys, key("moe_num_shared_experts", "expert_shared_count"), 0..=EXPERTS_MAX)?;
        let mixture = Mixture {
            experts: experts::count(keys, "moe_num_experts", 64)?,
            chosen: experts::chosen(keys, "moe_k", 6)?,
            expert_width,
            activation: decoder.activation,
            router,
            gated: true,
            biases: false,
            shared: experts::shared(shared.unwrap_or(if keys.json().is_some() { 2 } else { 0 }), expert_width),
        };
        let layers = layers_with_experts(keys, decoder.layers)?;
        decoder.use_experts(keys, mixture, layers)?;
        Ok(decoder.blueprint())
    },
    ..Family::PLAIN
};

/// Reads which layers have experts: every `moe_layer_interval`-th from `moe_layer_start_index` to
/// `moe_layer_end_index`, where -1 is the last.
fn layers_with_experts(keys: &Keys<'_>, num_layers: usize) -> Result<Vec<bool>, ConfigProblem> {
    let max = Blueprint::LAYERS_MAX;
    let (interval, start, end) = match keys {
        Keys::Json(fields) => {
            let interval = fields.count("moe_layer_interval", 1..=max)?.unwrap_or(1);
            let start = fields.count("moe_layer_start_index", 0..=max)?.unwrap_or(1);
            let end = match fields.get("moe_layer_end_index").and_then(serde_json::Value::as_i64) {
                Some(-1) => num_layers,
                _ => fields.count("moe_layer_end_index", 0..=max)?.unwrap_or(num_layers),
            };
            (interval, start, end)
        }
        Keys::Gguf(gguf) => {
            let interval = gguf.count_within("interleave_moe_layer_step", 0..=max)?.unwrap_or(1).max(1);
            (interval, gguf.count_within("leading_dense_block_count", 0..=max)?.unwrap_or(0), num_layers)
        }
    };
    Ok((0..num_layers).map(|layer| (layer + 1).is_multiple_of(interval) && (start..=end).contains(&layer)).collect())
}

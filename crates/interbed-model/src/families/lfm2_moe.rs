//! LFM2 and LFM2.5 with experts: the layers of `lfm2.rs`, and experts chosen by sigmoids behind a few dense layers.

use interbed_kernels::RopeStyle;
use serde_json::json;

use super::lfm2;
use super::presets::Config;
use super::shared::experts;
use super::shared::habits::Habits;
use super::{Family, GgufForm, GgufWriting};
use crate::blueprint::{Floor, Mixture, Router, Scores};
use crate::config_error::ConfigProblem;
use crate::keys::{Keys, key};

pub(super) static FAMILY: Family = Family {
    name: "LFM2-MoE",
    model_types: &["lfm2_moe"],
    gguf: Some(GgufForm::new(&["lfm2moe"], RopeStyle::Halves).written(GgufWriting {
        normalises: true,
        has_expert_width: true,
        has_leading_layers: true,
        ..lfm2::WRITTEN
    })),
    habits: Habits { hidden: 2048, inner: 7168, has_experts: true, ..lfm2::HABITS },
    read: |keys, mut decoder| {
        lfm2::read_layers(keys, &mut decoder)?;
        let router = router(keys)?;
        experts::refuse_other_routers(keys, &router)?;
        experts::refuse_shared(keys)?;
        let mixture = Mixture {
            experts: experts::count(keys, "num_experts", 32)?,
            chosen: experts::chosen(keys, "num_experts_per_tok", 4)?,
            expert_width: experts::width(keys, "moe_intermediate_size", WIDTH, decoder.inner)?,
            activation: decoder.activation,
            router,
            gated: true,
            biases: false,
            shared: None,
        };
        let leading = key("num_dense_layers", "leading_dense_block_count");
        // What an absent key means differs between the formats.
        let absent = if keys.json().is_some() { 2 } else { 0 };
        let dense = experts::optional(keys, leading, 0..=decoder.layers)?.unwrap_or(absent);
        let layers = (0..decoder.layers).map(|layer| layer >= dense).collect();
        decoder.use_experts(keys, mixture, layers)?;
        Ok(lfm2::blueprint(decoder))
    },
    presets: &[("lfm2-8b-a1b", lfm2_8b_a1b)],
    ..Family::PLAIN
};

/// The inner width of an expert, unless the configuration says otherwise.
const WIDTH: usize = 1792;
/// What is added to the sum by which the weights of a token's experts are divided.
const FLOOR: Floor = Floor::Plus(1e-6);

/// Reads how experts are chosen. In GGUF files, the bias of the choice is there or not, and the rest is fixed.
fn router(keys: &Keys<'_>) -> Result<Router, ConfigProblem> {
    let of_all = Router { scores: Scores::Sigmoid, choice_bias: true, ..experts::softmax(Some(FLOOR)) };
    let Some(fields) = keys.json() else { return Ok(of_all) };
    let scale = fields.number("routed_scaling_factor", |scale| scale > 0.0, "a number above 0")?;
    Ok(Router {
        choice_bias: fields.flag("use_expert_bias")?.unwrap_or(true),
        normalise: experts::normalises(keys, true, true)?.then_some(FLOOR),
        scale: scale.unwrap_or(1.0) as f32,
        ..of_all
    })
}

fn lfm2_8b_a1b() -> Config {
    lfm2::published(json!({
        "architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "hidden_size": 2048,
        "intermediate_size": 7168, "moe_intermediate_size": WIDTH, "num_hidden_layers": 24, "num_attention_heads": 32,
        "num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4, "use_expert_bias": true,
        "norm_topk_prob": true, "routed_scaling_factor": 1.0, "layer_types": lfm2::types(24, &[2, 6, 10, 14, 18, 21]),
    }))
}

//! GLM-4.5 to 4.7: experts chosen by sigmoids behind a few dense layers, half of each head rotated.

use interbed_kernels::RopeStyle;
use serde_json::json;

use super::presets::{Config, with};
use super::shared::habits::{Bias, Habits};
use super::shared::experts::{self, EXPERTS_MAX};
use super::shared::rope::Rotated;
use super::{Family, GgufForm};
use crate::blueprint::{Floor, Groups, HeadNorms, Mixture, Router, Scores};
use crate::config_error::ConfigProblem;
use crate::keys::{Keys, key};

pub(super) static FAMILY: Family = Family {
    name: "Glm4Moe",
    model_types: &["glm4_moe"],
    gguf: Some(GgufForm::new(&["glm4moe"], RopeStyle::Halves)),
    habits: Habits {
        vocab_size: 151_552,
        inner: 10_944,
        kv_heads: Some(8),
        head_dim: Some(128),
        positions: 131_072,
        epsilon: 1e-5,
        bos: None,
        eos: None,
        input_bias: Bias::Stated("attention_bias", false),
        rotated: Rotated::Share(0.5),
        has_experts: true,
        ..Habits::PLAIN
    },
    read: |keys, mut decoder| {
        // GGUF files have no key for the norms: their tensors are there or not.
        let has_norms = match keys {
            Keys::Json(fields) => fields.flag("use_qk_norm")?.unwrap_or(false),
            Keys::Gguf(gguf) => gguf.has_in_first_layer("self_attn.q_norm.weight"),
        };
        if has_norms {
            decoder.norm_heads(HeadNorms::EachBefore);
        }
        let router = router(keys)?;
        if let Some(gguf) = keys.gguf() {
            experts::refuse_other_scores(gguf, router.scores)?;
        }
        let expert_width = experts::width(keys, "moe_intermediate_size", 1408, decoder.inner)?;
        let shared = experts::optional(keys, key("n_shared_experts", "expert_shared_count"), 0..=EXPERTS_MAX)?;
        let leading = key("first_k_dense_replace", "leading_dense_block_count");
        let dense = experts::optional(keys, leading, 0..=decoder.layers)?;
        // What an absent key means differs between the formats.
        let absent = usize::from(keys.json().is_some());
        let mixture = Mixture {
            experts: experts::count(keys, "n_routed_experts", 128)?,
            chosen: experts::chosen(keys, "num_experts_per_tok", 8)?,
            expert_width,
            activation: decoder.activation,
            router,
            gated: true,
            biases: false,
            shared: experts::shared(shared.unwrap_or(absent), expert_width),
        };
        let layers = (0..decoder.layers).map(|layer| layer >= dense.unwrap_or(absent)).collect();
        decoder.use_experts(keys, mixture, layers)?;
        Ok(decoder.blueprint())
    },
    presets: &[
        ("glm-4.5-air", glm_4_5_air),
    ],
    ..Family::PLAIN
};

/// Reads a router that scores by sigmoids.
pub(super) fn router(keys: &Keys<'_>) -> Result<Router, ConfigProblem> {
    // Zero stands for absence in GGUF files.
    let count = |json, gguf| {
        let least = usize::from(keys.json().is_some());
        Ok::<_, ConfigProblem>(experts::optional(keys, key(json, gguf), least..=EXPERTS_MAX)?.unwrap_or(1).max(1))
    };
    let groups = Groups {
        count: count("n_group", "expert_group_count")?,
        kept: count("topk_group", "expert_group_used_count")?,
    };
    let is_absent = |scale: f64| scale == 0.0 && keys.gguf().is_some();
    let scale_key = key("routed_scaling_factor", "expert_weights_scale");
    let scale = keys.number(scale_key, |scale| scale > 0.0 || is_absent(scale), "a number above 0")?;
    let normalises = keys.flag(key("norm_topk_prob", "expert_weights_norm"))?.unwrap_or(true);
    Ok(Router {
        scores: Scores::Sigmoid,
        choice_bias: true,
        groups: (groups.count > 1).then_some(groups),
        normalise: normalises.then_some(Floor::Plus(1e-20)),
        scale: scale.filter(|&scale| scale != 0.0).unwrap_or(1.0) as f32,
        own_norm: None,
        expert_factors: false,
        by_token: false,
    })
}

fn glm_4_5_air() -> Config {
    with(
        json!({
            "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "torch_dtype": "bfloat16",
            "vocab_size": 151_552, "hidden_size": 4096, "intermediate_size": 10_944, "num_hidden_layers": 46,
            "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
            "moe_intermediate_size": 1408, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8,
            "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 1.0,
            "first_k_dense_replace": 1, "attention_bias": true, "use_qk_norm": false, "partial_rotary_factor": 0.5,
            "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0,
            "rope_scaling": null, "tie_word_embeddings": false, "eos_token_id": [151_329, 151_336, 151_338],
        }),
        json!({}),
    )
}

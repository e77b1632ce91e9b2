//! OLMoE: mixtures, and norms over all query heads together, and over all key heads.

use interbed_kernels::RopeStyle;
use serde_json::json;

use super::presets::{Config, with};
use super::shared::habits::{Bias, Habits};
use super::shared::experts::{self, EXACT};
use super::{Family, GgufForm, GgufWriting};
use crate::blueprint::{HeadNorms, Mixture};

pub(super) static FAMILY: Family = Family {
    name: "Olmoe",
    model_types: &["olmoe"],
    gguf: Some(
        GgufForm::new(&["olmoe"], RopeStyle::Halves)
            .written(GgufWriting { norms: Some(HeadNorms::Whole), ..GgufWriting::PLAIN }),
    ),
    habits: Habits {
        vocab_size: 50_304,
        inner: 2048,
        positions: 4096,
        epsilon: 1e-5,
        bos: None,
        eos: Some(50_279),
        input_bias: Bias::Stated("attention_bias", false),
        output_bias: Bias::Stated("attention_bias", false),
        has_experts: true,
        inner_is_of_experts: true,
        ..Habits::PLAIN
    },
    read: |keys, mut decoder| {
        decoder.norm_heads(HeadNorms::Whole);
        let router = experts::softmax(experts::normalises(keys, false, false)?.then_some(EXACT));
        experts::refuse_other_routers(keys, &router)?;
        let mixture = Mixture {
            experts: experts::count(keys, "num_experts", 64)?,
            chosen: experts::chosen(keys, "num_experts_per_tok", 8)?,
            expert_width: decoder.inner,
            activation: decoder.activation,
            router,
            gated: true,
            biases: false,
            shared: None,
        };
        let all = vec![true; decoder.layers];
        decoder.use_experts(keys, mixture, all)?;
        Ok(decoder.blueprint())
    },
    presets: &[
        ("olmoe-1b-7b", olmoe_1b_7b),
    ],
    ..Family::PLAIN
};

fn olmoe_1b_7b() -> Config {
    with(
        json!({
            "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "torch_dtype": "bfloat16",
            "vocab_size": 50_304, "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16,
            "num_attention_heads": 16, "num_key_value_heads": 16, "hidden_act": "silu", "num_experts": 64,
            "num_experts_per_tok": 8, "norm_topk_prob": false, "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "rope_scaling": null, "attention_bias": false,
            "clip_qkv": null, "tie_word_embeddings": false, "eos_token_id": 50_279,
        }),
        json!({}),
    )
}

//! Qwen 3 with mixtures.

use interbed_kernels::RopeStyle;
use serde_json::{Value, json};

use super::presets::{Config, with};
use super::shared::habits::Habits;
use super::shared::experts::{self, EXACT};
use super::shared::windows;
use super::{Family, GgufForm, GgufWriting};
use super::{qwen2_moe, qwen3};
use crate::blueprint::{HeadNorms, Mixture};

pub(super) static FAMILY: Family = Family {
    name: "Qwen3Moe",
    model_types: &["qwen3_moe"],
    gguf: Some(
        GgufForm::new(&["qwen3moe"], RopeStyle::Halves)
            .written(GgufWriting { normalises: true, has_expert_width: true, ..qwen3::WRITTEN }),
    ),
    habits: Habits { has_experts: true, ..qwen3::HABITS },
    read: |keys, mut decoder| {
        decoder.norm_heads(HeadNorms::EachBefore);
        keys.json().map(windows::refuse).transpose()?;
        let router = experts::softmax(experts::normalises(keys, false, true)?.then_some(EXACT));
        experts::refuse_other_routers(keys, &router)?;
        let mixture = Mixture {
            experts: experts::count(keys, "num_experts", 128)?,
            chosen: experts::chosen(keys, "num_experts_per_tok", 8)?,
            expert_width: experts::width(keys, "moe_intermediate_size", 768, decoder.inner)?,
            activation: decoder.activation,
            router,
            gated: true,
            biases: false,
            shared: None,
        };
        let layers = match keys.json() {
            Some(fields) => qwen2_moe::sparse_layers(fields, decoder.layers)?,
            None => vec![true; decoder.layers],
        };
        decoder.use_experts(keys, mixture, layers)?;
        Ok(decoder.blueprint())
    },
    presets: &[
        ("qwen3-30b-a3b", || {
            qwen_3_moe(json!({
                "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
                "moe_intermediate_size": 768,
            }))
        }),
        ("qwen3-235b-a22b", || {
            qwen_3_moe(json!({
                "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 94, "num_attention_heads": 64,
                "moe_intermediate_size": 1536,
            }))
        }),
    ],
    ..Family::PLAIN
};

fn qwen_3_moe(more: Value) -> Config {
    let base = json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_key_value_heads": 4,
        "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "max_window_layers": 48, "tie_word_embeddings": false,
    });
    with(Value::Object(qwen3::qwen_3(base)), more)
}

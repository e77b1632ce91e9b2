//! Qwen 3: norms on query and key heads.

use interbed_kernels::RopeStyle;
use serde_json::{Value, json};

use super::presets::{Config, with};
use super::qwen2;
use super::shared::habits::{Bias, Habits};
use super::shared::windows;
use super::{Family, GgufForm, GgufWriting};
use crate::blueprint::HeadNorms;

pub(super) static FAMILY: Family = Family {
    name: "Qwen3",
    model_types: &["qwen3"],
    gguf: Some(GgufForm::new(&["qwen3"], RopeStyle::Halves).written(WRITTEN)),
    habits: Habits { head_dim: Some(128), ..HABITS },
    read: |keys, mut decoder| {
        decoder.norm_heads(HeadNorms::EachBefore);
        if let Some(fields) = keys.json() {
            decoder.windows = windows::if_used(fields, decoder.layers)?;
        }
        Ok(decoder.blueprint())
    },
    presets: &[
        ("qwen3-0.6b", || {
            qwen_3(json!({
                "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
                "max_window_layers": 28, "tie_word_embeddings": true,
            }))
        }),
        ("qwen3-8b", || {
            qwen_3(json!({
                "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36, "num_attention_heads": 32,
                "max_window_layers": 36, "tie_word_embeddings": false,
            }))
        }),
        ("qwen3-32b", || {
            qwen_3(json!({
                "hidden_size": 5120, "intermediate_size": 25_600, "num_hidden_layers": 64, "num_attention_heads": 64,
                "max_window_layers": 64, "tie_word_embeddings": false,
            }))
        }),
    ],
    ..Family::PLAIN
};

/// What models named Qwen 3 take for granted.
pub(super) const HABITS: Habits = Habits {
    input_bias: Bias::Stated("attention_bias", false),
    output_bias: Bias::Stated("attention_bias", false),
    ..qwen2::HABITS
};

/// What readers of their GGUF files assume.
pub(super) const WRITTEN: GgufWriting =
    GgufWriting { norms: Some(HeadNorms::EachBefore), ..GgufWriting::PLAIN };

/// A configuration of the dense or mixed models, with more keys.
pub(super) fn qwen_3(more: Value) -> Config {
    let base = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16",
        "vocab_size": 151_936, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
        "attention_bias": false, "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
        "rope_scaling": null, "sliding_window": null, "use_sliding_window": false,
        "bos_token_id": 151_643, "eos_token_id": 151_645,
    });
    with(base, more)
}

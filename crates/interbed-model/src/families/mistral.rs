//! Mistral: Llama with a sliding window in all layers, or in none.

use interbed_kernels::RopeStyle;
use serde_json::json;

use super::presets::{Config, with};
use super::shared::habits::Habits;
use super::shared::windows;
use super::{Family, GgufForm, GgufWriting};

pub(super) static FAMILY: Family = Family {
    name: "Mistral",
    model_types: &["mistral"],
    within: &["mistral3"],
    // Readers know files of Mistral as those of Llama.
    gguf: Some(GgufForm::new(&["mistral"], RopeStyle::Neighbours).written_as("llama", GgufWriting::PLAIN)),
    habits: Habits {
        inner: 14_336,
        kv_heads: Some(8),
        positions: 131_072,
        slides_in_gguf: |_| true,
        ..Habits::PLAIN
    },
    read: |keys, mut decoder| {
        if let Some(fields) = keys.json() {
            // A window holds for every layer, whatever `layer_types` says.
            decoder.windows = vec![windows::read_or_default(fields)?; decoder.layers];
        }
        Ok(decoder.blueprint())
    },
    presets: &[
        ("mistral-7b", mistral_7b),
    ],
    ..Family::PLAIN
};

/// The configuration of Mistral-7B-v0.1.
pub(super) fn mistral_7b() -> Config {
    with(
        json!({
            "architectures": ["MistralForCausalLM"], "model_type": "mistral", "torch_dtype": "bfloat16",
            "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
            "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "sliding_window": 4096,
            "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2,
        }),
        json!({}),
    )
}

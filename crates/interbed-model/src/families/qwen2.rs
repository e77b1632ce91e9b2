//! Qwen 2 and 2.5: biases on query, key and value.

use interbed_kernels::RopeStyle;
use serde_json::{Value, json};

use super::presets::{Config, with};
use super::shared::habits::{Bias, Habits};
use super::shared::windows;
use super::{Family, GgufForm, GgufWriting};

pub(super) static FAMILY: Family = Family {
    name: "Qwen2",
    model_types: &["qwen2"],
    gguf: Some(GgufForm::new(&["qwen2"], RopeStyle::Halves).written(GgufWriting::PLAIN)),
    habits: Habits { input_bias: Bias::Always, ..HABITS },
    read: |keys, mut decoder| {
        if let Some(fields) = keys.json() {
            decoder.windows = windows::if_used(fields, decoder.layers)?;
        }
        Ok(decoder.blueprint())
    },
    presets: &[
        ("qwen2.5-0.5b", || {
            qwen_2(json!({
                "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
                "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32_768,
                "sliding_window": 32_768, "max_window_layers": 24, "tie_word_embeddings": true,
            }))
        }),
        ("qwen2.5-7b", || {
            qwen_2(json!({
                "vocab_size": 152_064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
                "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 131_072,
                "sliding_window": 131_072, "max_window_layers": 28, "tie_word_embeddings": false,
            }))
        }),
    ],
    ..Family::PLAIN
};

/// What all models named Qwen 2 and 3 take for granted.
pub(super) const HABITS: Habits = Habits {
    vocab_size: 151_936,
    inner: 22_016,
    kv_heads: Some(32),
    positions: 32_768,
    bos: None,
    eos: None,
    ..Habits::PLAIN
};

fn qwen_2(more: Value) -> Config {
    let base = json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": "bfloat16",
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "use_sliding_window": false,
        "bos_token_id": 151_643, "eos_token_id": 151_643,
    });
    with(base, more)
}

//! Llama 1 to 3.x, Yi, and the many models of the same form.

use interbed_kernels::RopeStyle;
use serde_json::{Value, json};

use super::presets::{Config, with};
use super::shared::habits::{Bias, Habits};
use super::{Family, GgufForm, GgufWriting};

pub(super) static FAMILY: Family = Family {
    name: "Llama",
    model_types: &["llama"],
    gguf: Some(GgufForm {
        // With experts, files of this name are of another family.
        fits: |keys| Ok(keys.of_experts("expert_count")?.is_none_or(|experts| experts == 0)),
        ..GgufForm::new(&["llama"], RopeStyle::Neighbours).written(GgufWriting::PLAIN)
    }),
    habits: Habits {
        input_bias: Bias::Stated("attention_bias", false),
        output_bias: Bias::Stated("attention_bias", false),
        network_bias: Bias::Stated("mlp_bias", false),
        // Files of Mistral have this name too.
        slides_in_gguf: |_| true,
        ..Habits::PLAIN
    },
    presets: &[
        ("tiny", tiny),
        ("llama-2-7b", llama_2_7b),
        ("llama-3-8b", || llama_3(8192, json!({}))),
        ("llama-3-70b", || {
            let shape = json!({
                "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
            });
            llama_3(8192, shape)
        }),
        ("llama-3.1-8b", || llama_3(131_072, json!({ "rope_scaling": llama_3_rope(8.0) }))),
        ("llama-3.2-1b", || {
            let shape = json!({
                "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
                "head_dim": 64, "rope_scaling": llama_3_rope(32.0), "tie_word_embeddings": true,
            });
            llama_3(131_072, shape)
        }),
        ("llama-3.2-3b", || {
            let shape = json!({
                "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24,
                "head_dim": 128, "rope_scaling": llama_3_rope(32.0), "tie_word_embeddings": true,
            });
            llama_3(131_072, shape)
        }),
    ],
    ..Family::PLAIN
};

fn tiny() -> Config {
    with(
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
            "vocab_size": 512, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu",
            "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
            "tie_word_embeddings": true, "bos_token_id": 0, "eos_token_id": 1,
        }),
        json!({}),
    )
}

fn llama_2_7b() -> Config {
    with(
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float16",
            "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu",
            "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
            "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2,
        }),
        json!({}),
    )
}

fn llama_3(max_position_embeddings: usize, more: Value) -> Config {
    let base = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu", "attention_bias": false,
        "max_position_embeddings": max_position_embeddings, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
        "rope_scaling": null, "tie_word_embeddings": false, "bos_token_id": 128_000, "eos_token_id": 128_001,
    });
    with(base, more)
}

fn llama_3_rope(factor: f64) -> Value {
    json!({
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    })
}

//! The published sizes of Gemma 4.

use serde_json::{Value, json};

use crate::families::presets::{Config, Preset, with};

pub(super) const PRESETS: &[Preset] = &[
    ("gemma-4-e2b", || {
        let more = json!({
            "num_kv_shared_layers": 20, "use_double_wide_mlp": true, "sliding_window": 512,
            "layer_types": layer_types(35, 5),
        });
        gemma4([1536, 6144, 35, 8, 1], more)
    }),
    ("gemma-4-e4b", || {
        let more = json!({ "num_kv_shared_layers": 18, "sliding_window": 512, "layer_types": layer_types(42, 6) });
        gemma4([2560, 10_240, 42, 8, 2], more)
    }),
    ("gemma-4-26b-a4b", || {
        let more = json!({
            "sliding_window": 1024, "layer_types": layer_types(30, 6), "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": true, "num_global_key_value_heads": 2, "max_position_embeddings": 262_144,
            "enable_moe_block": true, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
        });
        gemma4([2816, 2112, 30, 16, 8], more)
    }),
    ("gemma-4-31b", || {
        let more = json!({
            "sliding_window": 1024, "layer_types": layer_types(60, 6), "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": true, "num_global_key_value_heads": 4, "max_position_embeddings": 262_144,
        });
        gemma4([5376, 21_504, 60, 32, 16], more)
    }),
];

/// The types of `layers` layers, of which every `period`-th sees all.
fn layer_types(layers: usize, period: usize) -> Vec<&'static str> {
    let of = |layer: usize| if layer.is_multiple_of(period) { "full_attention" } else { "sliding_attention" };
    (1..=layers).map(of).collect()
}

/// The configuration of one of the published sizes: width, inner width, layers, heads and KV heads, and `more`.
fn gemma4([hidden, inner, layers, heads, kv_heads]: [usize; 5], more: Value) -> Config {
    let base = json!({
        "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "torch_dtype": "bfloat16",
        "vocab_size": 262_144, "vocab_size_per_layer_input": 262_144, "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": 256, "global_head_dim": 512, "hidden_size_per_layer_input": 256,
        "hidden_activation": "gelu_pytorch_tanh", "attention_bias": false, "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6, "final_logit_softcapping": 30.0, "tie_word_embeddings": true,
        "rope_parameters": {
            "sliding_attention": { "rope_type": "default", "rope_theta": 10_000.0 },
            "full_attention": {
                "rope_type": "proportional", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.25,
            },
        },
        "bos_token_id": 2, "eos_token_id": [1, 106],
    });
    with(base, more)
}

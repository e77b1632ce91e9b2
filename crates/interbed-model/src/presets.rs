//! Shapes of well-known models, for models of random weights (`interbed synth --like …`).

use serde_json::{Map, Value, json};

/// The `config.json` of a well-known model, as its Hugging Face directory carries it, or `None` if the name is unknown.
pub fn preset(name: &str) -> Option<String> {
    let (_, config) = PRESETS.iter().find(|(known, _)| *known == name)?;
    Some(format!("{:#}\n", Value::Object(config())))
}

/// The names that [`preset`] knows, in the order in which help should list them.
pub fn preset_names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}

type Config = Map<String, Value>;
/// A name and how to make its configuration.
type Preset = (&'static str, fn() -> Config);

const PRESETS: [Preset; 22] = [
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
    ("mistral-7b", mistral_7b),
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
    ("mixtral-8x7b", mixtral_8x7b),
    ("olmoe-1b-7b", olmoe_1b_7b),
    ("glm-4.5-air", glm_4_5_air),
    ("gpt-oss-20b", || gpt_oss(24, 32)),
    ("gpt-oss-120b", || gpt_oss(36, 128)),
    ("fm9g-7b", fm9g_7b),
    ("jiuge-7b", fm9g_7b),
];

/// `base` with the keys of `more` added or replaced.
fn with(base: Value, more: Value) -> Config {
    let mut config = Config::new();
    for part in [base, more] {
        if let Value::Object(part) = part {
            config.extend(part);
        }
    }
    config
}

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

fn mistral_7b() -> Config {
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

fn qwen_2(more: Value) -> Config {
    let base = json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": "bfloat16",
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "use_sliding_window": false,
        "bos_token_id": 151_643, "eos_token_id": 151_643,
    });
    with(base, more)
}

fn qwen_3(more: Value) -> Config {
    let base = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16",
        "vocab_size": 151_936, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
        "attention_bias": false, "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
        "rope_scaling": null, "sliding_window": null, "use_sliding_window": false,
        "bos_token_id": 151_643, "eos_token_id": 151_645,
    });
    with(base, more)
}

fn qwen_3_moe(more: Value) -> Config {
    let base = json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_key_value_heads": 4,
        "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "max_window_layers": 48, "tie_word_embeddings": false,
    });
    with(Value::Object(qwen_3(base)), more)
}

fn mixtral_8x7b() -> Config {
    let more = json!({
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8,
        "num_experts_per_tok": 2, "rope_theta": 1_000_000.0, "sliding_window": null,
    });
    with(Value::Object(mistral_7b()), more)
}

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

/// As if its experts had been stored in 16 bits, like everything else.
fn gpt_oss(layers: usize, experts: usize) -> Config {
    with(
        json!({
            "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "torch_dtype": "bfloat16",
            "vocab_size": 201_088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": layers,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "hidden_act": "silu",
            "attention_bias": true, "num_local_experts": experts, "num_experts_per_tok": 4, "swiglu_limit": 7.0,
            "sliding_window": 128, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
            "rope_theta": 150_000.0, "rope_scaling": {
                "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                "original_max_position_embeddings": 4096,
            },
            "tie_word_embeddings": false, "eos_token_id": 200_002,
        }),
        json!({}),
    )
}

/// Llama-2-7B's shape under MiniCPM's three scales.
fn fm9g_7b() -> Config {
    with(
        json!({
            "architectures": ["FM9GForCausalLM"], "model_type": "fm9g", "torch_dtype": "bfloat16",
            "vocab_size": 73_440, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu",
            "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "rope_scaling": null,
            "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "tie_word_embeddings": false,
            "bos_token_id": 1, "eos_token_id": 2,
        }),
        json!({}),
    )
}

//! gpt-oss: mixtures with biases, heads with sinks, and a window in every second layer.

use interbed_kernels::RopeStyle;
use serde_json::json;

use super::presets::{Config, with};
use super::shared::habits::{ActivationRule, Bias, Habits};
use super::shared::experts;
use super::shared::rope::RopeRule;
use super::shared::windows;
use super::{Family, GgufForm, GgufWriting};
use crate::blueprint::{Activation, Mixture, Router, Scores};
use crate::config_error::ConfigProblem;
use crate::keys::json::Fields;

/// The window if `sliding_window` is absent.
const WINDOW_DEFAULT: usize = 128;

pub(super) static FAMILY: Family = Family {
    name: "GptOss",
    model_types: &["gpt_oss"],
    quantizations: &["mxfp4"],
    gguf: Some(GgufForm::new(&["gpt-oss"], RopeStyle::Halves).written(GgufWriting {
        activation: Activation::ClampedSwish,
        has_expert_width: true,
        ..GgufWriting::PLAIN
    })),
    habits: Habits {
        vocab_size: 201_088,
        inner: 2880,
        kv_heads: Some(8),
        head_dim: Some(64),
        positions: 131_072,
        epsilon: 1e-5,
        theta: 150_000.0,
        bos: None,
        eos: None,
        input_bias: Bias::Stated("attention_bias", true),
        output_bias: Bias::Stated("attention_bias", true),
        rope: RopeRule { is_required: true, truncates: false, ..RopeRule::USUAL },
        // `hidden_act` does not name it.
        activation: ActivationRule::Fixed(Activation::ClampedSwish),
        has_experts: true,
        inner_is_of_experts: true,
        slides_in_gguf: slides,
        ..Habits::PLAIN
    },
    read: |keys, mut decoder| {
        decoder.attention.sinks = true;
        if let Some(fields) = keys.json() {
            check_activation(fields)?;
            let window = match fields.is_written("sliding_window") {
                true => windows::read(fields)?,
                false => Some(WINDOW_DEFAULT),
            };
            decoder.windows = windows::in_layers(fields, window, decoder.layers, slides)?;
        }
        let router = Router { scores: Scores::SoftmaxOfChosen, ..experts::softmax(None) };
        experts::refuse_other_routers(keys, &router)?;
        let mixture = Mixture {
            experts: experts::count(keys, "num_local_experts", 128)?,
            chosen: experts::chosen(keys, "num_experts_per_tok", 4)?,
            expert_width: decoder.inner,
            activation: decoder.activation,
            router,
            gated: true,
            biases: true,
            shared: None,
        };
        let all = vec![true; decoder.layers];
        decoder.use_experts(keys, mixture, all)?;
        Ok(decoder.blueprint())
    },
    presets: &[
        ("gpt-oss-20b", || gpt_oss(24, 32)),
        ("gpt-oss-120b", || gpt_oss(36, 128)),
    ],
    ..Family::PLAIN
};

/// Every second layer sees all.
fn slides(layer: usize) -> bool {
    layer.is_multiple_of(2)
}

/// Refuses numbers of the activation other than those that are computed.
fn check_activation(fields: &Fields<'_>) -> Result<(), ConfigProblem> {
    let (slope, limit) = (Activation::CLAMPED_SLOPE, Activation::CLAMPED_LIMIT);
    for (key, known, hint) in [
        ("swiglu_alpha", slope, "this architecture is known with 1.702 only"),
        ("swiglu_limit", limit, "this architecture is known with 7 only"),
    ] {
        fields.number(key, |number| number as f32 == known, hint)?;
    }
    Ok(())
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

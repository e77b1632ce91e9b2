//! Qwen 3.5, 3.6 and 3.8 without experts: gated delta rules, and attention with a gate in every fourth layer. Of models
//! that also see, the language model is read.

use interbed_kernels::{RopeStyle, TAPS_MAX};
use serde_json::{Value, json};

use super::presets::{Config, with};
use super::shared::decoder::Decoder;
use super::shared::habits::{ActivationRule, Bias, Habits};
use super::shared::refusals::UNCOMPUTED;
use super::shared::rope::Rotated;
use super::shared::windows;
use super::{Family, GgufForm, GgufWriting};
use crate::blueprint::{Activation, Blueprint, DecayForm, GatedDelta, HeadNorms, KeySharing, Norm, Part};
use crate::config_error::ConfigProblem;
use crate::keys::gguf::Pattern;
use crate::keys::json::Fields;
use crate::keys::{Key, Keys, key};

pub(super) const WRITTEN: GgufWriting = GgufWriting {
    norms: Some(HeadNorms::EachBefore),
    network_norm: Some("post_attention_norm"),
    ..GgufWriting::PLAIN
};

pub(super) const HABITS: Habits = Habits {
    vocab_size: 248_320,
    inner: 12_288,
    heads: 16,
    kv_heads: Some(4),
    head_dim: Some(256),
    positions: 32_768,
    bos: None,
    eos: None,
    input_bias: Bias::Stated("attention_bias", false),
    output_bias: Bias::Stated("attention_bias", false),
    rotated: Rotated::Share(0.25),
    activation: ActivationRule::Fixed(Activation::Silu),
    has_recurrence: true,
    has_guesses: true,
    ..Habits::PLAIN
};

/// Every layer with such a number has attention, unless the configuration says otherwise.
const INTERVAL: usize = 4;
/// Number that is added to the square sums of queries and keys, whatever epsilon the norms have.
const KEY_EPSILON: f32 = 1e-6;

pub(super) static FAMILY: Family = Family {
    name: "Qwen3.5",
    model_types: &["qwen3_5_text"],
    within: &["qwen3_5"],
    gguf: Some(GgufForm::new(&["qwen35"], RopeStyle::Halves).written(WRITTEN)),
    habits: HABITS,
    read: |keys, mut decoder| {
        read_hybrid(keys, &mut decoder)?;
        Ok(decoder.blueprint())
    },
    presets: &[
        ("qwen3.5-4b", || {
            qwen_3_5([2560, 9216, 32, 16, 4, 32], json!({ "tie_word_embeddings": true }))
        }),
        ("qwen3.5-9b", || qwen_3_5([4096, 12_288, 32, 16, 4, 32], json!({}))),
        ("qwen3.6-27b", || qwen_3_5([5120, 17_408, 64, 24, 4, 48], json!({}))),
    ],
    ..Family::PLAIN
};

const NO_THETA: &str = "no base of the rotation is taken for granted in this architecture";
const LAYER_TYPES: Key = key("layer_types", "attention.recurrent_layers");
const KEY_HEADS: Key = key("linear_num_key_heads", "ssm.group_count");
const VALUE_HEADS: Key = key("linear_num_value_heads", "ssm.time_step_rank");
const KEY_WIDTH: Key = key("linear_key_head_dim", "ssm.state_size");
const VALUE_WIDTH: Key = key("linear_value_head_dim", "ssm.inner_size");
const TAPS: Key = key("linear_conv_kernel_dim", "ssm.conv_kernel");

/// Reads the gates of attention, and gated delta rules where a layer has no attention.
pub(super) fn read_hybrid(keys: &Keys<'_>, decoder: &mut Decoder) -> Result<(), ConfigProblem> {
    match keys {
        Keys::Json(fields) => {
            refuse_other(fields)?;
            // In GGUF files, the 1 has been added to the weights.
            decoder.norm_offset = 1.0;
        }
        Keys::Gguf(gguf) if gguf.number("rope.freq_base")?.is_none() => {
            return Err(gguf.missing("rope.freq_base", NO_THETA));
        }
        Keys::Gguf(_) => {}
    }
    decoder.norm_heads(HeadNorms::EachBefore);
    decoder.attention.output_gate = true;
    let recurrent = recurrent_layers(keys, decoder.layers)?;
    decoder.recurrence = Some((Part::GatedDelta(read_delta(keys, decoder)?), recurrent));
    Ok(())
}

/// Refuses what would change an answer, and configurations without the base of the rotation, which the class does not
/// take for granted.
fn refuse_other(fields: &Fields<'_>) -> Result<(), ConfigProblem> {
    // The convolution has the activation that this key names too.
    for (key, known) in [("hidden_act", ["silu", "swish"]), ("output_gate_type", ["silu", "swish"])] {
        if let Some(other) = fields.text(key)?.filter(|name| !known.contains(name)) {
            return Err(fields.unsupported(key, &Value::from(other), "this architecture is known with silu only"));
        }
    }
    if fields.flag("attn_output_gate")? == Some(false) {
        return Err(fields.unsupported("attn_output_gate", &Value::Bool(false), UNCOMPUTED));
    }
    let [classic, modern] = [("rope_scaling", "rope_scaling."), ("rope_parameters", "rope_parameters.")]
        .map(|(key, prefix)| fields.object(key, prefix));
    let has_theta = [Some(*fields), classic?, modern?].into_iter().flatten().any(|of| of.get("rope_theta").is_some());
    match has_theta {
        true => Ok(()),
        false => Err(ConfigProblem::Missing { key: fields.name("rope_parameters.rope_theta"), why: NO_THETA }),
    }
}

/// Reads which layers have a gated delta rule instead of attention.
fn recurrent_layers(keys: &Keys<'_>, layers: usize) -> Result<Vec<bool>, ConfigProblem> {
    let stated = match keys {
        Keys::Json(fields) => {
            let types = [("full_attention", false), ("linear_attention", true)];
            windows::read_types(fields, layers, &types, "supported are full_attention and linear_attention")?
        }
        Keys::Gguf(gguf) => {
            // Layers that guess at further tokens are in the list as well.
            let all = gguf.required("block_count")?;
            match gguf.pattern_of_layers(LAYER_TYPES.gguf, usize::try_from(all).unwrap_or(layers))? {
                Some(Pattern::Flags(flags)) => Some(flags.into_iter().take(layers).collect()),
                Some(Pattern::Every(_)) | None => None,
            }
        }
    };
    let interval_key = key("full_attention_interval", "full_attention_interval");
    let interval = keys.count(interval_key, 1..=Blueprint::LAYERS_MAX)?.unwrap_or(INTERVAL);
    Ok(stated.unwrap_or_else(|| (1..=layers).map(|layer| !layer.is_multiple_of(interval)).collect()))
}

fn read_delta(keys: &Keys<'_>, decoder: &Decoder) -> Result<GatedDelta, ConfigProblem> {
    let key_heads = keys.size(KEY_HEADS, 16, Blueprint::HEADS_MAX)?;
    let value_heads = keys.size(VALUE_HEADS, 32, Blueprint::HEADS_MAX)?;
    if !value_heads.is_multiple_of(key_heads) {
        let limit = format!("a multiple of {}, which is {key_heads}", keys.name(KEY_HEADS));
        return Err(keys.out_of_range(VALUE_HEADS, value_heads, limit));
    }
    let key_width = keys.size(KEY_WIDTH, 128, Blueprint::HEAD_DIM_MAX)?;
    let value_width = match keys {
        Keys::Json(_) => keys.size(VALUE_WIDTH, 128, Blueprint::HEAD_DIM_MAX)?,
        Keys::Gguf(_) => {
            let all = keys.size(VALUE_WIDTH, 0, Blueprint::HEAD_DIM_MAX * value_heads)?;
            if !all.is_multiple_of(value_heads) {
                let limit = format!("a multiple of {}, which is {value_heads}", keys.name(VALUE_HEADS));
                return Err(keys.out_of_range(VALUE_WIDTH, all, limit));
            }
            all / value_heads
        }
    };
    let convolution = keys.count(TAPS, 2..=TAPS_MAX)?.unwrap_or(4);
    let norm = Norm { name: "linear_attn.norm", epsilon: decoder.norm_epsilon, offset: 0.0 };
    // Converters reorder value heads, and store what is computed with the logarithm.
    let (sharing, decay) = match keys {
        Keys::Json(_) => (KeySharing::Neighbours, DecayForm::Logarithm),
        Keys::Gguf(_) => (KeySharing::Strided, DecayForm::NegativeRate),
    };
    let epsilon = KEY_EPSILON;
    Ok(GatedDelta { key_heads, value_heads, key_width, value_width, sharing, decay, epsilon, convolution, norm })
}

/// The configuration of one of the published sizes: width, inner width, layers, heads, KV heads and value heads, and
/// `more`.
fn qwen_3_5([hidden, inner, layers, heads, kv_heads, value_heads]: [usize; 6], more: Value) -> Config {
    let sizes = json!({
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "linear_num_value_heads": value_heads,
    });
    with(Value::Object(published(sizes)), more)
}

/// What the configurations of all published sizes have in common, and `more`.
pub(super) fn published(more: Value) -> Config {
    let base = json!({
        "torch_dtype": "bfloat16", "vocab_size": 248_320, "head_dim": 256, "hidden_act": "silu",
        "attention_bias": false, "attn_output_gate": true, "full_attention_interval": INTERVAL,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 16, "mamba_ssm_dtype": "float32", "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10], "mrope_interleaved": true,
        },
        "eos_token_id": 248_044,
    });
    with(base, more)
}

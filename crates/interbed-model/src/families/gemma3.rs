//! Gemma 3: norms before and after each branch and of every head, windows in five of six layers, which rotate with a
//! base of their own, and embeddings that are multiplied by the root of their width.

use interbed_kernels::RopeStyle;
use serde_json::{Value, json};

use super::presets::{Config, with};
use super::shared::decoder::{Decoder, NormPlaces};
use super::shared::habits::{ActivationRule, Bias, Habits};
use super::shared::refusals::UNCOMPUTED;
use super::shared::rope::{self, RopeRule};
use super::shared::windows;
use super::{Family, GgufForm};
use crate::blueprint::{Activation, HeadNorms};
use crate::config_error::ConfigProblem;
use crate::keys::json::Fields;
use crate::keys::{Keys, key};

/// All layers but every sixth have a window, unless the configuration says otherwise.
const PERIOD: u64 = 6;
/// The base of the rotation of layers with a window, unless the configuration says otherwise.
const THETA_OF_WINDOWS: f64 = 10_000.0;
/// Number of layers of the largest size, 27B, which scales attention scores by another width than that of a head.
const LAYERS_OF_LARGEST: usize = 62;

pub(super) static FAMILY: Family = Family {
    name: "Gemma3",
    model_types: &["gemma3_text"],
    within: &["gemma3"],
    gguf: Some(GgufForm::new(&["gemma3"], RopeStyle::Halves)),
    habits: Habits {
        vocab_size: 262_208,
        hidden: 2304,
        inner: 9216,
        layers: 26,
        heads: 8,
        kv_heads: Some(4),
        head_dim: Some(256),
        positions: 131_072,
        theta: 1_000_000.0,
        bos: Some(2),
        eos: Some(1),
        is_tied: true,
        input_bias: Bias::Stated("attention_bias", false),
        output_bias: Bias::Stated("attention_bias", false),
        rope: RopeRule { by_window: true, ..RopeRule::USUAL },
        activation: ActivationRule::NamedBy("hidden_activation", Activation::GeluTanh),
        slides_in_gguf: |layer| windows::slides_by(PERIOD, layer),
        ..Habits::PLAIN
    },
    read: |keys, mut decoder| {
        decoder.norms = NormPlaces::Both;
        if let Some(fields) = keys.json() {
            refuse_uncomputed(fields)?;
            // In GGUF files, the 1 has been added to the weights.
            decoder.norm_offset = 1.0;
            let period = windows::read_period(fields, PERIOD)?;
            decoder.windows = windows::required(fields, decoder.layers, |layer| windows::slides_by(period, layer))?;
        } else if let Some(gguf) = keys.gguf()
            && gguf.number("rope.freq_base")?.is_none()
        {
            return Err(gguf.missing("rope.freq_base", "files of this architecture state it; convert the model again"));
        }
        decoder.norm_heads(HeadNorms::EachBefore);
        decoder.rotate_windows(keys, key("rope_local_base_freq", rope::THETA_OF_WINDOWS), Some(THETA_OF_WINDOWS))?;
        decoder.attention.scale = score_width(keys, &decoder)?.sqrt().recip() as f32;
        decoder.embedding_factor = (decoder.hidden as f64).sqrt();
        // The stated context is the stretched one.
        decoder.stretches = false;
        Ok(decoder.blueprint())
    },
    presets: &[
        ("gemma-3-270m", || gemma3([640, 2048, 18, 4, 1], json!({ "sliding_window": 512 }))),
        ("gemma-3-1b", || gemma3([1152, 6912, 26, 4, 1], json!({ "sliding_window": 512 }))),
        ("gemma-3-4b", || gemma3([2560, 10_240, 34, 8, 4], stretched())),
        ("gemma-3-12b", || gemma3([3840, 15_360, 48, 16, 8], stretched())),
        ("gemma-3-27b", || {
            let mut more = stretched();
            (more["head_dim"], more["query_pre_attn_scalar"]) = (json!(128), json!(168));
            gemma3([5376, 21_504, 62, 32, 16], more)
        }),
    ],
    ..Family::PLAIN
};

/// Returns the width whose root divides the attention scores.
fn score_width(keys: &Keys<'_>, decoder: &Decoder) -> Result<f64, ConfigProblem> {
    let key = key("query_pre_attn_scalar", "");
    let stated = keys.number(key, |width| (1e-6..1e9).contains(&width), "a number from 1e-6 to 1e9")?;
    let (hidden, heads) = (decoder.hidden as f64, decoder.attention.heads as f64);
    Ok(match (keys, stated) {
        (_, Some(width)) => width,
        (Keys::Json(_), None) => 256.0,
        // GGUF files have no key for it.
        (Keys::Gguf(_), None) if decoder.layers == LAYERS_OF_LARGEST => hidden / heads,
        (Keys::Gguf(_), None) => decoder.attention.key_width as f64,
    })
}

/// Refuses bounded scores and logits, and attention to later tokens.
fn refuse_uncomputed(fields: &Fields<'_>) -> Result<(), ConfigProblem> {
    for key in ["attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"] {
        if let Some(value) = fields.get(key).filter(|value| **value != Value::Bool(false)) {
            return Err(fields.unsupported(key, value, UNCOMPUTED));
        }
    }
    Ok(())
}

/// The configuration of one of the published sizes: width, inner width, layers, heads and KV heads, and `more`.
fn gemma3([hidden, inner, layers, heads, kv_heads]: [usize; 5], more: Value) -> Config {
    let base = json!({
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "torch_dtype": "bfloat16",
        "vocab_size": 262_144, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "attention_bias": false, "query_pre_attn_scalar": 256,
        "max_position_embeddings": 32_768, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0, "rope_scaling": null, "sliding_window_pattern": PERIOD,
        "tie_word_embeddings": true, "bos_token_id": 2, "eos_token_id": [1, 106],
    });
    with(base, more)
}

/// What the sizes from 4B on have: a longer context, for which the layers that see all are stretched.
fn stretched() -> Value {
    json!({
        "max_position_embeddings": 131_072, "sliding_window": 1024,
        "rope_scaling": { "rope_type": "linear", "factor": 8.0 },
    })
}

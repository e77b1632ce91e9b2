//! LFM2 and LFM2.5 without experts: gated convolutions over a few tokens, and attention with norms of heads in some
//! layers. Of models that also see, the language model is read.

use interbed_kernels::{RopeStyle, TAPS_MAX};
use serde_json::{Value, json};

use super::presets::{Config, with};
use super::shared::decoder::Decoder;
use super::shared::habits::{ActivationRule, Habits};
use super::shared::windows;
use super::{Family, GgufForm, GgufWriting};
use crate::blueprint::{Activation, Blueprint, HeadNorms, Part, ShortConvolution};
use crate::config_error::ConfigProblem;
use crate::keys::json::Fields;
use crate::keys::{Key, Keys, key};

pub(super) const WRITTEN: GgufWriting = GgufWriting { norms: Some(HeadNorms::EachBefore), ..GgufWriting::PLAIN };

pub(super) const HABITS: Habits = Habits {
    vocab_size: 65_536,
    hidden: 2560,
    inner: 12_288,
    kv_heads: Some(8),
    positions: 128_000,
    epsilon: EPSILON,
    theta: 1_000_000.0,
    is_tied: true,
    activation: ActivationRule::Fixed(Activation::Silu),
    has_recurrence: true,
    // A window that a GGUF file states is that of every layer with attention.
    slides_in_gguf: |_| true,
    ..Habits::PLAIN
};

pub(super) static FAMILY: Family = Family {
    name: "LFM2",
    model_types: &["lfm2"],
    // Both spellings are in use.
    within: &["lfm2_vl", "lfm2-vl"],
    gguf: Some(GgufForm::new(&["lfm2"], RopeStyle::Halves).written(WRITTEN)),
    habits: HABITS,
    read: |keys, mut decoder| {
        if let Some(fields) = keys.json() {
            decoder.inner = read_inner(fields, &decoder)?;
        }
        read_layers(keys, &mut decoder)?;
        Ok(blueprint(decoder))
    },
    presets: &[
        ("lfm2-350m", || lfm2([1024, 6656, 16])),
        ("lfm2-700m", || lfm2([1536, 10_240, 24])),
        ("lfm2-1.2b", || lfm2([2048, 12_288, 32])),
        ("lfm2-2.6b", lfm2_2_6b),
    ],
    ..Family::PLAIN
};

const EPSILON: f64 = 1e-5;
const TAPS: Key = key("conv_L_cache", "shortconv.l_cache");
/// Where GGUF files say which layers have attention: the others have no key heads.
const KEY_HEADS: &str = "attention.head_count_kv";

/// Reads what this architecture calls by names of its own, and gated convolutions where a layer has no attention.
pub(super) fn read_layers(keys: &Keys<'_>, decoder: &mut Decoder) -> Result<(), ConfigProblem> {
    if let Some(fields) = keys.json() {
        let epsilon = fields.number("norm_eps", |eps| (0.0..1.0).contains(&eps), "a number from 0 to 1")?;
        decoder.norm_epsilon = epsilon.unwrap_or(EPSILON) as f32;
        decoder.is_tied = fields.flag("tie_embedding")?.unwrap_or(decoder.is_tied);
    }
    decoder.norm_heads(HeadNorms::EachBefore);
    let taps = match (keys.count(TAPS, 2..=TAPS_MAX)?, keys) {
        (Some(taps), _) => taps,
        (None, Keys::Json(_)) => 3,
        (None, Keys::Gguf(gguf)) => return Err(gguf.missing(TAPS.gguf, "it shapes the model")),
    };
    let convolved = convolved_layers(keys, decoder.layers)?;
    let bias = match keys {
        Keys::Json(fields) => fields.flag("conv_bias")?.unwrap_or(false),
        Keys::Gguf(gguf) => {
            let first = convolved.iter().position(|&convolves| convolves);
            first.is_some_and(|first| gguf.has_in_layer(first, "conv.conv.bias"))
        }
    };
    let convolution = ShortConvolution { rows: taps, width: decoder.hidden, bias };
    decoder.recurrence = Some((Part::Convolution(convolution), convolved));
    Ok(())
}

/// Creates the blueprint. The last norm has another name than in other families.
pub(super) fn blueprint(decoder: Decoder) -> Blueprint {
    let mut blueprint = decoder.blueprint();
    blueprint.head.norm.name = "model.embedding_norm";
    blueprint
}

/// Reads which layers have a gated convolution instead of attention.
fn convolved_layers(keys: &Keys<'_>, layers: usize) -> Result<Vec<bool>, ConfigProblem> {
    let fields = match keys {
        Keys::Json(fields) => fields,
        Keys::Gguf(gguf) => {
            return Ok(gguf.in_layers(KEY_HEADS, layers)?.into_iter().map(|count| count == 0).collect());
        }
    };
    let types = [("full_attention", false), ("conv", true)];
    if let Some(stated) = windows::read_types(fields, layers, &types, "supported are conv and full_attention")? {
        return Ok(stated);
    }
    let Some(value) = fields.get("full_attn_idxs") else { return Ok(vec![false; layers]) };
    let numbers = value.as_array().and_then(|numbers| numbers.iter().map(Value::as_u64).collect::<Option<Vec<_>>>());
    let Some(attending) = numbers else {
        return Err(fields.wrong_type("full_attn_idxs", "a list of numbers of layers", value));
    };
    Ok((0..layers).map(|layer| !attending.contains(&(layer as u64))).collect())
}

/// Works out the width of dense networks, which configurations may state as the width of a network without a gate.
fn read_inner(fields: &Fields<'_>, decoder: &Decoder) -> Result<usize, ConfigProblem> {
    let (whole, max) = ("block_ff_dim", Blueprint::INNER_SIZE_MAX);
    let inner = fields.count(whole, 1..=max)?.unwrap_or(decoder.inner);
    if !fields.flag("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return Ok(inner);
    }
    let inner = 2 * inner / 3;
    let factor_key = "block_ffn_dim_multiplier";
    let factor = fields.number(factor_key, |factor| factor > 0.0, "a number above 0")?;
    let inner = match factor {
        None if fields.is_written(factor_key) => inner,
        factor => {
            let step = fields.count("block_multiple_of", 1..=max)?.unwrap_or(256);
            ((factor.unwrap_or(1.0) * inner as f64) as usize).div_ceil(step).saturating_mul(step)
        }
    };
    if !(1..=max).contains(&inner) {
        let limit = format!("a width from 1 to {max} when it is adjusted");
        return Err(ConfigProblem::OutOfRange { key: fields.name(whole), found: inner.to_string(), limit });
    }
    Ok(inner)
}

/// The configuration of one of the published sizes of 16 layers: width, width of a network before it is adjusted, and
/// heads.
fn lfm2([hidden, inner, heads]: [usize; 3]) -> Config {
    published(json!({
        "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "hidden_size": hidden, "num_hidden_layers": 16,
        "num_attention_heads": heads, "block_ff_dim": inner, "block_auto_adjust_ff_dim": true,
        "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256, "layer_types": types(16, &[2, 5, 8, 10, 12, 14]),
    }))
}

/// The configuration of the published size of 30 layers, which states the width of a network as it is.
fn lfm2_2_6b() -> Config {
    published(json!({
        "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 30,
        "num_attention_heads": 32, "block_ff_dim": 10_752, "block_auto_adjust_ff_dim": false,
        "layer_types": types(30, &[2, 5, 9, 13, 17, 21, 24, 27]),
    }))
}

/// Names what each of `layers` layers has: attention in those whose numbers `attending` lists.
pub(super) fn types(layers: usize, attending: &[usize]) -> Vec<&'static str> {
    (0..layers).map(|layer| if attending.contains(&layer) { "full_attention" } else { "conv" }).collect()
}

/// What the configurations of all published sizes have in common, and `more`.
pub(super) fn published(more: Value) -> Config {
    let base = json!({
        "torch_dtype": "bfloat16", "vocab_size": 65_536, "num_key_value_heads": 8, "conv_L_cache": 3,
        "conv_bias": false, "max_position_embeddings": 128_000, "norm_eps": 1e-5, "rope_theta": 1_000_000.0,
        "tie_embedding": true, "bos_token_id": 1, "eos_token_id": 7,
    });
    with(base, more)
}

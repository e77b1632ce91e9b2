//! Readers of the sizes that shape a decoder, of its biases and of its activation.

use serde_json::Value;

use super::habits::{ActivationRule, Bias, Habits};
use crate::blueprint::{Activation, Blueprint};
use crate::config_error::ConfigProblem;
use crate::keys::gguf::GgufKeys;
use crate::keys::{Key, Keys, key};

pub(super) const HIDDEN: Key = key("hidden_size", "embedding_length");
pub(in crate::families) const INNER: Key = key("intermediate_size", "feed_forward_length");
pub(super) const LAYERS: Key = key("num_hidden_layers", "block_count");
const HEADS: Key = key("num_attention_heads", "attention.head_count");
pub(in crate::families) const KV_HEADS: Key = key("num_key_value_heads", "attention.head_count_kv");
pub(super) const HEAD_DIM: Key = key("head_dim", "attention.key_length");
pub(super) const POSITIONS: Key = key("max_position_embeddings", "context_length");
pub(super) const EPSILON: Key = key("rms_norm_eps", "attention.layer_norm_rms_epsilon");
pub(super) const VOCAB_SIZE: Key = key("vocab_size", "vocab_size");

/// Reads the width of dense networks. GGUF files of mixtures may give the width of an expert alone.
pub(super) fn read_inner(keys: &Keys<'_>, habits: &Habits) -> Result<usize, ConfigProblem> {
    let Keys::Gguf(gguf) = keys else { return keys.size(INNER, habits.inner, Blueprint::INNER_SIZE_MAX) };
    let of_expert = "expert_feed_forward_length";
    let inner = in_layers(gguf, INNER.gguf, habits)?;
    let width = gguf.of_experts(of_expert)?.filter(|_| habits.has_experts);
    let limits = 1..=Blueprint::INNER_SIZE_MAX;
    match (inner, width) {
        (None, None) => Err(gguf.missing(INNER.gguf, "it shapes the model")),
        (_, Some(width)) if habits.inner_is_of_experts && width > 0 => gguf.within(of_expert, width, limits),
        (Some(inner), _) => gguf.within(INNER.gguf, inner, limits),
        (None, Some(width)) => gguf.within(of_expert, width, limits),
    }
}

/// Reads the number of layers. GGUF files count layers that guess at further tokens as well, which are subtracted.
pub(super) fn read_layers(keys: &Keys<'_>, habits: &Habits) -> Result<usize, ConfigProblem> {
    let Keys::Gguf(gguf) = keys else { return keys.size(LAYERS, habits.layers, Blueprint::LAYERS_MAX) };
    let guessing = gguf.count("nextn_predict_layers")?.unwrap_or(0);
    gguf.within(LAYERS.gguf, gguf.required(LAYERS.gguf)?.saturating_sub(guessing), 1..=Blueprint::LAYERS_MAX)
}

pub(super) fn read_heads(keys: &Keys<'_>, habits: &Habits) -> Result<usize, ConfigProblem> {
    let Keys::Gguf(gguf) = keys else { return keys.size(HEADS, habits.heads, Blueprint::HEADS_MAX) };
    let heads = gguf.same_in_layers(HEADS.gguf)?;
    let heads = heads.ok_or_else(|| gguf.missing(HEADS.gguf, "it shapes the model"))?;
    gguf.within(HEADS.gguf, heads, 1..=Blueprint::HEADS_MAX)
}

pub(super) fn read_kv_heads(keys: &Keys<'_>, heads: usize, habits: &Habits) -> Result<usize, ConfigProblem> {
    let limits = 1..=Blueprint::HEADS_MAX;
    let kv_heads = match keys {
        Keys::Json(fields) => match fields.count(KV_HEADS.json, limits)? {
            Some(count) => count,
            None if fields.is_written(KV_HEADS.json) => heads,
            None => habits.kv_heads.unwrap_or(heads),
        },
        Keys::Gguf(gguf) => match in_layers(gguf, KV_HEADS.gguf, habits)? {
            Some(count) => gguf.within(KV_HEADS.gguf, count, limits)?,
            None => heads,
        },
    };
    if !heads.is_multiple_of(kv_heads) {
        let limit = format!("a divisor of {}, which is {heads}", HEADS.json);
        return Err(keys.out_of_range(KV_HEADS, kv_heads, limit));
    }
    Ok(kv_heads)
}

/// Reads a number that is the same in all layers, or that of the first layer where layers may differ. Where layers may
/// lack attention or a network, zeros are for these.
fn in_layers(gguf: &GgufKeys<'_>, key: &str, habits: &Habits) -> Result<Option<u64>, ConfigProblem> {
    match (habits.layers_differ, habits.has_recurrence) {
        (true, _) => gguf.in_first_layer(key),
        (false, true) => gguf.of_some_layers(key),
        (false, false) => gguf.same_in_layers(key),
    }
}

pub(super) fn read_head_dim(
    keys: &Keys<'_>,
    habits: &Habits,
    hidden: usize,
    heads: usize,
) -> Result<usize, ConfigProblem> {
    let default = habits.head_dim.filter(|_| keys.gguf().is_none());
    let stated = keys.count(HEAD_DIM, 1..=Blueprint::HEAD_DIM_MAX)?;
    let head_dim = match stated.or(default) {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let limit = match keys {
                Keys::Json(_) => format!("a multiple of {}, which is {heads} (there is no head_dim)", HEADS.json),
                Keys::Gguf(gguf) => format!("a multiple of {}, which is {heads}", gguf.name(HEADS.gguf)),
            };
            return Err(keys.out_of_range(HIDDEN, hidden, limit));
        }
    };
    if let Some(gguf) = keys.gguf()
        && let Some(other) = gguf.count("attention.value_length")?.filter(|&other| other != head_dim as u64)
    {
        let hint = "keys and values must be of one width";
        return Err(gguf.unsupported("attention.value_length", &Value::from(other), hint));
    }
    if !head_dim.is_multiple_of(2) || head_dim > Blueprint::HEAD_DIM_MAX {
        let limit = format!("an even number up to {}", Blueprint::HEAD_DIM_MAX);
        let key = match keys {
            Keys::Json(_) if stated.or(default).is_none() => "hidden_size / num_attention_heads".to_owned(),
            Keys::Json(_) => HEAD_DIM.json.to_owned(),
            Keys::Gguf(gguf) => gguf.name(HEAD_DIM.gguf),
        };
        return Err(ConfigProblem::OutOfRange { key, found: head_dim.to_string(), limit });
    }
    Ok(head_dim)
}

pub(super) fn read_epsilon(keys: &Keys<'_>, default: f64) -> Result<f64, ConfigProblem> {
    let epsilon = keys.number(EPSILON, |eps| (0.0..1.0).contains(&eps), "a number from 0 to 1")?;
    match keys {
        Keys::Json(_) => Ok(epsilon.unwrap_or(default)),
        Keys::Gguf(gguf) => epsilon.ok_or_else(|| gguf.missing(EPSILON.gguf, "every norm needs it")),
    }
}

pub(super) fn read_bias(keys: &Keys<'_>, bias: &Bias, tensor: &str) -> Result<bool, ConfigProblem> {
    match (keys, bias) {
        (Keys::Gguf(gguf), _) => Ok(gguf.has_in_first_layer(tensor)),
        (_, Bias::Never) => Ok(false),
        (_, Bias::Always) => Ok(true),
        (Keys::Json(fields), Bias::Stated(key, default)) => Ok(fields.flag(key)?.unwrap_or(*default)),
    }
}

pub(super) fn read_activation(keys: &Keys<'_>, rule: &ActivationRule) -> Result<Activation, ConfigProblem> {
    let (ActivationRule::Fixed(default) | ActivationRule::Named(default) | ActivationRule::NamedBy(_, default)) = *rule;
    let Some(fields) = keys.json() else { return Ok(default) };
    let key = match rule {
        ActivationRule::Fixed(_) => return Ok(default),
        ActivationRule::NamedBy(key, _) => key,
        ActivationRule::Named(_) if fields.get("hidden_act").is_none() => "hidden_activation",
        ActivationRule::Named(_) => "hidden_act",
    };
    match fields.text(key)? {
        None => Ok(default),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu" | "gelu_python") => Ok(Activation::Gelu),
        Some("relu2") => Ok(Activation::SquaredRelu),
        // Four names of one formula.
        Some("gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_new" | "gelu_fast") => Ok(Activation::GeluTanh),
        Some(other) => {
            let hint = "supported are silu, gelu, gelu_pytorch_tanh and relu2";
            Err(fields.unsupported(key, &Value::from(other), hint))
        }
    }
}

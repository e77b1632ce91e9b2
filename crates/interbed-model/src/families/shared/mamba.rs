//! Reading state spaces, whose sizes have names of their own in each family's `config.json`.

use interbed_kernels::TAPS_MAX;
use serde_json::Value;

use super::decoder::Decoder;
use super::refusals::UNCOMPUTED;
use crate::blueprint::{Blueprint, DecayForm, Mamba, Norm};
use crate::config_error::ConfigProblem;
use crate::keys::json::Fields;
use crate::keys::{Key, Keys, key};

/// The names of the keys in `config.json`, and what absent keys mean.
pub(in crate::families) struct Names {
    pub heads: (&'static str, usize),
    /// Absent, or a text, if the heads share the inner width evenly.
    pub head_width: &'static str,
    pub state_width: (&'static str, usize),
    pub groups: (&'static str, usize),
    /// The number of rows that the convolution reads; 4 if absent.
    pub taps: &'static str,
    /// Whether the convolution has a bias; it has one if the key is absent.
    pub convolution_bias: &'static str,
    /// Flags by which other matrices would have biases.
    pub biases: &'static [&'static str],
}

/// Reads the state space of a family. `inner` is the width of all heads if `config.json` has no width of a head.
/// `first` is the first layer with a state space, whose tensors a GGUF file is asked for.
pub(in crate::families) fn read(
    keys: &Keys<'_>,
    names: &Names,
    inner: usize,
    first: usize,
    decoder: &Decoder,
) -> Result<Mamba, ConfigProblem> {
    let heads_key = key(names.heads.0, "ssm.time_step_rank");
    let groups_key = key(names.groups.0, "ssm.group_count");
    let heads = keys.size(heads_key, names.heads.1, Blueprint::HEADS_MAX)?;
    let groups = keys.size(groups_key, names.groups.1, Blueprint::HEADS_MAX)?;
    if !heads.is_multiple_of(groups) {
        let limit = format!("a divisor of {}, which is {heads}", keys.name(heads_key));
        return Err(keys.out_of_range(groups_key, groups, limit));
    }
    let state_key = key(names.state_width.0, "ssm.state_size");
    let state_width = keys.size(state_key, names.state_width.1, Blueprint::HEAD_DIM_MAX)?;
    let head_width = match keys {
        Keys::Json(fields) if fields.get(names.head_width).is_some_and(Value::is_number) => {
            fields.count(names.head_width, 1..=Blueprint::HEAD_DIM_MAX)?.unwrap_or(1)
        }
        Keys::Json(_) => divided(keys, key(names.head_width, ""), heads_key, inner, heads)?,
        Keys::Gguf(_) => {
            let inner_key = key("", "ssm.inner_size");
            let inner = keys.size(inner_key, 0, Blueprint::HEAD_DIM_MAX * heads)?;
            divided(keys, inner_key, heads_key, inner, heads)?
        }
    };
    let taps = key(names.taps, "ssm.conv_kernel");
    let (decay, convolution_bias, step_limits) = match keys {
        Keys::Json(fields) => {
            for name in names.biases {
                if fields.flag(name)? == Some(true) {
                    return Err(fields.unsupported(name, &Value::Bool(true), UNCOMPUTED));
                }
            }
            let has_bias = fields.flag(names.convolution_bias)?.unwrap_or(true);
            (DecayForm::Logarithm, has_bias, read_limits(fields)?)
        }
        // Converters store what is computed with the logarithm.
        Keys::Gguf(gguf) => {
            (DecayForm::NegativeRate, gguf.has_in_layer(first, "mamba.conv1d.bias"), [0.0, f32::INFINITY])
        }
    };
    Ok(Mamba {
        heads,
        head_width,
        state_width,
        groups,
        decay,
        step_limits,
        convolution: keys.count(taps, 2..=TAPS_MAX)?.unwrap_or(4),
        convolution_bias,
        norm: Norm { name: "mamba.norm", epsilon: decoder.norm_epsilon, offset: 0.0 },
    })
}

/// Returns the width of a head if `heads` of them make up `inner`, which was read from `of`.
fn divided(keys: &Keys<'_>, of: Key, heads_key: Key, inner: usize, heads: usize) -> Result<usize, ConfigProblem> {
    if !inner.is_multiple_of(heads) || inner / heads > Blueprint::HEAD_DIM_MAX {
        let limit = format!("a multiple of {}, which is {heads}", keys.name(heads_key));
        return Err(keys.out_of_range(of, inner, limit));
    }
    Ok(inner / heads)
}

/// Reads the limits of steps. An upper limit that JSON has no word for is infinite.
fn read_limits(fields: &Fields<'_>) -> Result<[f32; 2], ConfigProblem> {
    let name = "time_step_limit";
    let Some(value) = fields.get(name) else { return Ok([0.0, f32::INFINITY]) };
    let limits = value.as_array().filter(|limits| limits.len() == 2).and_then(|limits| {
        let least = limits[0].as_f64()?;
        let most = match &limits[1] {
            Value::Null | Value::Object(_) | Value::String(_) => f64::INFINITY,
            most => most.as_f64()?,
        };
        (0.0 <= least && least <= most).then_some([least as f32, most as f32])
    });
    limits.ok_or_else(|| fields.wrong_type(name, "two numbers from 0 up, in order", value))
}

/// Reads which layers of a GGUF file have no keys and values.
pub(in crate::families) fn layers_without_keys(keys: &Keys<'_>, layers: usize) -> Result<Vec<bool>, ConfigProblem> {
    let Some(gguf) = keys.gguf() else { return Ok(vec![false; layers]) };
    Ok(gguf.zeros_in_layers("attention.head_count_kv", layers)?.unwrap_or_else(|| vec![false; layers]))
}

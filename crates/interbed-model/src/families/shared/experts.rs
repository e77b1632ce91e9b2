//! Reading mixtures of experts. Whether the weights of a token's experts are divided by their sum is not in most GGUF
//! files: it follows from the family.

use std::ops::RangeInclusive;

use serde_json::Value;

use super::decoder::Decoder;
use crate::blueprint::{Blueprint, Floor, Groups, Mixture, Router, Scores, SharedExpert};
use crate::config_error::ConfigProblem;
use crate::keys::gguf::GgufKeys;
use crate::keys::json::Fields;
use crate::keys::{Key, Keys, key};

/// The most experts of a layer, or groups of them.
pub(in crate::families) const EXPERTS_MAX: usize = 1 << 14;
/// The most experts of all layers; each has a few tensors with names of their own. Models have up to 80,000 by now.
const ALL_EXPERTS_MAX: usize = 1 << 18;

/// `transformers` adds nothing to the sum of a softmax.
pub(in crate::families) const EXACT: Floor = Floor::Plus(0.0);

/// Ways of scoring by their numbers in GGUF files.
const SOFTMAX: u64 = 1;
const SIGMOID: u64 = 2;
const SOFTMAX_OF_CHOSEN: u64 = 3;

/// Reads the number of experts of a layer; `json` is its name in `config.json`.
pub(in crate::families) fn count(keys: &Keys<'_>, json: &'static str, default: usize) -> Result<usize, ConfigProblem> {
    read(keys, key(json, "expert_count"), default)
}

/// Reads how many experts each token goes through.
pub(in crate::families) fn chosen(keys: &Keys<'_>, json: &'static str, default: usize) -> Result<usize, ConfigProblem> {
    read(keys, key(json, "expert_used_count"), default)
}

fn read(keys: &Keys<'_>, key: Key, default: usize) -> Result<usize, ConfigProblem> {
    match keys {
        Keys::Json(fields) => Ok(fields.count(key.json, 1..=EXPERTS_MAX)?.unwrap_or(default)),
        Keys::Gguf(gguf) => gguf.within(key.gguf, gguf.of_experts(key.gguf)?.unwrap_or(0), 1..=EXPERTS_MAX),
    }
}

/// Reads a number of experts or layers within `limits`, if it is there.
pub(in crate::families) fn optional(
    keys: &Keys<'_>,
    key: Key,
    limits: RangeInclusive<usize>,
) -> Result<Option<usize>, ConfigProblem> {
    match keys {
        Keys::Json(fields) => fields.count(key.json, limits),
        Keys::Gguf(gguf) => gguf.of_experts(key.gguf)?.map(|count| gguf.within(key.gguf, count, limits)).transpose(),
    }
}

/// Reads the width of an expert under a key of its own. GGUF files may leave it out, which means `in_gguf`.
pub(in crate::families) fn width(
    keys: &Keys<'_>,
    json: &'static str,
    default: usize,
    in_gguf: usize,
) -> Result<usize, ConfigProblem> {
    match keys {
        Keys::Json(fields) => Ok(fields.count(json, 1..=Blueprint::INNER_SIZE_MAX)?.unwrap_or(default)),
        Keys::Gguf(gguf) => stated_width(gguf, in_gguf),
    }
}

/// Reads the width of the shared expert. GGUF files may leave it out, which means `in_gguf`.
pub(in crate::families) fn shared_width(
    keys: &Keys<'_>,
    default: usize,
    in_gguf: usize,
) -> Result<usize, ConfigProblem> {
    let Some(gguf) = keys.gguf() else { return width(keys, "shared_expert_intermediate_size", default, 0) };
    let key = "expert_shared_feed_forward_length";
    let width = gguf.of_experts(key)?.filter(|&width| width > 0).unwrap_or(in_gguf as u64);
    gguf.within(key, width, 1..=Blueprint::INNER_SIZE_MAX)
}

fn stated_width(gguf: &GgufKeys<'_>, default: usize) -> Result<usize, ConfigProblem> {
    let key = "expert_feed_forward_length";
    match gguf.of_experts(key)?.filter(|&width| width > 0) {
        Some(width) => gguf.within(key, width, 1..=Blueprint::INNER_SIZE_MAX),
        None => gguf.within(key, default as u64, 1..=Blueprint::INNER_SIZE_MAX),
    }
}

/// Reads whether weights are divided by their sum: a flag of `config.json`, and what GGUF files of the family mean.
pub(in crate::families) fn normalises(keys: &Keys<'_>, default: bool, in_gguf: bool) -> Result<bool, ConfigProblem> {
    match keys {
        Keys::Json(fields) => Ok(fields.flag("norm_topk_prob")?.unwrap_or(default)),
        Keys::Gguf(_) => Ok(in_gguf),
    }
}

/// A router that scores by a softmax over all experts.
pub(in crate::families) fn softmax(normalise: Option<Floor>) -> Router {
    Router {
        scores: Scores::Softmax,
        choice_bias: false,
        groups: None,
        normalise,
        scale: 1.0,
        own_norm: None,
        expert_factors: false,
        by_token: false,
    }
}

/// A shared expert as wide as `experts` of them, without a gate; `None` for no expert.
pub(in crate::families) fn shared(experts: usize, width: usize) -> Option<SharedExpert> {
    (experts > 0).then(|| SharedExpert { width: experts.saturating_mul(width), gated: false })
}

/// Refuses GGUF files of families without a shared expert that have one.
///
/// # Errors
/// The key, by name.
pub(in crate::families) fn refuse_shared(keys: &Keys<'_>) -> Result<(), ConfigProblem> {
    let (Keys::Gguf(gguf), key) = (keys, "expert_shared_feed_forward_length") else { return Ok(()) };
    match gguf.of_experts(key)?.filter(|&width| width > 0) {
        Some(width) => Err(gguf.unsupported(key, &Value::from(width), "this architecture has no shared expert")),
        None => Ok(()),
    }
}

/// Refuses GGUF files that say of the router what `router` does not do.
///
/// # Errors
/// The key, by name.
pub(in crate::families) fn refuse_other_routers(keys: &Keys<'_>, router: &Router) -> Result<(), ConfigProblem> {
    let Keys::Gguf(keys) = keys else { return Ok(()) };
    refuse_other_scores(keys, router.scores)?;
    let hint = "no published model of this architecture has it, so it is not computed";
    let refused = |key: &str, found: Value| Err(keys.unsupported(key, &found, hint));
    if let Some(scale) = keys.number("expert_weights_scale")?.filter(|&scale| scale != 0.0 && scale != 1.0) {
        return refused("expert_weights_scale", scale.into());
    }
    if let Some(groups) = keys.count("expert_group_count")?.filter(|&groups| groups > 1) {
        return refused("expert_group_count", groups.into());
    }
    let other = |norms: &bool| *norms != router.normalise.is_some();
    if let Some(norms) = keys.flag("expert_weights_norm")?.filter(other) {
        return refused("expert_weights_norm", norms.into());
    }
    Ok(())
}

/// Refuses GGUF files that name another way of scoring.
///
/// # Errors
/// The key, by name.
pub(in crate::families) fn refuse_other_scores(keys: &GgufKeys<'_>, scores: Scores) -> Result<(), ConfigProblem> {
    let own = match scores {
        Scores::Softmax => SOFTMAX,
        Scores::Sigmoid => SIGMOID,
        Scores::SoftmaxOfChosen => SOFTMAX_OF_CHOSEN,
        Scores::RootOfSoftplus => return Ok(()),
    };
    let key = "expert_gating_func";
    // Some files call both kinds of softmax by the first number.
    let is_other = |&found: &u64| found > 0 && found != own && (own, found) != (SOFTMAX_OF_CHOSEN, SOFTMAX);
    match keys.count(key)?.filter(is_other) {
        Some(other) => Err(keys.unsupported(key, &Value::from(other), "no model of this architecture scores so")),
        None => Ok(()),
    }
}

/// A number that may be written once, or for each layer.
pub(in crate::families) fn same_in_layers(
    fields: &Fields<'_>,
    key: &str,
    max: usize,
    layers: usize,
) -> Result<Option<usize>, ConfigProblem> {
    let Some(Value::Array(values)) = fields.get(key) else { return fields.count(key, 1..=max) };
    let first = values.first().and_then(Value::as_u64).and_then(|first| usize::try_from(first).ok());
    let first = first.filter(|first| values.len() == layers && (1..=max).contains(first));
    match first.filter(|_| values.iter().all(|value| *value == values[0])) {
        Some(count) => Ok(Some(count)),
        None => {
            let (value, hint) =
                (Value::from(values.as_slice()), "a number that is the same for each layer is supported");
            Err(fields.unsupported(key, &value, hint))
        }
    }
}

impl Decoder {
    /// Replaces the dense network by `mixture` in every layer for which `layers` is true.
    ///
    /// # Errors
    /// Fails if the numbers of experts and groups contradict each other or are too large. The error names the key.
    pub fn use_experts(
        &mut self,
        keys: &Keys<'_>,
        mut mixture: Mixture,
        layers: Vec<bool>,
    ) -> Result<(), ConfigProblem> {
        check(keys, &mixture, layers.iter().filter(|is_mixture| **is_mixture).count())?;
        let Some(first) = layers.iter().position(|is_mixture| *is_mixture) else { return Ok(()) };
        if let Some(gguf) = keys.gguf() {
            // Only the tensors show it.
            mixture.router.choice_bias &= gguf.has_in_layer(first, "mlp.gate.e_score_correction_bias");
        }
        self.mixture = Some((mixture, layers));
        Ok(())
    }
}

/// Checks that the numbers of experts and groups of `mixture`, which `layers` layers have, fit each other.
///
/// # Errors
/// Names the key of the first number that contradicts another or is too large.
pub(in crate::families) fn check(keys: &Keys<'_>, mixture: &Mixture, layers: usize) -> Result<(), ConfigProblem> {
    let out_of_range = |json: &'static str, gguf: &'static str, found: usize, limit: String| {
        Err(keys.out_of_range(key(json, gguf), found, limit))
    };
    let all = layers.saturating_mul(mixture.experts);
    if all > ALL_EXPERTS_MAX {
        let (key, limit) = ("the number of experts of all layers".to_owned(), format!("at most {ALL_EXPERTS_MAX}"));
        return Err(ConfigProblem::OutOfRange { key, found: all.to_string(), limit });
    }
    let mut choice = mixture.experts;
    if let Some(Groups { count, kept }) = mixture.router.groups {
        let size = mixture.experts / count;
        if !mixture.experts.is_multiple_of(count) || size < 2 {
            let limit = format!("a divisor of the number of experts, {}, with at least 2 in a group", mixture.experts);
            return out_of_range("n_group", "expert_group_count", count, limit);
        }
        if kept > count {
            let limit = format!("at most the number of groups, which is {count}");
            return out_of_range("topk_group", "expert_group_used_count", kept, limit);
        }
        choice = kept * size;
    }
    if mixture.chosen > choice {
        let limit = format!("at most {choice}, the number of experts that there are to choose from");
        return out_of_range("num_experts_per_tok", "expert_used_count", mixture.chosen, limit);
    }
    Ok(())
}

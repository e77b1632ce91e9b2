//! Rope parameters of `config.json`.

use serde_json::Value;

use super::{Kinds, POSITIONS_MAX, ROTATED, RopeRule, Rotated, by_stretch};
use crate::blueprint::{QueryGrowth, RopeScaling};
use crate::config_error::ConfigProblem;
use crate::keys::json::Fields;

/// The name of the scaling that rotates only some pairs of each head.
const PROPORTIONAL: &str = "proportional";

/// Reads the classic spelling (`rope_theta` beside `rope_scaling`) and that of transformers 5 (`rope_parameters`). If
/// both are given, `rope_scaling` wins, or is refused beside parameters by type of layer. A `rope_theta` inside the
/// object wins over one outside; without either, the base is `theta_default`.
pub(super) fn read(
    fields: &Fields<'_>,
    rule: &RopeRule,
    [max_positions, rotated]: [usize; 2],
    theta_default: f64,
) -> Result<(f64, RopeScaling), ConfigProblem> {
    let scaling = fields.object("rope_scaling", "rope_scaling.")?.filter(|scaling| !scaling.is_empty());
    let by_window = if rule.by_window { by_window(fields)? } else { None };
    if let (Some(_), Some(_), Some(value)) = (scaling, by_window, fields.get("rope_scaling")) {
        let hint = "rope_parameters states the scaling of each type of layer already; remove one of both";
        return Err(fields.unsupported("rope_scaling", value, hint));
    }
    let parameters = match (scaling, by_window) {
        (Some(scaling), _) => Some(scaling),
        (None, Some([full, _])) => full,
        (None, None) => {
            fields.object("rope_parameters", "rope_parameters.")?.filter(|parameters| !parameters.is_empty())
        }
    };
    let outer_theta = read_theta(fields)?;
    let Some(rope) = parameters else {
        if rule.is_required {
            let (key, why) = (fields.name("rope_parameters"), "no model of this architecture is without it");
            return Err(ConfigProblem::Missing { key, why });
        }
        return Ok((outer_theta.unwrap_or(theta_default), RopeScaling::Default));
    };
    if let Some((key, value)) = rope.entries().find(|(_, value)| value.is_object()) {
        return Err(rope.unsupported(key, value, "rope parameters that differ from layer to layer"));
    }
    let mut theta = read_theta(&rope)?.or(outer_theta).unwrap_or(theta_default);
    let kind = rope.text("rope_type")?.or(rope.text("type")?);
    if rule.kinds == Kinds::LongRope {
        return match kind {
            None if ["factor", "short_factor", "long_factor"].iter().any(|key| rope.get(key).is_some()) => {
                Err(missing(&rope, "rope_type", "there are factors, but not what to do with them"))
            }
            None | Some("default") => Ok((theta, RopeScaling::Default)),
            // Older configurations call LongRoPE "su" or "yarn".
            Some("longrope" | "su" | "yarn") => Ok((theta, read_longrope(fields, &rope, max_positions, rotated)?)),
            Some(other) => {
                Err(rope.unsupported("rope_type", &Value::from(other), "this architecture has longrope only"))
            }
        };
    }
    let has_alpha = rule.kinds == Kinds::Alpha && kind == Some("dynamic");
    if let Some(alpha) = positive(&rope, "alpha")?.filter(|_| has_alpha) {
        check_dynamic(rotated)?;
        theta *= alpha.powf(rotated as f64 / (rotated as f64 - 2.0));
        if !(theta as f32).is_finite() {
            let (key, limit) = (rope.name("alpha"), "a number with which the base stays finite".to_owned());
            return Err(ConfigProblem::OutOfRange { key, found: alpha.to_string(), limit });
        }
        return Ok((theta, RopeScaling::Default));
    }
    if rule.kinds == Kinds::Proportional && kind == Some(PROPORTIONAL) {
        let factor = positive(&rope, "factor")?.filter(|&factor| factor != 1.0);
        return Ok((theta, factor.map_or(RopeScaling::Default, |factor| RopeScaling::Linear { factor })));
    }
    let scaling = read_scaling(fields, &rope, max_positions, rotated)?;
    Ok((theta, scaling))
}

/// Reads the share of pairs that layers that see all rotate under a proportional scaling: all pairs under another
/// scaling, and `default` if the configuration has no rope parameters.
pub(in crate::families) fn read_proportion(fields: &Fields<'_>, default: f64) -> Result<f64, ConfigProblem> {
    let Some([full, _]) = by_window(fields)? else { return Ok(default) };
    let Some(rope) = full.filter(|rope| !rope.is_empty()) else { return Ok(1.0) };
    let share = rope.number(ROTATED.json, |share| (0.0..=1.0).contains(&share), "a number from 0 to 1")?;
    let is_proportional = rope.text("rope_type")?.or(rope.text("type")?) == Some(PROPORTIONAL);
    match share.filter(|&share| share != 1.0) {
        Some(share) if !is_proportional => {
            let hint = "a part of each head is known to rotate under the rope type proportional only";
            Err(rope.unsupported(ROTATED.json, &Value::from(share), hint))
        }
        share => Ok(share.unwrap_or(1.0)),
    }
}

/// Reads the base and the scaling of layers with a window; without rope parameters by type of layer, these layers have
/// no scaling.
pub(super) fn read_of_windows(
    fields: &Fields<'_>,
    [max_positions, rotated]: [usize; 2],
    theta_default: f64,
) -> Result<(f64, RopeScaling), ConfigProblem> {
    let Some([_, Some(rope)]) = by_window(fields)? else { return Ok((theta_default, RopeScaling::Default)) };
    let theta = read_theta(&rope)?.unwrap_or(theta_default);
    Ok((theta, read_scaling(fields, &rope, max_positions, rotated)?))
}

/// Reads the rope parameters of layers that see all and of layers with a window, which `rope_parameters` states by type
/// of layer; refuses parameters for both together, which `transformers` ignores in families that have two rotations.
fn by_window<'a>(fields: &Fields<'a>) -> Result<Option<[Option<Fields<'a>>; 2]>, ConfigProblem> {
    let Some(parameters) = fields.object("rope_parameters", "rope_parameters.")? else { return Ok(None) };
    let [full, sliding] = ["full_attention", "sliding_attention"];
    if parameters.is_empty() {
        return Ok(None);
    }
    if let Some((key, value)) = parameters.entries().find(|(key, _)| *key != full && *key != sliding) {
        let hint = "this architecture has rope parameters under full_attention and sliding_attention alone";
        return Err(parameters.unsupported(key, value, hint));
    }
    Ok(Some([
        parameters.object(full, "rope_parameters.full_attention.")?,
        parameters.object(sliding, "rope_parameters.sliding_attention.")?,
    ]))
}

/// Reads how queries grow with their positions, if they do.
pub(super) fn read_growth(fields: &Fields<'_>) -> Result<Option<QueryGrowth>, ConfigProblem> {
    for (key, prefix) in [("rope_scaling", "rope_scaling."), ("rope_parameters", "rope_parameters.")] {
        let Some(rope) = fields.object(key, prefix)?.filter(|rope| !rope.is_empty()) else { continue };
        let beta = rope.number("llama_4_scaling_beta", |beta| (0.0..1e6).contains(&beta), "a number from 0 to 1e6")?;
        let Some(beta) = beta.filter(|&beta| beta > 0.0) else { return Ok(None) };
        let key = "original_max_position_embeddings";
        let Some(length) = rope.count(key, 1..=POSITIONS_MAX)? else {
            return Err(missing(&rope, key, "queries grow with multiples of it"));
        };
        return Ok(Some(QueryGrowth { beta, length }));
    }
    Ok(None)
}

/// Reads which layers do not rotate: those with a 0 in `no_rope_layers`, or every `no_rope_layer_interval`-th.
pub(in crate::families) fn read_unrotated(fields: &Fields<'_>, num_layers: usize) -> Result<Vec<bool>, ConfigProblem> {
    let key = "no_rope_layers";
    let interval = fields.count("no_rope_layer_interval", 1..=POSITIONS_MAX)?.unwrap_or(4);
    let Some(value) = fields.get(key) else {
        return Ok((1..=num_layers).map(|layer| layer.is_multiple_of(interval)).collect());
    };
    let expected = "a list with a 0 or 1 for each layer";
    let Some(rotates) = value.as_array().filter(|rotates| rotates.len() == num_layers) else {
        return Err(fields.wrong_type(key, expected, value));
    };
    let unrotated = rotates.iter().map(|rotates| match rotates.as_u64() {
        Some(rotates @ 0..=1) => Ok(rotates == 0),
        _ => Err(fields.wrong_type(key, expected, rotates)),
    });
    unrotated.collect()
}

/// Reads how many elements of each head are rotated.
pub(super) fn read_rotated(
    fields: &Fields<'_>,
    rule: &RopeRule,
    rotated: &Rotated,
    head_dim: usize,
) -> Result<usize, ConfigProblem> {
    let key = ROTATED.json;
    let default = match rotated {
        Rotated::Share(share) => *share,
        // The share that these elements make is the default of `partial_rotary_factor`.
        Rotated::Count(key) => match fields.count(key, 2..=head_dim)? {
            Some(rotated) => rotated as f64 / head_dim as f64,
            None => 1.0,
        },
        Rotated::ByLayer => return Ok(head_dim),
        Rotated::Whole => {
            let whole_hint = "1: this architecture is known with whole heads rotated only";
            let by_window = if rule.by_window { by_window(fields)? } else { None };
            let [full, sliding] = by_window.unwrap_or_default();
            let objects = [
                fields.object("rope_parameters", "rope_parameters.")?,
                fields.object("rope_scaling", "rope_scaling.")?,
                full,
                sliding,
            ];
            for fields in objects.iter().flatten().chain([fields]) {
                fields.number(key, |share| share == 1.0, whole_hint)?;
            }
            return Ok(head_dim);
        }
    };
    let share = |fields: &Fields<'_>| fields.number(key, |share| (0.0..=1.0).contains(&share), "a number from 0 to 1");
    let mut written = None;
    for (key, prefix) in [("rope_scaling", "rope_scaling."), ("rope_parameters", "rope_parameters.")] {
        if let Some(parameters) = fields.object(key, prefix)? {
            written = written.or(share(&parameters)?);
        }
    }
    let rotated = (head_dim as f64 * written.or(share(fields)?).unwrap_or(default)) as usize;
    if rotated < 2 || !rotated.is_multiple_of(2) {
        let (key, limit) = (fields.name(key), format!("a share that makes an even number of {head_dim} elements"));
        return Err(ConfigProblem::OutOfRange { key, found: rotated.to_string(), limit });
    }
    Ok(rotated)
}

fn read_theta(fields: &Fields<'_>) -> Result<Option<f64>, ConfigProblem> {
    fields.number("rope_theta", |theta| theta > 1.0, "a number above 1")
}

fn read_scaling(
    fields: &Fields<'_>,
    rope: &Fields<'_>,
    max_positions: usize,
    rotated: usize,
) -> Result<RopeScaling, ConfigProblem> {
    let kind = match (rope.text("rope_type")?, rope.text("type")?) {
        (Some(kind), _) | (None, Some(kind)) => kind,
        (None, None) if rope.get("factor").is_some() => {
            return Err(missing(rope, "rope_type", "there is a factor, but not what to do with it"));
        }
        (None, None) => "default",
    };
    match kind {
        "default" => Ok(RopeScaling::Default),
        "linear" => Ok(RopeScaling::Linear { factor: required(rope, "factor")? }),
        "dynamic" => {
            check_dynamic(rotated)?;
            Ok(RopeScaling::Dynamic { factor: required(rope, "factor")?, original_max: max_positions })
        }
        "yarn" => read_yarn(fields, rope, max_positions),
        "llama3" => {
            let factor = required(rope, "factor")?;
            let low_freq_factor = required(rope, "low_freq_factor")?;
            let high_freq_factor = required(rope, "high_freq_factor")?;
            if high_freq_factor <= low_freq_factor {
                return Err(ConfigProblem::OutOfRange {
                    key: rope.name("high_freq_factor"),
                    found: high_freq_factor.to_string(),
                    limit: format!("more than low_freq_factor, which is {low_freq_factor}"),
                });
            }
            let original_max = original_max(fields, rope, max_positions)?;
            Ok(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max })
        }
        other => {
            let hint = "supported rope types are default, linear, dynamic, yarn and llama3";
            Err(rope.unsupported("rope_type", &Value::from(other), hint))
        }
    }
}

/// Refuses a dynamic scaling of fewer than 4 rotated elements: its formula divides by their number less 2.
fn check_dynamic(rotated: usize) -> Result<(), ConfigProblem> {
    if rotated > 2 {
        return Ok(());
    }
    let (key, limit) = ("head_dim".to_owned(), "at least 4 with dynamic rope".to_owned());
    Err(ConfigProblem::OutOfRange { key, found: rotated.to_string(), limit })
}

fn read_longrope(
    fields: &Fields<'_>,
    rope: &Fields<'_>,
    max_positions: usize,
    rotated: usize,
) -> Result<RopeScaling, ConfigProblem> {
    let original_max = original_max(fields, rope, 4096)?;
    let factors = |key: &str| {
        let expected = "a list of a number from 1e-6 to 1e6 for each two elements that are rotated";
        let Some(value) = rope.get(key) else { return Err(missing(rope, key, "longrope has two lists of factors")) };
        let Some(values) = value.as_array().filter(|values| values.len() == rotated / 2) else {
            return Err(rope.wrong_type(key, expected, value));
        };
        let factor = |value: &Value| match value.as_f64().filter(|factor| (1e-6..1e6).contains(factor)) {
            Some(factor) => Ok(factor as f32),
            None => Err(rope.wrong_type(key, expected, value)),
        };
        values.iter().map(factor).collect::<Result<Vec<_>, _>>()
    };
    let stretch = positive(rope, "factor")?.unwrap_or(max_positions as f64 / original_max as f64);
    let limits = "a number from 1e-6 to 1e6";
    let given = rope.number("attention_factor", |factor| (1e-6..1e6).contains(&factor), limits)?;
    let attention_factor = given.unwrap_or(by_stretch(stretch, original_max));
    if !(1e-6..1e6).contains(&attention_factor) {
        let (key, found) = (rope.name("original_max_position_embeddings"), original_max.to_string());
        return Err(ConfigProblem::OutOfRange { key, found, limit: "more than 1".to_owned() });
    }
    let (short, long) = (factors("short_factor")?, factors("long_factor")?);
    Ok(RopeScaling::LongRope { short, long, original_max, attention_factor, is_long: max_positions > original_max })
}

fn read_yarn(fields: &Fields<'_>, rope: &Fields<'_>, max_positions: usize) -> Result<RopeScaling, ConfigProblem> {
    let original_max = original_max(fields, rope, max_positions)?;
    let factor = match positive(rope, "factor")? {
        Some(factor) => factor,
        // A factor that is written as null is inferred, as some exports intend; a factor that is absent is an error.
        None if rope.is_written("factor") => max_positions as f64 / original_max as f64,
        None => return Err(missing(rope, "factor", "yarn needs to know the stretch")),
    };
    let mscale = |scale: f64, by: f64| if scale <= 1.0 { 1.0 } else { 0.1 * by * scale.ln() + 1.0 };
    let not_negative = |number: f64| number >= 0.0;
    let given = rope.number("attention_factor", not_negative, "a number from 0 up")?;
    let by = rope.number("mscale", |_| true, "a number")?.filter(|&by| by != 0.0);
    let by_all = rope.number("mscale_all_dim", |_| true, "a number")?.filter(|&by| by != 0.0);
    let attention_factor = match (given, by, by_all) {
        (Some(given), _, _) => given,
        (None, Some(by), Some(by_all)) => mscale(factor, by) / mscale(factor, by_all),
        (None, _, _) => mscale(factor, 1.0),
    };
    if !(1e-6..1e6).contains(&attention_factor) {
        return Err(ConfigProblem::OutOfRange {
            key: rope.name("attention_factor, given or made by mscale and mscale_all_dim,"),
            found: attention_factor.to_string(),
            limit: "a number from 1e-6 to 1e6".to_owned(),
        });
    }
    // Zero stands for the default, as in `transformers`.
    let beta = |key, default| {
        let beta = rope.number(key, not_negative, "a number from 0 up")?;
        Ok::<_, ConfigProblem>(beta.filter(|&beta| beta != 0.0).unwrap_or(default))
    };
    Ok(RopeScaling::Yarn {
        factor,
        original_max,
        beta_fast: beta("beta_fast", 32.0)?,
        beta_slow: beta("beta_slow", 1.0)?,
        attention_factor,
        truncate: rope.flag("truncate")?.unwrap_or(true),
    })
}

/// Reads the context of pre-training. A key outside the rope parameters wins over one inside; without either, the
/// model's own context counts.
fn original_max(fields: &Fields<'_>, rope: &Fields<'_>, max_positions: usize) -> Result<usize, ConfigProblem> {
    let key = "original_max_position_embeddings";
    let outer = fields.count(key, 1..=POSITIONS_MAX)?;
    Ok(outer.or(rope.count(key, 1..=POSITIONS_MAX)?).unwrap_or(max_positions))
}

fn positive(rope: &Fields<'_>, key: &str) -> Result<Option<f64>, ConfigProblem> {
    rope.number(key, |number| number >= 1e-6, "a number above 0")
}

fn required(rope: &Fields<'_>, key: &str) -> Result<f64, ConfigProblem> {
    positive(rope, key)?.ok_or_else(|| missing(rope, key, "this rope type needs it"))
}

fn missing(rope: &Fields<'_>, key: &str, why: &'static str) -> ConfigProblem {
    ConfigProblem::Missing { key: rope.name(key), why }
}

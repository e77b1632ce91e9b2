//! Rope parameters of GGUF files, in metadata and in tensors.

use serde_json::Value;

use super::{FACTORS, FACTORS_LONG, FACTORS_SHORT, Kinds, POSITIONS_MAX, RopeRule, TEMPERATURE, by_stretch};
use crate::blueprint::RopeScaling;
use crate::config_error::ConfigProblem;
use crate::keys::gguf::GgufKeys;
use crate::keys::{Keys, key};

/// Reads which scaling the metadata of a GGUF file states.
pub(super) fn read_scaling(keys: &GgufKeys<'_>, rule: &RopeRule, context: usize) -> Result<RopeScaling, ConfigProblem> {
    let factor = match keys.number("rope.scaling.factor")? {
        Some(factor) => factor,
        // Older files state the factor under this key.
        None => keys.number("rope.scale_linear")?.unwrap_or(1.0),
    };
    let kind = keys.text("rope.scaling.type")?;
    match kind.unwrap_or("linear") {
        "none" => Ok(RopeScaling::Default),
        "linear" if factor == 1.0 || factor == 0.0 => Ok(RopeScaling::Default),
        "linear" => Ok(RopeScaling::Linear { factor: stretch(keys, factor)? }),
        "yarn" => read_yarn(keys, rule, [factor, context as f64]),
        other => {
            let hint = "supported rope types are none, linear and yarn, and factors in rope_freqs.weight";
            Err(keys.unsupported("rope.scaling.type", &Value::from(other), hint))
        }
    }
}

/// Checks that a stretch factor is large enough to divide by.
fn stretch(keys: &GgufKeys<'_>, factor: f64) -> Result<f64, ConfigProblem> {
    let keys = Keys::Gguf(*keys);
    keys.checked(key("", "rope.scaling.factor"), factor, |factor| factor >= 1e-6, "a number above 0")
}

fn read_yarn(keys: &GgufKeys<'_>, rule: &RopeRule, [factor, context]: [f64; 2]) -> Result<RopeScaling, ConfigProblem> {
    let log_key = "rope.scaling.yarn_log_multiplier";
    let log = keys.number(log_key)?.filter(|&log| log != 0.0);
    if let Some(log) = log.filter(|_| !rule.grows) {
        return Err(keys.unsupported(log_key, &Value::from(log), "no model of this architecture has it"));
    }
    // Cosines and sines grow with the stretch, unless the file says by how much: converters write the whole of it,
    // `attention_factor`, under this key. A second factor comes on top of either.
    let whole = keys.number("rope.scaling.yarn_attn_factor")?;
    let on_top = keys.number("rope.scaling.attn_factor")?;
    let stretched = |by: f64| if factor > 1.0 { 0.1 * by * factor.ln() + 1.0 } else { 1.0 };
    let by_stretch = stretched(1.0) / log.map_or(1.0, stretched);
    let original_key = "rope.scaling.original_context_length";
    let original = match keys.count(original_key)? {
        Some(original) => original,
        None => context as u64,
    };
    if rule.grows
        && let Some(other) = keys.count(TEMPERATURE[1])?.filter(|&length| length > 0 && length != original)
    {
        let hint = "queries are known to grow with multiples of the original context only";
        return Err(keys.unsupported(TEMPERATURE[1], &Value::from(other), hint));
    }
    let interface = Keys::Gguf(*keys);
    let beta = |name: &'static str, default: f64| {
        let beta = interface.number(key("", name), |beta| beta >= 0.0, "a number from 0 up")?;
        // A value of zero means the default.
        Ok::<_, ConfigProblem>(beta.filter(|&beta| beta != 0.0).unwrap_or(default))
    };
    let attention_factor = on_top.unwrap_or(1.0) * whole.unwrap_or(by_stretch);
    let attention_key =
        key("", if whole.is_some() { "rope.scaling.yarn_attn_factor" } else { "rope.scaling.attn_factor" });
    let is_usable = |factor: f64| (1e-6..1e6).contains(&factor);
    Ok(RopeScaling::Yarn {
        factor: stretch(keys, factor)?,
        original_max: keys.within(original_key, original, 1..=POSITIONS_MAX)?,
        beta_fast: beta("rope.scaling.yarn_beta_fast", 32.0)?,
        beta_slow: beta("rope.scaling.yarn_beta_slow", 1.0)?,
        attention_factor: interface.checked(attention_key, attention_factor, is_usable, "a number from 1e-6 to 1e6")?,
        truncate: rule.truncates,
    })
}

/// Reads the two sets of factors of the frequencies, if a GGUF file has them.
pub(super) fn read_factor_sets(
    keys: &GgufKeys<'_>,
    [context, rotated]: [usize; 2],
) -> Result<RopeScaling, ConfigProblem> {
    let kind = keys.text("rope.scaling.type")?;
    if let Some(other) = kind.filter(|&kind| !matches!(kind, "none" | "longrope")) {
        let hint = "this architecture is known with longrope only";
        return Err(keys.unsupported("rope.scaling.type", &Value::from(other), hint));
    }
    let [short, long] = [FACTORS_SHORT, FACTORS_LONG].map(|name| keys.factors(name, rotated / 2));
    let (short, long) = match (short?, long?) {
        (Some(short), Some(long)) => (short, long),
        (None, None) if kind != Some("longrope") => return Ok(RopeScaling::Default),
        (short, _) => {
            let key = if short.is_none() { FACTORS_SHORT } else { FACTORS_LONG };
            return Err(ConfigProblem::Missing { key: key.to_owned(), why: "longrope needs both sets of factors" });
        }
    };
    let original_key = "rope.scaling.original_context_length";
    let original_max = match keys.count(original_key)? {
        Some(original) => keys.within(original_key, original, 1..=POSITIONS_MAX)?,
        None => context,
    };
    let (interface, limit) = (Keys::Gguf(*keys), "a number from 1e-6 to 1e6");
    let is_usable = |factor: f64| (1e-6..1e6).contains(&factor);
    let given = interface.number(key("", "rope.scaling.attn_factor"), is_usable, limit)?;
    let attention_factor = given.unwrap_or(by_stretch(context as f64 / original_max as f64, original_max));
    let attention_factor = interface.checked(key("", original_key), attention_factor, is_usable, limit)?;
    Ok(RopeScaling::LongRope { short, long, original_max, attention_factor, is_long: context > original_max })
}

/// Reads the factors of the main rotation, one for each pair of elements. Refuses files that hold two sets of factors
/// if the family does not use these, since they would change what is computed.
pub(in crate::families::shared) fn read_factors(
    keys: &GgufKeys<'_>,
    rule: &RopeRule,
    rotated: usize,
) -> Result<Option<Vec<f32>>, ConfigProblem> {
    let two_sets = [FACTORS_SHORT, FACTORS_LONG].into_iter().filter(|_| rule.kinds != Kinds::LongRope);
    for name in two_sets {
        if let Some(shape) = keys.shape_of(name) {
            let hint = "two sets of rope factors (longrope) are not supported in this architecture";
            let found = format!("{shape:?}");
            return Err(ConfigProblem::Unsupported { key: name.to_owned(), found, hint });
        }
    }
    keys.factors(FACTORS, rotated / 2)
}

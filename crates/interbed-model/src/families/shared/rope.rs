//! Functions that read from a configuration how queries and keys are rotated.

mod in_gguf;
mod in_json;

use serde_json::Value;

use crate::blueprint::{QueryGrowth, RopeScaling};
use crate::config_error::ConfigProblem;
use crate::keys::{Key, Keys, key};

pub(super) use in_gguf::read_factors;
pub(in crate::families) use in_json::{read_proportion, read_unrotated};

/// Name of the tensor in GGUF files with the factors that frequencies are divided by.
pub(crate) const FACTORS: &str = "rope_freqs.weight";
/// Name of the tensor with the factors for short contexts, in models with two sets; see [`RopeScaling::LongRope`].
pub(crate) const FACTORS_SHORT: &str = "rope_factors_short.weight";
pub(crate) const FACTORS_LONG: &str = "rope_factors_long.weight";
/// Keys of GGUF files that say how queries grow with their positions: by how much, and after how many positions.
pub(super) const TEMPERATURE: [&str; 2] = ["attention.temperature_scale", "attention.temperature_length"];

const THETA: Key = key("rope_theta", "rope.freq_base");
/// The key of GGUF files for the base of layers with a window.
pub(in crate::families) const THETA_OF_WINDOWS: &str = "rope.freq_base_swa";
const ROTATED: Key = key("partial_rotary_factor", "rope.dimension_count");

/// Longest context that any configuration may state.
const POSITIONS_MAX: usize = 1 << 31;

/// What a family needs to know when its rope parameters are read.
pub(in crate::families) struct RopeRule {
    /// Whether models without RoPE parameters are refused.
    pub is_required: bool,
    /// Which kinds of RoPE scaling the family has.
    pub kinds: Kinds,
    /// Whether queries are scaled by position.
    pub grows: bool,
    /// Whether layers with a window have their own rotation.
    pub by_window: bool,
    /// Whether the ends of YaRN's ramp are rounded to whole dimensions in models from GGUF files. GGUF files have no
    /// key that states this.
    pub truncates: bool,
}

/// Kinds of rope scaling that a family has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::families) enum Kinds {
    /// The scalings that most families share: none, linear, dynamic, YaRN, and that of Llama 3.1.
    Usual,
    /// LongRoPE with two sets of factors. A model of the family may also have no scaling.
    LongRope,
    /// The scalings of [`Kinds::Usual`], and one that rotates only the first pairs of each head, at the frequencies
    /// that they would have if all pairs rotated. The family reads how many pairs these are.
    Proportional,
    /// The scalings of [`Kinds::Usual`], with one exception: if a dynamic scaling has the key `alpha`, the base is
    /// multiplied by a factor that does not depend on the length of the sequence.
    Alpha,
}

/// Where a family's configurations state how many elements of each head are rotated.
pub(in crate::families) enum Rotated {
    /// All elements are rotated. A configuration that says otherwise is refused.
    Whole,
    /// `partial_rotary_factor` states the share of elements that are rotated. The number is the default share.
    Share(f64),
    /// The key of this name states the number of rotated elements, unless `partial_rotary_factor` states a share.
    Count(&'static str),
    /// Layers differ. The family reads which elements each layer rotates, and the shared code takes whole heads.
    ByLayer,
}

impl RopeRule {
    /// The rule of most families.
    pub const USUAL: Self =
        Self { is_required: false, kinds: Kinds::Usual, grows: false, by_window: false, truncates: true };
}

/// Reads the base of the frequencies and their scaling, for a stated context of `positions` tokens and `rotated`
/// elements of each head.
pub(super) fn read(
    keys: &Keys<'_>,
    rule: &RopeRule,
    [positions, rotated]: [usize; 2],
    theta_default: f64,
) -> Result<(f64, RopeScaling), ConfigProblem> {
    match keys {
        Keys::Json(fields) => in_json::read(fields, rule, [positions, rotated], theta_default),
        Keys::Gguf(gguf) => {
            let theta = read_theta(keys, THETA)?.unwrap_or(10_000.0);
            let of_windows = read_theta(keys, key("", THETA_OF_WINDOWS))?;
            if let Some(other) = of_windows.filter(|&other| !rule.by_window && other != theta) {
                let hint = "layers with a window are not known to rotate otherwise in this architecture";
                return Err(gguf.unsupported(THETA_OF_WINDOWS, &Value::from(other), hint));
            }
            let scaling = match rule.kinds {
                Kinds::LongRope => in_gguf::read_factor_sets(gguf, [positions, rotated])?,
                Kinds::Usual | Kinds::Alpha | Kinds::Proportional => in_gguf::read_scaling(gguf, rule, positions)?,
            };
            if scaling == RopeScaling::Default && rule.is_required {
                let (key, why) = (gguf.name("rope.scaling.type"), "no model of this architecture is without scaling");
                return Err(ConfigProblem::Missing { key, why });
            }
            Ok((theta, scaling))
        }
    }
}

/// Reads the base and the scaling of layers with a window, in families whose rule says that they rotate in a way of
/// their own, for a stated context of `positions` tokens and `rotated` elements of each head.
pub(super) fn read_of_windows(
    keys: &Keys<'_>,
    key: Key,
    [positions, rotated]: [usize; 2],
    theta_default: f64,
) -> Result<(f64, RopeScaling), ConfigProblem> {
    let theta = read_theta(keys, key)?.unwrap_or(theta_default);
    match keys {
        Keys::Json(fields) => in_json::read_of_windows(fields, [positions, rotated], theta),
        Keys::Gguf(_) => Ok((theta, RopeScaling::Default)),
    }
}

fn read_theta(keys: &Keys<'_>, key: Key) -> Result<Option<f64>, ConfigProblem> {
    keys.number(key, |theta| theta > 1.0, "a number above 1")
}

/// Reads how queries grow with their positions, if they do.
pub(in crate::families) fn read_growth(
    keys: &Keys<'_>,
    scaling: &RopeScaling,
) -> Result<Option<QueryGrowth>, ConfigProblem> {
    match keys {
        Keys::Json(fields) => in_json::read_growth(fields),
        Keys::Gguf(gguf) => {
            let beta = gguf.number(TEMPERATURE[0])?;
            let beta = beta.map(|beta| {
                let (key, limit) = (key("", TEMPERATURE[0]), "a number from 0 to 1e6");
                keys.checked(key, beta, |beta| (0.0..1e6).contains(&beta), limit)
            });
            let Some(beta) = beta.transpose()?.filter(|&beta| beta > 0.0) else { return Ok(None) };
            let RopeScaling::Yarn { original_max: length, .. } = *scaling else {
                let hint = "queries are known to grow with multiples of yarn's original context only";
                return Err(gguf.unsupported(TEMPERATURE[0], &Value::from(beta), hint));
            };
            Ok(Some(QueryGrowth { beta, length }))
        }
    }
}

/// Reads how many elements of each head are rotated.
pub(super) fn read_rotated(
    keys: &Keys<'_>,
    rule: &RopeRule,
    rotated: &Rotated,
    head_dim: usize,
) -> Result<usize, ConfigProblem> {
    match keys {
        Keys::Json(fields) => in_json::read_rotated(fields, rule, rotated, head_dim),
        Keys::Gguf(gguf) => {
            let of_head = gguf.count(ROTATED.gguf)?.unwrap_or(head_dim as u64);
            let is_part = usize::try_from(of_head).is_ok_and(|of_head| of_head < head_dim);
            let may_be_part = !matches!(rotated, Rotated::Whole);
            if of_head != head_dim as u64 && !(is_part && may_be_part) {
                let hint = "this architecture is not known with a part of each head rotated";
                return Err(gguf.unsupported(ROTATED.gguf, &Value::from(of_head), hint));
            }
            if of_head < 2 || !of_head.is_multiple_of(2) {
                let limit = format!("an even number up to {head_dim}");
                return Err(keys.out_of_range(ROTATED, of_head, limit));
            }
            Ok(of_head as usize)
        }
    }
}

/// Returns LongRoPE's factor of cosines and sines for a context that is `stretch` times the original one.
fn by_stretch(stretch: f64, original_max: usize) -> f64 {
    if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / (original_max as f64).ln()).sqrt() }
}

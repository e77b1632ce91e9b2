//! Hunyuan: norms on query and key heads after they are rotated.

use interbed_kernels::RopeStyle;
use serde_json::Value;

use super::shared::habits::{Bias, Habits};
use super::shared::rope::{Kinds, RopeRule};
use super::{Family, GgufForm};
use crate::blueprint::HeadNorms;
use crate::config_error::ConfigProblem;
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    name: "HunyuanDense",
    model_types: &["hunyuan_v1_dense"],
    gguf: Some(GgufForm::new(&["hunyuan-dense"], RopeStyle::Halves)),
    habits: HABITS,
    read: |keys, mut decoder| {
        refuse_others(keys, &[("use_cla", false), ("use_qk_norm", true)])?;
        decoder.norm_heads(HeadNorms::EachAfter);
        Ok(decoder.blueprint())
    },
    ..Family::PLAIN
};

/// What all Hunyuan models take for granted.
pub(super) const HABITS: Habits = Habits {
    vocab_size: 290_943,
    epsilon: 1e-5,
    input_bias: Bias::Stated("attention_bias", false),
    output_bias: Bias::Stated("attention_bias", false),
    // A dynamic scaling with an `alpha` is none: a fixed factor of the base.
    rope: RopeRule { kinds: Kinds::Alpha, ..RopeRule::USUAL },
    ..Habits::PLAIN
};

/// Refuses flags of `config.json` with another value than the one that is computed.
pub(super) fn refuse_others(keys: &Keys<'_>, computed: &[(&str, bool)]) -> Result<(), ConfigProblem> {
    let Some(fields) = keys.json() else { return Ok(()) };
    for &(key, computed) in computed {
        if let Some(value) = fields.get(key).filter(|value| **value != Value::Bool(computed)) {
            return Err(fields.unsupported(key, value, "this architecture is known with the other value only"));
        }
    }
    Ok(())
}

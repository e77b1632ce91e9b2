//! Granite 3: scaled embeddings, branches and logits, and a factor of attention scores.

use interbed_kernels::RopeStyle;
use serde_json::Value;

use super::shared::decoder::{Decoder, other_than_zero};
use super::shared::habits::{Bias, Habits};
use super::shared::refusals::UNCOMPUTED;
use super::{Family, GgufForm, GgufWriting};
use crate::config_error::ConfigProblem;
use crate::keys::{Key, Keys, key};

pub(super) static FAMILY: Family = Family {
    name: "Granite",
    model_types: &["granite"],
    gguf: Some(GgufForm::new(&["granite"], RopeStyle::Neighbours).written(GgufWriting {
        has_factors: true,
        has_attention_factor: true,
        ..GgufWriting::PLAIN
    })),
    habits: Habits { network_bias: Bias::Stated("mlp_bias", false), ..HABITS },
    read: |keys, mut decoder| {
        read_factors(keys, &mut decoder)?;
        Ok(decoder.blueprint())
    },
    ..Family::PLAIN
};

/// What all Granite models take for granted.
pub(super) const HABITS: Habits = Habits {
    input_bias: Bias::Stated("attention_bias", false),
    output_bias: Bias::Stated("attention_bias", false),
    ..Habits::PLAIN
};

/// Reads the four factors, and refuses files whose positions are not rotated.
pub(super) fn read_factors(keys: &Keys<'_>, decoder: &mut Decoder) -> Result<(), ConfigProblem> {
    // Converters say by this that positions are not rotated at all.
    let finetuned = "rope.scaling.finetuned";
    if let Some(gguf) = keys.gguf()
        && gguf.flag(finetuned)? == Some(false)
    {
        return Err(gguf.unsupported(finetuned, &Value::from(false), UNCOMPUTED));
    }
    read_multipliers(keys, decoder)
}

/// Reads the four factors.
pub(super) fn read_multipliers(keys: &Keys<'_>, decoder: &mut Decoder) -> Result<(), ConfigProblem> {
    let factor = |key: Key| match keys.gguf() {
        // Zero means that there is none.
        Some(gguf) if gguf.number(key.gguf)? == Some(0.0) => Ok(None),
        _ => other_than_zero(keys, key),
    };
    decoder.embedding_factor = factor(key("embedding_multiplier", "embedding_scale"))?.unwrap_or(1.0);
    decoder.branch_factor = factor(key("residual_multiplier", "residual_scale"))?.unwrap_or(1.0);
    decoder.logits_divisor = factor(key("logits_scaling", "logit_scale"))?.unwrap_or(1.0);
    match (factor(key("attention_multiplier", "attention.scale"))?, keys) {
        (Some(scale), _) => decoder.attention.scale = scale as f32,
        // The default is 1, not the value that follows from the width of heads.
        (None, Keys::Json(_)) => decoder.attention.scale = 1.0,
        (None, Keys::Gguf(_)) => {}
    }
    Ok(())
}

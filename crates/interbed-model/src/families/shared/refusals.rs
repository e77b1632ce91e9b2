//! Refusals of models that Interbed would load without noticing that they need another computation.

use serde_json::Value;

use super::habits::Habits;
use super::rope;
use crate::config_error::ConfigProblem;
use crate::keys::Keys;
use crate::keys::json::Fields;

/// Keys under which `config.json` files state the number of experts.
const EXPERT_COUNTS: [&str; 4] = ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];

/// Refuses models that Interbed would load without noticing that they need another computation.
pub(super) fn refuse_uncomputed(keys: &Keys<'_>, habits: &Habits) -> Result<(), ConfigProblem> {
    match keys {
        Keys::Json(fields) => refuse_in_json(fields, habits.has_experts),
        Keys::Gguf(keys) => {
            let count = keys.of_experts("expert_count")?.filter(|&count| count > 0 && !habits.has_experts);
            if let Some(count) = count {
                let hint = "this architecture is known without experts only";
                return Err(keys.unsupported("expert_count", &Value::from(count), hint));
            }
            // A key of a known name and the wrong kind shows that the file is damaged.
            let of_shared = ["expert_shared_count", "expert_shared_feed_forward_length"];
            for key in of_shared.into_iter().filter(|_| habits.has_experts) {
                keys.of_experts(key)?;
            }
            let read = if habits.rope.grows { rope::TEMPERATURE.as_slice() } else { &[] };
            let guesses = [("nextn_predict_layers", 0.0)].into_iter().filter(|_| !habits.has_guesses);
            let of_mixtures = guesses.chain([("leading_dense_block_count", 0.0)]);
            let is_read = |key: &str| read.contains(&key) || key == LOGIT_CAP && habits.caps_logits;
            let numbers = NEUTRAL_NUMBERS.into_iter().filter(|(key, _)| !is_read(key));
            let flags = [("attention.causal", true), ("use_parallel_residual", false)];
            for (key, neutral) in flags {
                if let Some(flag) = keys.flag(key)?.filter(|&flag| flag != neutral) {
                    return Err(keys.unsupported(key, &Value::from(flag), UNCOMPUTED));
                }
            }
            for (key, neutral) in numbers.chain(of_mixtures.filter(|_| !habits.has_experts)) {
                if let Some(number) = keys.number(key)?.filter(|&number| number != neutral) {
                    return Err(keys.unsupported(key, &Value::from(number), UNCOMPUTED));
                }
            }
            Ok(())
        }
    }
}

/// Advice of messages about a key that asks for a computation that Interbed lacks.
pub(in crate::families) const UNCOMPUTED: &str =
    "it changes what is computed, in a way that Interbed does not; use an engine that does";

/// The key of GGUF files for the bound of logits.
const LOGIT_CAP: &str = "final_logit_softcapping";

/// Keys of GGUF files for computations that Interbed lacks, and the values that switch these off.
const NEUTRAL_NUMBERS: [(&str, f64); 7] = [
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attn_logit_softcapping", 0.0),
    (LOGIT_CAP, 0.0),
    (rope::TEMPERATURE[0], 0.0),
    (rope::TEMPERATURE[1], 0.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
];

fn refuse_in_json(fields: &Fields<'_>, has_experts: bool) -> Result<(), ConfigProblem> {
    for key in EXPERT_COUNTS {
        match fields.get(key).filter(|_| !has_experts) {
            None => {}
            Some(value) if value.as_f64() == Some(0.0) => {}
            Some(value) => {
                return Err(fields.unsupported(key, value, "this architecture is known without experts only"));
            }
        }
    }
    // These keys ask for computations that Interbed lacks, unless they have the neutral value.
    for (key, neutral) in [("clip_qkv", Value::Null), ("use_bias", Value::Bool(false))] {
        if let Some(value) = fields.get(key).filter(|value| has_experts && **value != neutral) {
            return Err(fields.unsupported(key, value, "it changes what is computed, in a way that Interbed does not"));
        }
    }
    Ok(())
}

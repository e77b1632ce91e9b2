//! MiniCPM, FM9G and Jiuge: Llama with scaled embeddings, branches and logits.

use interbed_kernels::RopeStyle;
use serde_json::json;

use super::presets::{Config, with};
use super::shared::decoder::other_than_zero;
use super::shared::habits::{Bias, Habits};
use super::{Family, GgufForm, GgufWriting};
use crate::config_error::ConfigProblem;
use crate::keys::key;

pub(super) static FAMILY: Family = Family {
    name: "MiniCpm",
    model_types: &["minicpm", "fm9g", "fm9g7b"],
    gguf: Some(
        GgufForm::new(&["minicpm"], RopeStyle::Neighbours)
            .written(GgufWriting { has_factors: true, ..GgufWriting::PLAIN }),
    ),
    habits: Habits {
        is_tied: true,
        input_bias: Bias::Stated("attention_bias", false),
        output_bias: Bias::Stated("attention_bias", false),
        ..Habits::PLAIN
    },
    read: |keys, mut decoder| {
        let (layers, hidden) = ((decoder.layers as f64).sqrt(), decoder.hidden as f64);
        let (embedding, branch) = (key("scale_emb", "embedding_scale"), key("scale_depth", "residual_scale"));
        let logits = key("dim_model_base", "logit_scale");
        match keys.gguf() {
            None => {
                decoder.embedding_factor = other_than_zero(keys, embedding)?.unwrap_or(1.0);
                decoder.branch_factor = other_than_zero(keys, branch)?.map_or(1.0, |depth| depth / layers);
                decoder.logits_divisor = other_than_zero(keys, logits)?.map_or(1.0, |base| hidden / base);
            }
            // Files older than these keys are of the first MiniCPM, and these are its factors. Zero means none.
            Some(gguf) => {
                let factor = |name: &str, default: f64| match gguf.number(name)? {
                    Some(0.0) => Ok(1.0),
                    stated => Ok::<_, ConfigProblem>(stated.unwrap_or(default)),
                };
                let is_usable = |factor: f64| factor.abs() >= 1e-9;
                let usable = |key, factor| keys.checked(key, factor, is_usable, "a number other than 0");
                decoder.embedding_factor = usable(embedding, factor(embedding.gguf, 12.0)?)?;
                decoder.branch_factor = usable(branch, factor(branch.gguf, 1.4 / layers)?)?;
                decoder.logits_divisor = usable(logits, factor(logits.gguf, hidden / 256.0)?)?;
            }
        }
        Ok(decoder.blueprint())
    },
    presets: &[
        ("fm9g-7b", fm9g_7b),
        ("jiuge-7b", fm9g_7b),
    ],
    ..Family::PLAIN
};

/// Llama-2-7B's shape under MiniCPM's three scales.
fn fm9g_7b() -> Config {
    with(
        json!({
            "architectures": ["FM9GForCausalLM"], "model_type": "fm9g", "torch_dtype": "bfloat16",
            "vocab_size": 73_440, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu",
            "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "rope_scaling": null,
            "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "tie_word_embeddings": false,
            "bos_token_id": 1, "eos_token_id": 2,
        }),
        json!({}),
    )
}

//! Nemotron-H and Nemotron 3: each layer is a state space, attention without positions, a network without a gate, or a
//! mixture of such networks.

use interbed_kernels::RopeStyle;
use serde_json::{Value, json};

use super::glm4_moe;
use super::presets::{Config, with};
use super::shared::decoder::Decoder;
use super::shared::experts;
use super::shared::habits::{ActivationRule, Habits};
use super::shared::mamba::{self, Names};
use super::shared::refusals::UNCOMPUTED;
use super::{Family, GgufForm, GgufWriting};
use crate::blueprint::{
    Activation, Attention, Blueprint, Branch, DecoderLayer, Dense, Mixture, Norm, Part, Passage, SharedExpert,
};
use crate::config_error::ConfigProblem;
use crate::keys::json::Fields;
use crate::keys::{Key, Keys, key};

pub(super) static FAMILY: Family = Family {
    name: "NemotronH",
    model_types: &["nemotron_h"],
    gguf: Some(GgufForm::new(&["nemotron_h", "nemotron_h_moe"], RopeStyle::Halves).written(GgufWriting {
        activation: Activation::SquaredRelu,
        normalises: true,
        has_expert_width: true,
        with_experts: Some("nemotron_h_moe"),
        ..GgufWriting::PLAIN
    })),
    habits: Habits {
        vocab_size: 131_072,
        inner: 21_504,
        kv_heads: Some(8),
        head_dim: Some(128),
        positions: 4096,
        epsilon: 1e-5,
        activation: ActivationRule::NamedBy("mlp_hidden_act", Activation::SquaredRelu),
        has_experts: true,
        has_recurrence: true,
        has_guesses: true,
        ..Habits::PLAIN
    },
    read: |keys, mut decoder| {
        if let Keys::Json(fields) = keys {
            refuse_other(fields)?;
            let epsilon = key("layer_norm_epsilon", "");
            let epsilon = keys.number(epsilon, |epsilon| (0.0..1.0).contains(&epsilon), "a number from 0 to 1")?;
            decoder.norm_epsilon = epsilon.map_or(decoder.norm_epsilon, |epsilon| epsilon as f32);
        }
        let kinds = read_kinds(keys, decoder.layers)?;
        // The number of layers need not be stated otherwise, and no layer has a window or a rotation.
        decoder.layers = kinds.len();
        (decoder.windows, decoder.rope_of) = (vec![None; kinds.len()], vec![None; kinds.len()]);
        let layers = read_layers(keys, &kinds, &mut decoder)?;
        Ok(Blueprint { layers, ..decoder.blueprint() })
    },
    presets: &[("nemotron-h-8b", nemotron_h_8b), ("nemotron-3-nano-30b-a3b", nemotron_3_nano)],
    ..Family::PLAIN
};

const HEADS: Key = key("mamba_num_heads", "ssm.time_step_rank");

const NAMES: Names = Names {
    heads: (HEADS.json, 128),
    head_width: "mamba_head_dim",
    state_width: ("ssm_state_size", 128),
    groups: ("n_groups", 8),
    taps: "conv_kernel",
    convolution_bias: "use_conv_bias",
    biases: &["mamba_proj_bias", "use_bias", "attention_bias", "mlp_bias"],
};

/// The width of a head of a state space, unless the configuration says otherwise.
const HEAD_WIDTH: usize = 64;
/// The inner width of an expert and of the shared one, unless the configuration says otherwise.
const EXPERT_WIDTH: usize = 7688;

/// What a layer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Space,
    Attention,
    Network,
    Experts,
}

/// Refuses what would change an answer.
fn refuse_other(fields: &Fields<'_>) -> Result<(), ConfigProblem> {
    if let Some(other) = fields.text("mamba_hidden_act")?.filter(|name| !["silu", "swish"].contains(name)) {
        return Err(fields.unsupported("mamba_hidden_act", &Value::from(other), UNCOMPUTED));
    }
    for key in ["sliding_window", "moe_latent_size"] {
        if let Some(other) = fields.get(key) {
            return Err(fields.unsupported(key, other, UNCOMPUTED));
        }
    }
    Ok(())
}

/// Reads what each layer is. `config.json` may have a letter for each, or a word.
fn read_kinds(keys: &Keys<'_>, layers: usize) -> Result<Vec<Kind>, ConfigProblem> {
    match keys {
        Keys::Json(fields) => {
            let words = ["layers_block_type", "layer_types"].into_iter().find(|key| fields.get(key).is_some());
            let (key, entries): (_, Vec<Value>) = match (words, fields.text("hybrid_override_pattern")?) {
                (Some(key), _) => match fields.get(key) {
                    Some(Value::Array(words)) => (key, words.clone()),
                    other => return Err(fields.wrong_type(key, "a list of strings", other.unwrap_or(&Value::Null))),
                },
                (None, Some(letters)) => {
                    let letters = letters.chars().map(|letter| Value::from(letter.to_string()));
                    ("hybrid_override_pattern", letters.collect())
                }
                (None, None) => {
                    let (key, why) = (fields.name("hybrid_override_pattern"), "it says what each layer is");
                    return Err(ConfigProblem::Missing { key, why });
                }
            };
            if entries.is_empty() || entries.len() > Blueprint::LAYERS_MAX {
                let (found, limit) = (entries.len().to_string(), format!("1 to {} layers", Blueprint::LAYERS_MAX));
                return Err(ConfigProblem::OutOfRange { key: fields.name(key), found, limit });
            }
            let kind = |entry: &Value| match entry.as_str() {
                Some("M" | "mamba" | "linear_attention") => Ok(Kind::Space),
                Some("*" | "attention" | "full_attention") => Ok(Kind::Attention),
                Some("-" | "mlp") => Ok(Kind::Network),
                Some("E" | "moe") => Ok(Kind::Experts),
                _ => {
                    let hint = "supported are M (mamba), * (attention), - (mlp) and E (moe)";
                    Err(fields.unsupported(key, entry, hint))
                }
            };
            entries.iter().map(kind).collect()
        }
        Keys::Gguf(gguf) => {
            let no_keys = mamba::layers_without_keys(keys, layers)?;
            let no_network = gguf.zeros_in_layers("feed_forward_length", layers)?;
            let no_network = no_network.unwrap_or_else(|| vec![true; layers]);
            let kind = |layer: usize| match (no_keys[layer], no_network[layer]) {
                (false, _) => Kind::Attention,
                (true, true) => Kind::Space,
                (true, false) if gguf.has_in_layer(layer, "mlp.gate.weight") => Kind::Experts,
                (true, false) => Kind::Network,
            };
            Ok((0..layers).map(kind).collect())
        }
    }
}

/// Makes the layers, each of one branch behind a norm.
fn read_layers(keys: &Keys<'_>, kinds: &[Kind], decoder: &mut Decoder) -> Result<Vec<DecoderLayer>, ConfigProblem> {
    let first = kinds.iter().position(|kind| *kind == Kind::Space);
    let space = first.map(|first| {
        let inner = HEAD_WIDTH * keys.size(HEADS, NAMES.heads.1, Blueprint::HEADS_MAX)?;
        mamba::read(keys, &NAMES, inner, first, decoder).map(Part::Mamba)
    });
    let space = space.transpose()?;
    let mixture = if kinds.contains(&Kind::Experts) { Some(read_mixture(keys, kinds, decoder)?) } else { None };
    let norm = Norm { name: "input_layernorm", epsilon: decoder.norm_epsilon, offset: 0.0 };
    let layer = |kind: &Kind| {
        let part = match kind {
            Kind::Space => space.clone(),
            Kind::Experts => mixture.clone().map(Part::Mixture),
            Kind::Attention => Some(Part::Attention(Attention { rope: None, ..decoder.attention.clone() })),
            Kind::Network => {
                let (width, activation) = (decoder.inner, decoder.activation);
                Some(Part::Dense(Dense { width, activation, gated: false, bias: false }))
            }
        };
        let part = part.expect("what a layer has was read");
        let branch = Branch { enter: Passage::Norm(norm), part, leave: Passage::Direct, factor: 1.0 };
        DecoderLayer { branches: vec![branch], has_factor: false }
    };
    Ok(kinds.iter().map(layer).collect())
}

fn read_mixture(keys: &Keys<'_>, kinds: &[Kind], decoder: &mut Decoder) -> Result<Mixture, ConfigProblem> {
    let latent = "moe_latent_size";
    if let Some(gguf) = keys.gguf()
        && let Some(size) = gguf.count(latent)?.filter(|&size| size > 0)
    {
        return Err(gguf.unsupported(latent, &Value::from(size), UNCOMPUTED));
    }
    let router = glm4_moe::router(keys)?;
    if let Some(gguf) = keys.gguf() {
        experts::refuse_other_scores(gguf, router.scores)?;
    }
    let shared = key("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length");
    let absent = if keys.json().is_some() { EXPERT_WIDTH } else { 0 };
    let shared = experts::optional(keys, shared, 0..=Blueprint::INNER_SIZE_MAX)?.unwrap_or(absent);
    let mixture = Mixture {
        experts: experts::count(keys, "n_routed_experts", 8)?,
        chosen: experts::chosen(keys, "num_experts_per_tok", 2)?,
        expert_width: experts::width(keys, "moe_intermediate_size", EXPERT_WIDTH, decoder.inner)?,
        activation: decoder.activation,
        router,
        gated: false,
        biases: false,
        shared: (shared > 0).then_some(SharedExpert { width: shared, gated: false }),
    };
    let layers = kinds.iter().map(|kind| *kind == Kind::Experts).collect();
    decoder.use_experts(keys, mixture.clone(), layers)?;
    // The router's bias may be absent from GGUF files.
    Ok(decoder.mixture.as_ref().map_or(mixture, |(mixture, _)| mixture.clone()))
}

fn nemotron_h_8b() -> Config {
    let pattern = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-";
    let sizes = json!({
        "vocab_size": 131_072, "hidden_size": 4096, "intermediate_size": 21_504, "num_attention_heads": 32,
        "num_key_value_heads": 8, "mamba_num_heads": 128, "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
    });
    nemotron(pattern, sizes)
}

fn nemotron_3_nano() -> Config {
    let pattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
    let sizes = json!({
        "vocab_size": 131_072, "hidden_size": 2688, "intermediate_size": 1856, "num_attention_heads": 32,
        "num_key_value_heads": 2, "mamba_num_heads": 64, "max_position_embeddings": 262_144,
        "torch_dtype": "bfloat16", "n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 1,
        "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": true, "routed_scaling_factor": 2.5,
    });
    nemotron(pattern, sizes)
}

/// A configuration of these sizes, with what all published ones have in common.
fn nemotron(pattern: &str, sizes: Value) -> Config {
    let base = json!({
        "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "num_hidden_layers": pattern.len(),
        "hybrid_override_pattern": pattern, "head_dim": 128, "mamba_head_dim": 64, "ssm_state_size": 128,
        "n_groups": 8, "conv_kernel": 4, "expand": 2, "use_conv_bias": true, "use_bias": false,
        "mamba_proj_bias": false, "attention_bias": false, "mlp_bias": false, "mamba_hidden_act": "silu",
        "mlp_hidden_act": "relu2", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": false, "bos_token_id": 1,
        "eos_token_id": 2,
    });
    with(base, sizes)
}

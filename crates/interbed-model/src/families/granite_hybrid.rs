//! Granite 4: state spaces instead of attention in most layers or in none, and dense networks or experts beside a
//! shared one.

use interbed_kernels::RopeStyle;
use serde_json::{Value, json};

use super::granite;
use super::presets::{Config, with};
use super::shared::decoder::Decoder;
use super::shared::experts;
use super::shared::habits::{ActivationRule, Habits};
use super::shared::mamba::{self, Names};
use super::shared::refusals::UNCOMPUTED;
use super::shared::windows;
use super::{Family, GgufForm, GgufWriting};
use crate::blueprint::{Activation, Blueprint, Mixture, Part, Router, Scores, SharedExpert};
use crate::config_error::ConfigProblem;
use crate::keys::json::Fields;
use crate::keys::{Keys, key};

pub(super) static FAMILY: Family = Family {
    name: "GraniteHybrid",
    model_types: &["granitemoehybrid"],
    gguf: Some(GgufForm::new(&["granitehybrid"], RopeStyle::Neighbours).written(GgufWriting {
        has_factors: true,
        has_attention_factor: true,
        ..GgufWriting::PLAIN
    })),
    habits: Habits {
        activation: ActivationRule::Fixed(Activation::Silu),
        has_experts: true,
        has_recurrence: true,
        inner_is_of_experts: true,
        ..granite::HABITS
    },
    read: |keys, mut decoder| {
        granite::read_multipliers(keys, &mut decoder)?;
        read_layers(keys, &mut decoder)?;
        read_networks(keys, &mut decoder)?;
        Ok(decoder.blueprint())
    },
    presets: &[
        ("granite-4.0-h-350m", || granite_h([768, 2048, 2048, 32, 12, 4, 48], &[10, 13, 17, 27], json!({}))),
        ("granite-4.0-h-1b", || granite_h([1536, 4096, 4096, 40, 12, 4, 48], &TENTHS, json!({}))),
        ("granite-4.0-h-micro", || granite_h([2048, 8192, 8192, 40, 32, 8, 64], &TENTHS, json!({}))),
        ("granite-4.0-h-tiny", || {
            let experts = json!({ "num_local_experts": 64, "num_experts_per_tok": 6 });
            granite_h([1536, 512, 1024, 40, 12, 4, 48], &TENTHS, experts)
        }),
        ("granite-4.0-h-small", || {
            let experts = json!({ "num_local_experts": 72, "num_experts_per_tok": 10 });
            granite_h([4096, 768, 1536, 40, 32, 8, 128], &TENTHS, experts)
        }),
    ],
    ..Family::PLAIN
};

const NAMES: Names = Names {
    heads: ("mamba_n_heads", 128),
    head_width: "mamba_d_head",
    state_width: ("mamba_d_state", 256),
    groups: ("mamba_n_groups", 1),
    taps: "mamba_d_conv",
    convolution_bias: "mamba_conv_bias",
    biases: &["mamba_proj_bias"],
};

/// Layers with attention, unless a configuration says otherwise.
const TENTHS: [usize; 4] = [5, 15, 25, 35];

/// Reads which layers have a state space, and whether positions are rotated in the others.
fn read_layers(keys: &Keys<'_>, decoder: &mut Decoder) -> Result<(), ConfigProblem> {
    let layers = decoder.layers;
    let (spaces, rotates) = match keys {
        Keys::Json(fields) => {
            refuse_other(fields)?;
            let types = [("mamba", true), ("linear_attention", true), ("attention", false), ("full_attention", false)];
            let spaces = windows::read_types(fields, layers, &types, "supported are mamba and attention")?;
            let rotates = match fields.text("position_embedding_type")? {
                Some("rope") => true,
                None | Some("nope") => false,
                Some(other) => {
                    let hint = "supported are rope and nope";
                    return Err(fields.unsupported("position_embedding_type", &Value::from(other), hint));
                }
            };
            (spaces.unwrap_or_else(|| vec![true; layers]), rotates)
        }
        Keys::Gguf(gguf) => {
            (mamba::layers_without_keys(keys, layers)?, gguf.flag("rope.scaling.finetuned")?.unwrap_or(true))
        }
    };
    if !rotates {
        decoder.rope_of = vec![None; layers];
    }
    if let Some(first) = spaces.iter().position(|is_space| *is_space) {
        let expand = keys.count(key("mamba_expand", ""), 1..=Blueprint::HEAD_DIM_MAX)?.unwrap_or(2);
        let space = mamba::read(keys, &NAMES, expand.saturating_mul(decoder.hidden), first, decoder)?;
        decoder.recurrence = Some((Part::Mamba(space), spaces));
    }
    Ok(())
}

/// Refuses what would change an answer.
fn refuse_other(fields: &Fields<'_>) -> Result<(), ConfigProblem> {
    // State spaces have the activation that this key names too.
    let other = fields.text("hidden_act")?.filter(|name| !["silu", "swish"].contains(name));
    let normalization = fields.text("normalization_function")?.filter(|name| *name != "rmsnorm");
    for (key, found) in [("hidden_act", other), ("normalization_function", normalization)] {
        if let Some(found) = found {
            return Err(fields.unsupported(key, &Value::from(found), UNCOMPUTED));
        }
    }
    Ok(())
}

/// Reads the dense network or, in models with experts, these and the shared one beside them.
fn read_networks(keys: &Keys<'_>, decoder: &mut Decoder) -> Result<(), ConfigProblem> {
    let count = key("num_local_experts", "expert_count");
    let count = experts::optional(keys, count, 0..=experts::EXPERTS_MAX)?;
    // What an absent key means differs between the formats.
    let count = count.unwrap_or(if keys.json().is_some() { 8 } else { 0 });
    let shared = match keys {
        Keys::Json(fields) => {
            Some(fields.count("shared_intermediate_size", 1..=Blueprint::INNER_SIZE_MAX)?.unwrap_or(1024))
        }
        Keys::Gguf(_) => {
            let width = key("", "expert_shared_feed_forward_length");
            experts::optional(keys, width, 0..=Blueprint::INNER_SIZE_MAX)?.filter(|&width| width > 0)
        }
    };
    if count == 0 {
        // GGUF files state the width of the shared network as that of a dense one.
        if let (Some(width), Keys::Json(_)) = (shared, keys) {
            decoder.inner = width;
        }
        return Ok(());
    }
    let router = Router { scores: Scores::SoftmaxOfChosen, ..experts::softmax(None) };
    experts::refuse_other_routers(keys, &router)?;
    let mixture = Mixture {
        experts: count,
        chosen: experts::chosen(keys, "num_experts_per_tok", 2)?,
        expert_width: decoder.inner,
        activation: decoder.activation,
        router,
        gated: true,
        biases: false,
        shared: shared.map(|width| SharedExpert { width, gated: false }),
    };
    let all = vec![true; decoder.layers];
    decoder.use_experts(keys, mixture, all)
}

/// The configuration of one of the published sizes: width, inner widths of an expert and of the shared network, layers,
/// heads, KV heads and heads of state spaces; `attention` lists the layers with attention.
fn granite_h(
    [hidden, inner, shared, layers, heads, kv_heads, space_heads]: [usize; 7],
    attention: &[usize],
    experts: Value,
) -> Config {
    let types: Vec<_> =
        (0..layers).map(|layer| if attention.contains(&layer) { "attention" } else { "mamba" }).collect();
    let base = json!({
        "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "torch_dtype": "bfloat16",
        "vocab_size": 100_352, "hidden_size": hidden, "intermediate_size": inner, "shared_intermediate_size": shared,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "layer_types": types, "position_embedding_type": "nope", "hidden_act": "silu", "attention_bias": false,
        "mamba_n_heads": space_heads, "mamba_d_head": 2 * hidden / space_heads, "mamba_d_state": 128,
        "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": true, "mamba_proj_bias": false,
        "num_local_experts": 0, "num_experts_per_tok": 0, "attention_multiplier": 0.015_625,
        "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0,
        "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 10_000, "rope_scaling": null,
        "normalization_function": "rmsnorm", "tie_word_embeddings": true, "eos_token_id": 100_257,
        "bos_token_id": 100_257,
    });
    with(base, experts)
}

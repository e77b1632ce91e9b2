//! Conversion of a configuration and a tokenizer to the metadata of a GGUF file that is to be written.

use interbed_kernels::RopeStyle;
use interbed_weights::{Metadata, MetadataValue, Numbers, Texts};
use serde_json::Value;

use crate::blueprint::{
    Attention, Blueprint, DecoderLayer, GatedDelta, Groups, Mamba, Mixture, Part, Rope, RopeScaling, Router, Scores,
};
use crate::config::ModelConfig;
use crate::families::{FACTORS, GgufWriting};
use crate::rope::RopeTable;

/// The number by which GGUF files name routers that score by sigmoids.
const SIGMOID: u32 = 2;

/// What a GGUF file states about a model, and contains in addition to its weights.
pub(crate) struct Description {
    /// Keys that describe the model; those of the tokenizer are added later.
    pub(crate) metadata: Metadata,
    /// A tensor of rope factors and its name, if the model has one.
    pub(crate) rope_factors: Option<(&'static str, Vec<f32>)>,
    /// The order in which readers expect the query and key rows.
    pub(crate) style: RopeStyle,
    /// What readers call the norm before a network, where it is not the usual name.
    pub(crate) network_norm: Option<&'static str>,
}

/// Describes a model of this configuration.
///
/// # Errors
/// Names something in the configuration that the format cannot express.
pub(crate) fn describe(config: &ModelConfig) -> Result<Description, &'static str> {
    let (name, style, writing) = config.family.in_gguf().ok_or("this architecture")?;
    let blueprint = &config.blueprint;
    let name = writing.with_experts.filter(|_| blueprint.mixture().is_some()).unwrap_or(name);
    check(blueprint, &writing)?;
    let (attention, rope) = (first_attention(blueprint)?, &blueprint.ropes[0]);
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", name);
    metadata.set("general.type", "model");
    // Below 2^32: the configuration's limits are.
    let key = |key: &str| format!("{name}.{key}");
    for (name, count) in [
        ("context_length", blueprint.positions),
        ("embedding_length", blueprint.hidden_size),
        ("block_count", blueprint.layers.len()),
        ("feed_forward_length", blueprint.inner_size()),
        ("attention.head_count", attention.heads),
        ("attention.key_length", attention.key_width),
        ("attention.value_length", attention.value_width),
        ("rope.dimension_count", rope.rotated),
        ("vocab_size", blueprint.vocab_size),
    ] {
        metadata.set(key(name), count as u32);
    }
    describe_layers(blueprint, attention, &mut metadata, key);
    metadata.set(key("attention.layer_norm_rms_epsilon"), blueprint.head.norm.epsilon);
    metadata.set(key("rope.freq_base"), rope.theta as f32);
    if let Some(mixture) = blueprint.mixture() {
        describe_mixture(mixture, leading_layers(blueprint), &writing, &mut metadata, key);
    }
    if writing.has_factors {
        metadata.set(key("embedding_scale"), blueprint.embedding_factor);
        metadata.set(key("residual_scale"), blueprint.branch_factor());
        metadata.set(key("logit_scale"), blueprint.head.divisor);
    }
    if writing.has_attention_factor {
        metadata.set(key("attention.scale"), attention.scale);
    }
    let windows = blueprint.windows();
    if let Some(window) = windows.iter().flatten().max() {
        metadata.set(key("attention.sliding_window"), *window as u32);
        let slides = windows.iter().map(Option::is_some).collect();
        metadata.set(key("attention.sliding_window_pattern"), MetadataValue::Bools(slides));
    }
    let factors = describe_rope(rope, config.family.truncates_in_gguf(), &mut metadata, key)?;
    if let Some((delta, recurrent)) = recurrence(blueprint) {
        for (name, count) in [
            ("ssm.conv_kernel", delta.convolution),
            ("ssm.state_size", delta.key_width),
            ("ssm.group_count", delta.key_heads),
            ("ssm.time_step_rank", delta.value_heads),
            ("ssm.inner_size", delta.values_width()),
        ] {
            metadata.set(key(name), count as u32);
        }
        metadata.set(key("attention.recurrent_layers"), MetadataValue::Bools(recurrent));
        // Positions of texts are the same in all sections, which readers demand all the same.
        let pairs = rope.rotated / 2;
        let sections = [pairs.div_ceil(3), (pairs + 1) / 3, pairs / 3, 0].map(|section| section as i32);
        metadata.set(key("rope.dimension_sections"), Numbers::from_i32(sections.to_vec()));
    }
    if let Some(mamba) = state_space(blueprint) {
        describe_state_space(blueprint, mamba, &mut metadata, key);
    }
    let rope_factors = factors.map(|factors| (FACTORS, factors));
    Ok(Description { metadata, rope_factors, style, network_norm: writing.network_norm })
}

/// Describes a mixture, before which there are `leading` layers without experts.
fn describe_mixture(
    mixture: &Mixture,
    leading: usize,
    writing: &GgufWriting,
    metadata: &mut Metadata,
    key: impl Fn(&str) -> String,
) {
    metadata.set(key("expert_count"), mixture.experts as u32);
    metadata.set(key("expert_used_count"), mixture.chosen as u32);
    if writing.has_expert_width {
        metadata.set(key("expert_feed_forward_length"), mixture.expert_width as u32);
    }
    if mixture.router.scores == Scores::Sigmoid {
        metadata.set(key("expert_gating_func"), SIGMOID);
    }
    if writing.has_leading_layers {
        metadata.set(key("leading_dense_block_count"), leading as u32);
    }
    if let Some(shared) = mixture.shared {
        metadata.set(key("expert_shared_feed_forward_length"), shared.width as u32);
    }
    if writing.with_experts.is_some() {
        describe_router(&mixture.router, metadata, key);
    }
}

/// Describes how many key heads the layers have, and the gated convolutions that some layers have in place of
/// attention.
fn describe_layers(
    blueprint: &Blueprint,
    attention: &Attention,
    metadata: &mut Metadata,
    key: impl Fn(&str) -> String,
) {
    let kv_heads = attention.kv_heads as u32;
    let convolution = |layer: &DecoderLayer| {
        layer.branches.iter().find_map(|branch| match branch.part {
            Part::Convolution(convolution) => Some(convolution),
            _ => None,
        })
    };
    let Some(first) = blueprint.layers.iter().find_map(convolution) else {
        metadata.set(key("attention.head_count_kv"), kv_heads);
        return;
    };
    // Layers without attention have no heads, by which readers know them.
    let heads = blueprint.layers.iter().map(|layer| if convolution(layer).is_some() { 0 } else { kv_heads as i32 });
    metadata.set(key("attention.head_count_kv"), Numbers::from_i32(heads));
    metadata.set(key("shortconv.l_cache"), first.rows as u32);
}

/// Returns the number of layers before the first that has experts.
fn leading_layers(blueprint: &Blueprint) -> usize {
    let has_experts = |layer: &DecoderLayer| layer.branches.iter().any(|of| matches!(of.part, Part::Mixture(_)));
    blueprint.layers.iter().take_while(|layer| !has_experts(layer)).count()
}

/// Describes the state space, which layers have attention beside it, and whether positions are rotated there.
fn describe_state_space(blueprint: &Blueprint, mamba: &Mamba, metadata: &mut Metadata, key: impl Fn(&str) -> String) {
    for (name, count) in [
        ("ssm.conv_kernel", mamba.convolution),
        ("ssm.state_size", mamba.state_width),
        ("ssm.group_count", mamba.groups),
        ("ssm.time_step_rank", mamba.heads),
        ("ssm.inner_size", mamba.inner_width()),
    ] {
        metadata.set(key(name), count as u32);
    }
    let of_layers = |count: fn(&Part) -> usize| {
        let of_layer = |layer: &DecoderLayer| layer.branches.iter().map(|branch| count(&branch.part)).sum::<usize>();
        Numbers::from_i32(blueprint.layers.iter().map(|layer| of_layer(layer) as i32).collect::<Vec<_>>())
    };
    let kv_heads = of_layers(|part| match part {
        Part::Attention(attention) => attention.kv_heads,
        _ => 0,
    });
    metadata.set(key("attention.head_count_kv"), kv_heads);
    if blueprint.layers.iter().any(|layer| layer.branches.len() == 1) {
        let inner = of_layers(|part| match part {
            Part::Dense(dense) => dense.width,
            Part::Mixture(mixture) => mixture.expert_width,
            _ => 0,
        });
        metadata.set(key("feed_forward_length"), inner);
    }
    if blueprint.attentions().all(|attention| attention.rope.is_none()) {
        metadata.set(key("rope.scaling.finetuned"), false);
    }
}

/// Describes how the results of experts are weighed.
fn describe_router(router: &Router, metadata: &mut Metadata, key: impl Fn(&str) -> String) {
    metadata.set(key("expert_weights_norm"), router.normalise.is_some());
    metadata.set(key("expert_weights_scale"), router.scale);
    if let Some(Groups { count, kept }) = router.groups {
        metadata.set(key("expert_group_count"), count as u32);
        metadata.set(key("expert_group_used_count"), kept as u32);
    }
}

/// Describes the rotation, and returns the factors that a tensor has to hold, if there are any.
fn describe_rope(
    rope: &Rope,
    truncates: bool,
    metadata: &mut Metadata,
    key: impl Fn(&str) -> String,
) -> Result<Option<Vec<f32>>, &'static str> {
    match rope.scaling {
        RopeScaling::Default => {}
        RopeScaling::Linear { factor } => {
            metadata.set(key("rope.scaling.type"), "linear");
            metadata.set(key("rope.scaling.factor"), factor as f32);
        }
        RopeScaling::Yarn { factor, original_max, beta_fast, beta_slow, attention_factor, truncate } => {
            if truncate != truncates {
                return Err("yarn that rounds to whole dimensions where readers do not, or the other way round");
            }
            metadata.set(key("rope.scaling.type"), "yarn");
            metadata.set(key("rope.scaling.factor"), factor as f32);
            metadata.set(key("rope.scaling.original_context_length"), original_max as u32);
            metadata.set(key("rope.scaling.yarn_beta_fast"), beta_fast as f32);
            metadata.set(key("rope.scaling.yarn_beta_slow"), beta_slow as f32);
            let by_stretch = if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 };
            metadata.set(key("rope.scaling.attn_factor"), (attention_factor / by_stretch) as f32);
        }
        RopeScaling::Llama3 { .. } => return Ok(Some(RopeTable::factors(rope))),
        RopeScaling::Dynamic { .. } => return Err("dynamic rope scaling"),
        RopeScaling::LongRope { .. } => return Err("two sets of rope factors"),
    }
    Ok(rope.factors.clone())
}

/// Returns the gated delta rule and which layers have it, if there is one.
fn recurrence(blueprint: &Blueprint) -> Option<(GatedDelta, Vec<bool>)> {
    let of_layer = |layer: &DecoderLayer| {
        layer.branches.iter().find_map(|branch| match branch.part {
            Part::GatedDelta(delta) => Some(delta),
            _ => None,
        })
    };
    let deltas: Vec<_> = blueprint.layers.iter().map(of_layer).collect();
    let delta = deltas.iter().flatten().next().copied()?;
    Some((delta, deltas.iter().map(Option::is_some).collect()))
}

/// Returns the state space of a model, if it has one.
fn state_space(blueprint: &Blueprint) -> Option<&Mamba> {
    blueprint.parts().find_map(|part| match part {
        Part::Mamba(mamba) => Some(mamba),
        _ => None,
    })
}

fn first_attention(blueprint: &Blueprint) -> Result<&Attention, &'static str> {
    blueprint.attentions().next().ok_or("layers without attention")
}

/// Refuses models about which readers would assume something wrong that no key or tensor can correct.
fn check(blueprint: &Blueprint, writing: &GgufWriting) -> Result<(), &'static str> {
    let attention = first_attention(blueprint)?;
    let router = blueprint.mixture().map(|mixture| &mixture.router);
    if router.is_some_and(|router| router.normalise.is_some() != writing.normalises) {
        return Err("weights of experts that are divided by their sum where readers do not, or the other way round");
    }
    let leading = if writing.has_leading_layers { leading_layers(blueprint) } else { 0 };
    let of_layers = blueprint.layers.len() - leading;
    let is_mixed = !matches!(blueprint.mixtures().count(), count if count == 0 || count == of_layers);
    if is_mixed && writing.with_experts.is_none() {
        return Err("layers without experts among layers that have some");
    }
    if blueprint.activations().any(|activation| activation != writing.activation) {
        return Err("an activation that readers of this architecture do not assume");
    }
    if attention.norms.map(|norms| norms.over) != writing.norms {
        return Err("norms of query and key heads that readers of this architecture do not assume");
    }
    let factors = [blueprint.embedding_factor, blueprint.branch_factor(), blueprint.head.divisor];
    if !writing.has_factors && factors != [1.0; 3] {
        return Err("scaled embeddings, branches or logits, of which readers of this architecture know nothing");
    }
    let by_width = (attention.key_width as f64).sqrt().recip() as f32;
    if !writing.has_attention_factor && attention.scale != by_width {
        return Err("attention scores of another scale than readers of this architecture assume");
    }
    Ok(())
}

/// Adds a byte-level tokenizer, given by its `tokenizer.json` and `tokenizer_config.json`; `pre` is the name of its
/// pre-tokenizer.
///
/// # Errors
/// Names something in the tokenizer that the format cannot express.
pub(crate) fn add_tokenizer(
    metadata: &mut Metadata,
    config: &ModelConfig,
    pre: &str,
    tokenizer: &Value,
    tokenizer_config: &Value,
) -> Result<(), &'static str> {
    const END_KEYS: [&str; 3] =
        ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
    if config.ends.eos_token_ids.len() > END_KEYS.len() {
        return Err("more than three tokens that end a text");
    }
    const NORMAL: i32 = 1;
    const CONTROL: i32 = 3;
    const UNUSED: i32 = 5;
    let mut tokens: Vec<Option<&str>> = vec![None; config.blueprint.vocab_size];
    let mut kinds = vec![UNUSED; config.blueprint.vocab_size];
    let vocab = tokenizer["model"]["vocab"].as_object().into_iter().flatten();
    let normal = vocab.map(|(token, id)| (id, token.as_str(), NORMAL));
    let added = tokenizer["added_tokens"].as_array().into_iter().flatten();
    let control = added.map(|added| (&added["id"], added["content"].as_str().unwrap_or_default(), CONTROL));
    for (id, token, kind) in normal.chain(control) {
        let id = id.as_u64().and_then(|id| usize::try_from(id).ok());
        if let Some(id) = id.filter(|&id| id < config.blueprint.vocab_size) {
            (tokens[id], kinds[id]) = (Some(token), kind);
        }
    }
    let mut texts = Texts::default();
    for (id, token) in tokens.into_iter().enumerate() {
        match token {
            Some(token) => texts.push(token),
            // Readers want a name of its own for every id.
            None => texts.push(&format!("[PAD{id}]")),
        }
    }
    let merges = tokenizer["model"]["merges"].as_array().into_iter().flatten().map(|merge| {
        let part = |index: usize| merge[index].as_str().unwrap_or_default();
        format!("{} {}", part(0), part(1))
    });
    let mut merge_texts = Texts::default();
    merges.for_each(|merge| merge_texts.push(&merge));
    metadata.set("tokenizer.ggml.model", "gpt2");
    metadata.set("tokenizer.ggml.pre", pre);
    metadata.set("tokenizer.ggml.tokens", texts);
    metadata.set("tokenizer.ggml.token_type", Numbers::from_i32(kinds));
    metadata.set("tokenizer.ggml.merges", merge_texts);
    if let Some(id) = config.ends.bos_token_id {
        metadata.set("tokenizer.ggml.bos_token_id", id);
    }
    for (key, &id) in END_KEYS.into_iter().zip(&config.ends.eos_token_ids) {
        metadata.set(key, id);
    }
    metadata.set("tokenizer.ggml.add_bos_token", !tokenizer["post_processor"].is_null());
    if let Some(template) = tokenizer_config["chat_template"].as_str() {
        metadata.set("tokenizer.chat_template", template);
    }
    Ok(())
}

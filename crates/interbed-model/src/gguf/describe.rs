//! Configuration and tokenizer to metadata, for writing.

use interbed_kernels::RopeStyle;
use interbed_weights::{Metadata, MetadataValue, Numbers, Texts};
use serde_json::Value;

use super::config::{ROPE_FACTORS, family_of};
use super::mixture;
use crate::config::{Architecture, ModelConfig, RopeScaling};
use crate::rope::RopeTable;

/// What a GGUF file states about a model, and contains in addition to its weights.
pub(crate) struct Description {
    /// All but the tokenizer.
    pub(crate) metadata: Metadata,
    /// A tensor of rope factors and its name, if the model has one.
    pub(crate) rope_factors: Option<(&'static str, Vec<f32>)>,
    /// The order in which readers expect the query and key rows.
    pub(crate) style: RopeStyle,
}

/// Describes a model of this configuration.
///
/// # Errors
/// Something in the configuration that the format cannot express.
pub(crate) fn describe(config: &ModelConfig) -> Result<Description, &'static str> {
    let family = family_of(config)?;
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", family.name);
    metadata.set("general.type", "model");
    // Below 2^32: the configuration's limits are.
    let key = |key: &str| format!("{}.{key}", family.name);
    for (name, count) in [
        ("context_length", config.max_position_embeddings),
        ("embedding_length", config.hidden_size),
        ("block_count", config.num_layers),
        ("feed_forward_length", config.intermediate_size),
        ("attention.head_count", config.num_heads),
        ("attention.head_count_kv", config.num_kv_heads),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
        ("rope.dimension_count", config.rotated),
        ("vocab_size", config.vocab_size),
    ] {
        metadata.set(key(name), count as u32);
    }
    metadata.set(key("attention.layer_norm_rms_epsilon"), config.rms_norm_eps);
    metadata.set(key("rope.freq_base"), config.rope.theta as f32);
    if let Some(mixture) = &config.mixture {
        mixture::describe(config, mixture, key, &mut metadata);
    }
    if matches!(config.architecture, Architecture::MiniCpm | Architecture::Granite) {
        metadata.set(key("embedding_scale"), config.embedding_multiplier);
        metadata.set(key("residual_scale"), config.residual_multiplier);
        metadata.set(key("logit_scale"), config.logits_divisor);
    }
    if config.architecture == Architecture::Granite {
        metadata.set(key("attention.scale"), config.attention_scale);
    }
    if let Some(window) = config.sliding_windows.iter().flatten().max() {
        metadata.set(key("attention.sliding_window"), *window as u32);
        let slides = config.sliding_windows.iter().map(Option::is_some).collect();
        metadata.set(key("attention.sliding_window_pattern"), MetadataValue::Bools(slides));
    }
    let mut rope_factors = config.rope.factors.clone();
    match config.rope.scaling {
        RopeScaling::Default => {}
        RopeScaling::Linear { factor } => {
            metadata.set(key("rope.scaling.type"), "linear");
            metadata.set(key("rope.scaling.factor"), factor as f32);
        }
        RopeScaling::Yarn { factor, original_max, beta_fast, beta_slow, attention_factor, truncate } => {
            if truncate == (config.architecture == Architecture::GptOss) {
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
        RopeScaling::Llama3 { .. } => rope_factors = Some(RopeTable::factors(&config.rope, config.rotated)),
        RopeScaling::Dynamic { .. } => return Err("dynamic rope scaling"),
        RopeScaling::LongRope { .. } => return Err("two sets of rope factors"),
    }
    let rope_factors = rope_factors.map(|factors| (ROPE_FACTORS, factors));
    Ok(Description { metadata, rope_factors, style: family.style })
}

/// Adds a byte-level tokenizer: `tokenizer.json` and `tokenizer_config.json` of a model with these ends. `pre` is the
/// name of its pre-tokenizer.
///
/// # Errors
/// Something in the tokenizer that the format cannot express.
pub(crate) fn add_tokenizer(
    metadata: &mut Metadata,
    config: &ModelConfig,
    pre: &str,
    tokenizer: &Value,
    tokenizer_config: &Value,
) -> Result<(), &'static str> {
    const END_KEYS: [&str; 3] =
        ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
    if config.eos_token_ids.len() > END_KEYS.len() {
        return Err("more than three tokens that end a text");
    }
    const NORMAL: i32 = 1;
    const CONTROL: i32 = 3;
    const UNUSED: i32 = 5;
    let mut tokens: Vec<Option<&str>> = vec![None; config.vocab_size];
    let mut kinds = vec![UNUSED; config.vocab_size];
    let vocab = tokenizer["model"]["vocab"].as_object().into_iter().flatten();
    let normal = vocab.map(|(token, id)| (id, token.as_str(), NORMAL));
    let added = tokenizer["added_tokens"].as_array().into_iter().flatten();
    let control = added.map(|added| (&added["id"], added["content"].as_str().unwrap_or_default(), CONTROL));
    for (id, token, kind) in normal.chain(control) {
        let id = id.as_u64().and_then(|id| usize::try_from(id).ok());
        if let Some(id) = id.filter(|&id| id < config.vocab_size) {
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
    if let Some(id) = config.bos_token_id {
        metadata.set("tokenizer.ggml.bos_token_id", id);
    }
    for (key, &id) in END_KEYS.into_iter().zip(&config.eos_token_ids) {
        metadata.set(key, id);
    }
    metadata.set("tokenizer.ggml.add_bos_token", !tokenizer["post_processor"].is_null());
    if let Some(template) = tokenizer_config["chat_template"].as_str() {
        metadata.set("tokenizer.chat_template", template);
    }
    Ok(())
}

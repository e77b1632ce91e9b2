//! `config.json`: what a model is, checked before anything is computed or allocated according to it.
//!
//! The classic spelling and that of transformers 5 are both read. An absent key means what it means to the
//! configuration class of the same architecture in transformers.

mod architecture;
mod error;
pub(crate) mod fields;
mod mixture;
mod quantization;
mod rope;
#[cfg(test)]
mod tests;
mod windows;

use std::path::Path;

use interbed_kernels::{DType, RopeStyle};
use serde_json::Value;

use architecture::{Defaults, read_architecture};
use fields::Fields;

pub use architecture::Architecture;
pub use error::{ConfigError, ConfigProblem};
pub use mixture::{Floor, Groups, Mixture, Router, Scores, SharedExpert};
pub use rope::{RopeConfig, RopeScaling};

/// A `model_type` whose language model is described under `text_config`: Mistral's models that see.
const WITH_TEXT_CONFIG: &str = "mistral3";

/// Whether a branch's input or its result is normed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlace {
    /// What it reads.
    Before,
    /// What it gives.
    After,
}

/// How a layer rotates queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerRope {
    /// As [`ModelConfig::rope`] says.
    Main,
    /// As [`ModelConfig::window_rope`] says.
    OfWindow,
    /// Not at all.
    None,
}

/// Keys that say how many experts there are.
const EXPERT_COUNTS: [&str; 4] = ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];

/// Whether queries and keys are normed, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// They are not.
    None,
    /// Each head by itself, before it is rotated.
    Heads,
    /// Each head by itself, after it was rotated.
    HeadsAfter,
    /// All heads together, before they are rotated.
    Whole,
}

/// Queries grow with their positions: each is multiplied by `1 + beta * ln(1 + floor(position / length))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryGrowth {
    /// How fast.
    pub beta: f64,
    /// Positions before the first step.
    pub length: usize,
}

impl QueryGrowth {
    /// The factor of a query at `position`.
    pub fn factor(&self, position: usize) -> f32 {
        1.0 + self.beta as f32 * ((1 + position / self.length) as f32).ln()
    }
}

pub use interbed_kernels::Activation;

/// The shape of a model. Every number is within the limits below and consistent with the others.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Rows of the embedding; token ids are below it.
    pub vocab_size: usize,
    /// Width of the hidden state.
    pub hidden_size: usize,
    /// Width of the dense feed-forward block.
    pub intermediate_size: usize,
    /// What takes its place in some layers, or all.
    pub mixture: Option<Mixture>,
    /// Layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// The context the model was made for, in tokens.
    pub max_position_embeddings: usize,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f32,
    /// Position embeddings.
    pub rope: RopeConfig,
    /// How many elements of each head are rotated, from the first on; even.
    pub rotated: usize,
    /// The feed-forward block's activation.
    pub activation: Activation,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub output_bias: bool,
    /// Whether the feed-forward projections have biases.
    pub mlp_bias: bool,
    /// Whether queries and keys are normed.
    pub qk_norm: QkNorm,
    /// Whether queries grow with their positions.
    pub query_growth: Option<QueryGrowth>,
    /// Whether each head has a sink: a score that takes part in the softmax and has no value.
    pub sinks: bool,
    /// Where branches are normed.
    pub norm_place: NormPlace,
    /// The layers that do not rotate, where that does not follow from their windows; empty if all do.
    pub unrotated: Vec<bool>,
    /// Whether the head is the embedding. The weight files settle it, see [`HeadSource`](crate::HeadSource).
    pub tied_embeddings: bool,
    /// Whether `config.json` says so; if not, it is the architecture's default.
    pub tie_is_stated: bool,
    /// For each layer: how many positions a token sees (itself included), or `None` for all.
    pub sliding_windows: Vec<Option<usize>>,
    /// The factor of the embeddings.
    pub embedding_multiplier: f32,
    /// The factor of each branch before it is added to the residual stream.
    pub residual_multiplier: f32,
    /// The divisor of the logits.
    pub logits_divisor: f32,
    /// The factor of the attention scores.
    pub attention_scale: f32,
    /// The type in which the configuration says the weights are stored; the files decide.
    pub dtype: Option<DType>,
    /// The token that begins a text.
    pub bos_token_id: Option<u32>,
    /// The tokens that end a text; all below `vocab_size`. Other files may name more, see
    /// [`end_tokens`](crate::end_tokens()).
    pub eos_token_ids: Vec<u32>,
    /// Whether `config.json` names them; if not, they are the architecture's default.
    pub ends_are_stated: bool,
}

impl ModelConfig {
    /// Largest `vocab_size`.
    pub const VOCAB_SIZE_MAX: usize = 1 << 24;
    /// Largest `hidden_size`.
    pub const HIDDEN_SIZE_MAX: usize = 1 << 20;
    /// Largest `intermediate_size`.
    pub const INTERMEDIATE_SIZE_MAX: usize = 1 << 22;
    /// Most layers.
    pub const LAYERS_MAX: usize = 10_000;
    /// Most query heads.
    pub const HEADS_MAX: usize = 1 << 14;
    /// Widest head.
    pub const HEAD_DIM_MAX: usize = 4096;
    /// Longest context.
    pub const POSITIONS_MAX: usize = 1 << 31;
    /// Most parameters in all: 2^44, several times those of the largest known model.
    pub const PARAMETERS_MAX: u64 = 1 << 44;

    /// Reads `config.json` of a Hugging Face directory.
    ///
    /// # Errors
    /// The file is missing or damaged, or describes a model that cannot be computed; the message names the key, its
    /// value and what was expected.
    pub fn from_dir(dir: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let file = dir.as_ref().join("config.json");
        let Some(text) = fields::read_text(&file)? else {
            let problem = ConfigProblem::Read(std::io::ErrorKind::NotFound.into());
            return Err(ConfigError { file, problem });
        };
        parse(&text).map_err(|problem| ConfigError { file, problem })
    }

    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// As [`from_dir`](Self::from_dir), except for errors of the file.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        parse(text).map_err(|problem| ConfigError { file: "config.json".into(), problem })
    }

    /// The model's context, in tokens: scalings that stretch positions stretch the context too, as in vLLM.
    pub fn context(&self) -> usize {
        let stretched = match self.rope.scaling {
            RopeScaling::Linear { factor } => self.max_position_embeddings as f64 * factor,
            RopeScaling::Dynamic { factor, original_max } | RopeScaling::Yarn { factor, original_max, .. } => {
                original_max as f64 * factor
            }
            // For these, `max_position_embeddings` is stretched already.
            RopeScaling::Default | RopeScaling::Llama3 { .. } | RopeScaling::LongRope { .. } => 0.0,
        };
        (stretched as usize).clamp(self.max_position_embeddings, Self::POSITIONS_MAX)
    }

    /// How a layer rotates queries and keys.
    pub fn rope_of(&self, layer: usize) -> LayerRope {
        let has_window = self.sliding_windows[layer].is_some();
        match self.architecture {
            _ if self.unrotated.get(layer).is_some_and(|&unrotated| unrotated) => LayerRope::None,
            Architecture::Olmo3 if has_window => LayerRope::OfWindow,
            Architecture::Exaone4 if !has_window && self.sliding_windows.iter().any(Option::is_some) => LayerRope::None,
            _ => LayerRope::Main,
        }
    }

    /// The rotation of layers with a window, if it differs from that of others.
    pub fn window_rope(&self) -> Option<RopeConfig> {
        let differs = (0..self.num_layers).any(|layer| self.rope_of(layer) == LayerRope::OfWindow);
        differs.then(|| RopeConfig { scaling: RopeScaling::Default, factors: None, ..self.rope.clone() })
    }

    /// Settles which of two sets of factors holds, if the model has two: the one for sequences beyond its original
    /// context, unless none is longer than `longest` tokens. `transformers` decides anew for each pass, by the length
    /// that a sequence then has, and computes all of it again when it passes that border; here what a token gives must
    /// not depend on what comes after it, so the longest that may come decides, as in vLLM.
    pub fn settle_length(&mut self, longest: usize) {
        if let RopeScaling::LongRope { original_max, is_long, .. } = &mut self.rope.scaling {
            *is_long = longest.min(self.max_position_embeddings) > *original_max;
        }
    }

    /// Elements of all weights together; a tied head counts once.
    pub fn num_parameters(&self) -> u64 {
        // This cannot overflow: it was checked when the configuration was read.
        self.count_parameters().unwrap_or(u64::MAX)
    }

    /// Elements of all experts together, of which a token goes through a few; a shared expert is none of them.
    pub fn expert_parameters(&self) -> u64 {
        let of = |mixture: &Mixture| {
            let experts = (mixture.num_layers() as u64).saturating_mul(mixture.experts as u64);
            let each = (self.hidden_size as u64).saturating_mul(mixture.expert_width as u64).saturating_mul(3);
            experts.saturating_mul(each)
        };
        self.mixture.as_ref().map_or(0, of)
    }

    /// Elements of the weights that one token goes through, the embedding included.
    pub fn active_parameters(&self) -> u64 {
        let experts = self.expert_parameters() as f64;
        let idle = self.mixture.as_ref().map_or(0.0, |mixture| experts * (1.0 - mixture.expected_share(1)));
        self.num_parameters().saturating_sub(idle.round() as u64)
    }

    fn count_parameters(&self) -> Option<u64> {
        let size = |value: usize| value as u64;
        let flag = |value: bool| u64::from(value);
        let hidden = size(self.hidden_size);
        let queries = size(self.num_heads).checked_mul(size(self.head_dim))?;
        let keys = size(self.num_kv_heads).checked_mul(size(self.head_dim))?;
        let inner = size(self.intermediate_size);
        let attention = hidden.checked_mul(queries.checked_add(keys)?.checked_mul(2)?)?;
        let mlp = hidden.checked_mul(inner)?.checked_mul(3)?;
        let normed = match self.qk_norm {
            QkNorm::None => 0,
            QkNorm::Heads | QkNorm::HeadsAfter => 2 * size(self.head_dim),
            QkNorm::Whole => queries.checked_add(keys)?,
        };
        let vectors = [
            2 * hidden,
            normed,
            flag(self.qkv_bias) * queries.checked_add(keys)?.checked_add(keys)?,
            flag(self.output_bias) * hidden,
            flag(self.sinks) * size(self.num_heads),
        ];
        let layer = vectors.iter().try_fold(attention, |sum, &part| sum.checked_add(part))?;
        let dense = mlp.checked_add(flag(self.mlp_bias) * (2 * inner + hidden))?;
        let (mixtures, of_mixture) = match &self.mixture {
            Some(mixture) => (size(mixture.num_layers()), mixture.layer_parameters(hidden)?),
            None => (0, 0),
        };
        let networks = dense.checked_mul(size(self.num_layers) - mixtures)?;
        let networks = networks.checked_add(of_mixture.checked_mul(mixtures)?)?;
        let embedding = size(self.vocab_size).checked_mul(hidden)?;
        let ends = embedding.checked_mul(if self.tied_embeddings { 1 } else { 2 })?.checked_add(hidden)?;
        layer.checked_mul(size(self.num_layers))?.checked_add(networks)?.checked_add(ends)
    }
}

fn parse(text: &str) -> Result<ModelConfig, ConfigProblem> {
    let map = fields::parse_object(text)?;
    let whole = Fields::new(&map);
    quantization::check_quantization(&whole)?;
    if whole.text("model_type")? != Some(WITH_TEXT_CONFIG) {
        return parse_fields(&whole);
    }
    let Some(fields) = whole.object("text_config", "text_config.")? else {
        return Err(ConfigProblem::Missing { key: "text_config".to_owned(), why: "it describes the language model" });
    };
    let mut config = parse_fields(&fields)?;
    // The whole model says whether its head is the embedding; the default of its class is not that of what files hold.
    (config.tied_embeddings, config.tie_is_stated) = match whole.flag("tie_word_embeddings")? {
        Some(is_tied) => (is_tied, true),
        None => (config.tied_embeddings, false),
    };
    if let Some(ids) = whole.token_ids("eos_token_id")? {
        let stated = if config.ends_are_stated { config.eos_token_ids } else { Vec::new() };
        let more = ids.into_iter().filter(|id| (*id as usize) < config.vocab_size && !stated.contains(id));
        config.eos_token_ids = stated.iter().copied().chain(more).collect();
        config.ends_are_stated = true;
    }
    config.dtype = config.dtype.or(read_dtype(&whole));
    Ok(config)
}

fn parse_fields(fields: &Fields<'_>) -> Result<ModelConfig, ConfigProblem> {
    let fields = *fields;
    let architecture = read_architecture(&fields)?;
    quantization::check_quantization(&fields)?;
    refuse_unsupported(&fields, architecture)?;
    let defaults = Defaults::of(architecture);

    let count = |key, default, max| Ok::<_, ConfigProblem>(fields.count(key, 1..=max)?.unwrap_or(default));
    let vocab_size = count("vocab_size", defaults.vocab_size, ModelConfig::VOCAB_SIZE_MAX)?;
    let hidden_size = count("hidden_size", 4096, ModelConfig::HIDDEN_SIZE_MAX)?;
    let intermediate_size = count("intermediate_size", defaults.intermediate_size, ModelConfig::INTERMEDIATE_SIZE_MAX)?;
    let num_layers = count("num_hidden_layers", 32, ModelConfig::LAYERS_MAX)?;
    let num_heads = count("num_attention_heads", 32, ModelConfig::HEADS_MAX)?;
    let num_kv_heads = read_num_kv_heads(&fields, num_heads, defaults.num_kv_heads)?;
    let head_dim = read_head_dim(&fields, architecture, hidden_size, num_heads)?;
    let max_position_embeddings =
        count("max_position_embeddings", defaults.max_position_embeddings, ModelConfig::POSITIONS_MAX)?;
    let rms_norm_eps = fields.number("rms_norm_eps", |eps| (0.0..1.0).contains(&eps), "a number from 0 to 1")?;

    let flag = |key, default| Ok::<_, ConfigProblem>(fields.flag(key)?.unwrap_or(default));
    // Which keys an architecture reads; other keys may be present and have no effect.
    use Architecture::{
        Ernie45Moe, Exaone4, Glm4Moe, GptOss, Granite, GraniteMoe, HunyuanDense, HunyuanMoe, Llama, MiniCpm, MiniMaxM2,
        Ministral3, Mistral, Mixtral, Olmo2, Olmo3, Olmoe, Phi3, Qwen2, Qwen2Moe, Qwen3, Qwen3Moe, SeedOss, SmolLm3,
    };
    let (qkv_bias, output_bias) = match architecture {
        Llama | Qwen3 | MiniCpm | Granite | Qwen3Moe | Olmoe | GraniteMoe | SmolLm3 | Olmo2 | Olmo3 | HunyuanDense
        | HunyuanMoe => {
            let bias = flag("attention_bias", false)?;
            (bias, bias)
        }
        GptOss => {
            let bias = flag("attention_bias", true)?;
            (bias, bias)
        }
        Qwen2 => (true, false),
        Qwen2Moe => (flag("qkv_bias", true)?, false),
        Glm4Moe => (flag("attention_bias", false)?, false),
        SeedOss => (flag("attention_bias", true)?, flag("attention_out_bias", false)?),
        Mistral | Mixtral | MiniMaxM2 | Ernie45Moe | Exaone4 | Phi3 | Ministral3 => (false, false),
    };
    let qk_norm = match architecture {
        Qwen3 | Qwen3Moe | Exaone4 => QkNorm::Heads,
        HunyuanDense | HunyuanMoe => QkNorm::HeadsAfter,
        Olmoe | Olmo2 | Olmo3 => QkNorm::Whole,
        MiniMaxM2 if flag("use_qk_norm", true)? => QkNorm::Whole,
        Glm4Moe if flag("use_qk_norm", false)? => QkNorm::Heads,
        _ => QkNorm::None,
    };
    let mlp_bias = matches!(architecture, Llama | Granite | SmolLm3 | SeedOss) && flag("mlp_bias", false)?;
    let scales = read_scales(&fields, architecture, num_layers, hidden_size, head_dim)?;

    // Ids beyond the vocabulary can never be sampled; some files copy them from a larger model of the same family.
    let in_vocabulary = |id: &u32| (*id as usize) < vocab_size;
    let token_ids = |key, default: Option<u32>| match fields.is_written(key) {
        true => Ok(fields.token_ids(key)?.unwrap_or_default()),
        false => Ok::<_, ConfigProblem>(default.into_iter().collect()),
    };
    let bos_token_id = token_ids("bos_token_id", defaults.bos_token_id)?.into_iter().find(in_vocabulary);
    let mut eos_token_ids = token_ids("eos_token_id", defaults.eos_token_id)?;
    eos_token_ids.retain(in_vocabulary);

    let rotated = rope::read_rotated(&fields, architecture, head_dim)?;
    let mut rope = rope::read_rope(&fields, architecture, max_position_embeddings, rotated, defaults.rope_theta)?;
    if architecture == Ernie45Moe {
        rope.style = RopeStyle::Neighbours;
    }
    let config = ModelConfig {
        architecture,
        vocab_size,
        hidden_size,
        intermediate_size,
        mixture: mixture::read_mixture(&fields, architecture, num_layers, intermediate_size)?,
        num_layers,
        num_heads,
        num_kv_heads,
        head_dim,
        max_position_embeddings,
        rms_norm_eps: rms_norm_eps.unwrap_or(defaults.rms_norm_eps) as f32,
        rope,
        rotated,
        activation: match architecture {
            GptOss => read_clamped_activation(&fields)?,
            _ => read_activation(&fields)?,
        },
        qkv_bias,
        output_bias,
        mlp_bias,
        qk_norm,
        query_growth: if architecture == Ministral3 { rope::read_query_growth(&fields)? } else { None },
        sinks: architecture == GptOss,
        norm_place: if matches!(architecture, Olmo2 | Olmo3 | Exaone4) { NormPlace::After } else { NormPlace::Before },
        unrotated: match architecture {
            SmolLm3 => rope::read_unrotated(&fields, num_layers)?,
            _ => Vec::new(),
        },
        tied_embeddings: flag("tie_word_embeddings", matches!(architecture, MiniCpm | Ernie45Moe | SmolLm3))?,
        tie_is_stated: fields.flag("tie_word_embeddings")?.is_some(),
        sliding_windows: windows::read_windows(&fields, architecture, num_layers)?,
        embedding_multiplier: scales.embedding as f32,
        residual_multiplier: scales.residual as f32,
        logits_divisor: scales.logits as f32,
        attention_scale: scales.attention as f32,
        dtype: read_dtype(&fields),
        bos_token_id,
        eos_token_ids,
        ends_are_stated: fields.is_written("eos_token_id"),
    };
    match config.count_parameters() {
        Some(count) if count <= ModelConfig::PARAMETERS_MAX => Ok(config),
        count => Err(ConfigProblem::OutOfRange {
            key: "the number of parameters that vocab_size, hidden_size, intermediate_size, num_hidden_layers and the \
                  heads make"
                .to_owned(),
            found: count.map_or_else(|| "more than 2^64".to_owned(), |count| count.to_string()),
            limit: format!("at most {}", ModelConfig::PARAMETERS_MAX),
        }),
    }
}

/// Refuses models that would load and then compute something else.
fn refuse_unsupported(fields: &Fields<'_>, architecture: Architecture) -> Result<(), ConfigProblem> {
    for key in EXPERT_COUNTS {
        match fields.get(key).filter(|_| !architecture.is_mixture()) {
            None => {}
            Some(value) if value.as_f64() == Some(0.0) => {}
            Some(value) => {
                return Err(fields.unsupported(key, value, "this architecture is known without experts only"));
            }
        }
    }
    if matches!(architecture, Architecture::HunyuanDense | Architecture::HunyuanMoe) {
        for (key, computed) in [("use_cla", false), ("use_qk_norm", true), ("use_mixed_mlp_moe", true)] {
            // The last one is of no consequence without experts.
            let concerns = architecture.is_mixture() || key != "use_mixed_mlp_moe";
            if let Some(value) = fields.get(key).filter(|value| concerns && **value != Value::Bool(computed)) {
                return Err(fields.unsupported(key, value, "this architecture is known with the other value only"));
            }
        }
    }
    // What would change the answer, and is not computed, unless it has the neutral value.
    for (key, neutral) in [("clip_qkv", Value::Null), ("use_bias", Value::Bool(false))] {
        if let Some(value) = fields.get(key).filter(|value| architecture.is_mixture() && **value != neutral) {
            return Err(fields.unsupported(key, value, "it changes what is computed, in a way that Interbed does not"));
        }
    }
    Ok(())
}

fn read_num_kv_heads(fields: &Fields<'_>, num_heads: usize, default: Option<usize>) -> Result<usize, ConfigProblem> {
    let key = "num_key_value_heads";
    let num_kv_heads = match fields.count(key, 1..=ModelConfig::HEADS_MAX)? {
        Some(count) => count,
        None if fields.is_written(key) => num_heads,
        None => default.unwrap_or(num_heads),
    };
    if !num_heads.is_multiple_of(num_kv_heads) {
        let limit = format!("a divisor of num_attention_heads, which is {num_heads}");
        return Err(ConfigProblem::OutOfRange { key: fields.name(key), found: num_kv_heads.to_string(), limit });
    }
    Ok(num_kv_heads)
}

fn read_head_dim(
    fields: &Fields<'_>,
    architecture: Architecture,
    hidden_size: usize,
    num_heads: usize,
) -> Result<usize, ConfigProblem> {
    let (key, head_dim) = match fields.count("head_dim", 1..=ModelConfig::HEAD_DIM_MAX)? {
        Some(head_dim) => ("head_dim", head_dim),
        // These have a default that does not follow from the other sizes.
        None if architecture.heads_have_128() => ("head_dim", 128),
        None if architecture == Architecture::GptOss => ("head_dim", 64),
        None if hidden_size.is_multiple_of(num_heads) => ("hidden_size / num_attention_heads", hidden_size / num_heads),
        None => {
            let limit = format!("a multiple of num_attention_heads, which is {num_heads} (there is no head_dim)");
            let key = fields.name("hidden_size");
            return Err(ConfigProblem::OutOfRange { key, found: hidden_size.to_string(), limit });
        }
    };
    if !head_dim.is_multiple_of(2) || head_dim > ModelConfig::HEAD_DIM_MAX {
        let limit = format!("an even number up to {}", ModelConfig::HEAD_DIM_MAX);
        return Err(ConfigProblem::OutOfRange { key: key.to_owned(), found: head_dim.to_string(), limit });
    }
    Ok(head_dim)
}

fn read_activation(fields: &Fields<'_>) -> Result<Activation, ConfigProblem> {
    let key = if fields.get("hidden_act").is_none() { "hidden_activation" } else { "hidden_act" };
    match fields.text(key)?.unwrap_or("silu") {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" | "gelu_python" => Ok(Activation::Gelu),
        // Four names of one formula.
        "gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_new" | "gelu_fast" => Ok(Activation::GeluTanh),
        other => Err(fields.unsupported(key, &Value::from(other), "supported are silu, gelu and gelu_pytorch_tanh")),
    }
}

/// The activation of gpt-oss, which `hidden_act` does not name.
fn read_clamped_activation(fields: &Fields<'_>) -> Result<Activation, ConfigProblem> {
    let (slope, limit) = (Activation::CLAMPED_SLOPE, Activation::CLAMPED_LIMIT);
    for (key, known, hint) in [
        ("swiglu_alpha", slope, "this architecture is known with 1.702 only"),
        ("swiglu_limit", limit, "this architecture is known with 7 only"),
    ] {
        fields.number(key, |number| number as f32 == known, hint)?;
    }
    Ok(Activation::ClampedSwish)
}

/// The factors that MiniCPM and Granite apply between the parts of a model.
struct Scales {
    embedding: f64,
    residual: f64,
    logits: f64,
    attention: f64,
}

fn read_scales(
    fields: &Fields<'_>,
    architecture: Architecture,
    num_layers: usize,
    hidden_size: usize,
    head_dim: usize,
) -> Result<Scales, ConfigProblem> {
    let number = |key| fields.number(key, |number| number.abs() >= 1e-9, "a number other than 0");
    let attention = (head_dim as f64).sqrt().recip();
    Ok(match architecture {
        Architecture::MiniCpm => Scales {
            embedding: number("scale_emb")?.unwrap_or(1.0),
            residual: number("scale_depth")?.map_or(1.0, |depth| depth / (num_layers as f64).sqrt()),
            logits: number("dim_model_base")?.map_or(1.0, |base| hidden_size as f64 / base),
            attention,
        },
        Architecture::Granite | Architecture::GraniteMoe => Scales {
            embedding: number("embedding_multiplier")?.unwrap_or(1.0),
            residual: number("residual_multiplier")?.unwrap_or(1.0),
            logits: number("logits_scaling")?.unwrap_or(1.0),
            // Granite's default is 1, not the value that follows from `head_dim`.
            attention: number("attention_multiplier")?.unwrap_or(1.0),
        },
        _ => Scales { embedding: 1.0, residual: 1.0, logits: 1.0, attention },
    })
}

/// The type is only a hint, so an unknown one is not an error.
fn read_dtype(fields: &Fields<'_>) -> Option<DType> {
    let name = fields.get("dtype").or_else(|| fields.get("torch_dtype"))?.as_str()?;
    match name.strip_prefix("torch.").unwrap_or(name) {
        "float32" => Some(DType::F32),
        "float16" => Some(DType::F16),
        "bfloat16" => Some(DType::BF16),
        _ => None,
    }
}

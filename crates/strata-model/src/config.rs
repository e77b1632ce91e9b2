//! `config.json`: what a model is, checked before anything is computed or allocated according to it.
//!
//! The classic spelling and that of transformers 5 are both read. An absent key means what it means to the
//! configuration class of the same architecture in transformers.

mod error;
pub(crate) mod fields;
mod rope;
#[cfg(test)]
mod tests;
mod windows;

use std::path::Path;

use serde_json::Value;
use strata_kernels::DType;

use fields::Fields;

pub use error::{ConfigError, ConfigProblem};
pub use rope::{RopeConfig, RopeScaling};

/// The supported families of models. All are the Llama decoder with small differences, which [`ModelConfig`] spells
/// out; no other code needs to ask for the family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama 1 to 3.x, Yi and the many models of the same form.
    Llama,
    /// Llama with a sliding window.
    Mistral,
    /// Biases on query, key and value.
    Qwen2,
    /// Norms on query and key heads.
    Qwen3,
    /// Scaled embeddings, residuals and logits: MiniCPM, FM9G/Jiuge.
    MiniCpm,
    /// The same scales under other names.
    Granite,
}

/// Every supported `model_type`.
const MODEL_TYPES: [(&str, Architecture); 8] = [
    ("llama", Architecture::Llama),
    ("mistral", Architecture::Mistral),
    ("qwen2", Architecture::Qwen2),
    ("qwen3", Architecture::Qwen3),
    ("minicpm", Architecture::MiniCpm),
    ("fm9g", Architecture::MiniCpm),
    ("fm9g7b", Architecture::MiniCpm),
    ("granite", Architecture::Granite),
];

pub use strata_kernels::Activation;

/// The shape of a model. Every number is within the limits below and consistent with the others.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Rows of the embedding; token ids are below it.
    pub vocab_size: usize,
    /// Width of the hidden state.
    pub hidden_size: usize,
    /// Width of the feed-forward block.
    pub intermediate_size: usize,
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
    /// The feed-forward block's activation.
    pub activation: Activation,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub output_bias: bool,
    /// Whether the feed-forward projections have biases.
    pub mlp_bias: bool,
    /// Whether each query and key head is normed before rotation.
    pub qk_norm: bool,
    /// Whether the head is the embedding.
    pub tied_embeddings: bool,
    /// Whether `config.json` says so; if not, the architecture's default holds until [`ModelConfig::settle_head`].
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
    /// The tokens that end a text; all below `vocab_size`.
    pub eos_token_ids: Vec<u32>,
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
            RopeScaling::Default | RopeScaling::Llama3 { .. } => 0.0,
        };
        (stretched as usize).clamp(self.max_position_embeddings, Self::POSITIONS_MAX)
    }

    /// If `config.json` does not say whether the head is the embedding, the weight files decide: a model with a head of
    /// its own uses it. Copies of MiniCPM's configuration class disagree on the default.
    pub fn settle_head(&mut self, has_head: bool) {
        if !self.tie_is_stated {
            self.tied_embeddings = !has_head;
        }
    }

    /// Elements of all weights together; a tied head counts once.
    pub fn num_parameters(&self) -> u64 {
        // This cannot overflow: it was checked when the configuration was read.
        self.count_parameters().unwrap_or(u64::MAX)
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
        let vectors = [
            2 * hidden,
            flag(self.qk_norm) * 2 * size(self.head_dim),
            flag(self.qkv_bias) * queries.checked_add(keys)?.checked_add(keys)?,
            flag(self.output_bias) * hidden,
            flag(self.mlp_bias) * (2 * inner + hidden),
        ];
        let layer = vectors.iter().try_fold(attention.checked_add(mlp)?, |sum, &part| sum.checked_add(part))?;
        let embedding = size(self.vocab_size).checked_mul(hidden)?;
        let ends = embedding.checked_mul(if self.tied_embeddings { 1 } else { 2 })?.checked_add(hidden)?;
        layer.checked_mul(size(self.num_layers))?.checked_add(ends)
    }
}

fn parse(text: &str) -> Result<ModelConfig, ConfigProblem> {
    let map = fields::parse_object(text)?;
    let fields = Fields::new(&map);
    let architecture = read_architecture(&fields)?;
    refuse_unsupported(&fields)?;
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
    use Architecture::{Granite, Llama, MiniCpm, Mistral, Qwen2, Qwen3};
    let (qkv_bias, output_bias) = match architecture {
        Llama | Qwen3 | MiniCpm | Granite => {
            let bias = flag("attention_bias", false)?;
            (bias, bias)
        }
        Qwen2 => (true, false),
        Mistral => (false, false),
    };
    let mlp_bias = matches!(architecture, Llama | Granite) && flag("mlp_bias", false)?;
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

    let config = ModelConfig {
        architecture,
        vocab_size,
        hidden_size,
        intermediate_size,
        num_layers,
        num_heads,
        num_kv_heads,
        head_dim,
        max_position_embeddings,
        rms_norm_eps: rms_norm_eps.unwrap_or(1e-6) as f32,
        rope: rope::read_rope(&fields, max_position_embeddings, head_dim)?,
        activation: read_activation(&fields)?,
        qkv_bias,
        output_bias,
        mlp_bias,
        qk_norm: architecture == Qwen3,
        tied_embeddings: flag("tie_word_embeddings", architecture == MiniCpm)?,
        tie_is_stated: fields.flag("tie_word_embeddings")?.is_some(),
        sliding_windows: windows::read_windows(&fields, architecture, num_layers)?,
        embedding_multiplier: scales.embedding as f32,
        residual_multiplier: scales.residual as f32,
        logits_divisor: scales.logits as f32,
        attention_scale: scales.attention as f32,
        dtype: read_dtype(&fields),
        bos_token_id,
        eos_token_ids,
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

/// What an absent key means, for keys on which architectures differ.
struct Defaults {
    vocab_size: usize,
    intermediate_size: usize,
    /// `None` means as many as query heads.
    num_kv_heads: Option<usize>,
    max_position_embeddings: usize,
    bos_token_id: Option<u32>,
    eos_token_id: Option<u32>,
}

impl Defaults {
    fn of(architecture: Architecture) -> Self {
        let llama = Defaults {
            vocab_size: 32_000,
            intermediate_size: 11_008,
            num_kv_heads: None,
            max_position_embeddings: 2048,
            bos_token_id: Some(1),
            eos_token_id: Some(2),
        };
        match architecture {
            Architecture::Llama | Architecture::MiniCpm | Architecture::Granite => llama,
            Architecture::Mistral => {
                Defaults { intermediate_size: 14_336, num_kv_heads: Some(8), max_position_embeddings: 131_072, ..llama }
            }
            Architecture::Qwen2 | Architecture::Qwen3 => Defaults {
                vocab_size: 151_936,
                intermediate_size: 22_016,
                num_kv_heads: Some(32),
                max_position_embeddings: 32_768,
                bos_token_id: None,
                eos_token_id: None,
            },
        }
    }
}

/// Finds the architecture by `model_type`, or by the class name if the file has no `model_type`.
fn read_architecture(fields: &Fields<'_>) -> Result<Architecture, ConfigProblem> {
    let classes = match fields.get("architectures") {
        Some(Value::Array(classes)) => classes.as_slice(),
        _ => &[],
    };
    let class = classes.first().and_then(Value::as_str);
    let known =
        |name: &str| MODEL_TYPES.iter().find(|(known, _)| *known == name).map(|(_, architecture)| *architecture);
    let model_type = fields.text("model_type")?;
    let architecture = match (model_type, class) {
        (Some(model_type), _) => known(model_type),
        (None, Some(class)) => class.strip_suffix("ForCausalLM").and_then(|name| known(&name.to_lowercase())),
        (None, None) => {
            return Err(ConfigProblem::Missing { key: "model_type".to_owned(), why: "it names the architecture" });
        }
    };
    architecture.ok_or_else(|| {
        let shown: String = model_type.or(class).unwrap_or_default().chars().take(80).collect();
        let known: Vec<_> = MODEL_TYPES.iter().map(|(name, _)| *name).collect();
        ConfigProblem::UnknownArchitecture { found: format!("{shown:?}"), known: known.join(", ") }
    })
}

/// Refuses models that would load and then compute something else.
fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ConfigProblem> {
    if let Some(value) = fields.get("quantization_config") {
        let method = value.get("quant_method").unwrap_or(value);
        let hint = "use a checkpoint in f32, f16 or bf16";
        return Err(fields.unsupported("quantization_config", method, hint));
    }
    for key in ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"] {
        match fields.get(key) {
            None => {}
            Some(value) if value.as_f64() == Some(0.0) => {}
            Some(value) => return Err(fields.unsupported(key, value, "mixture-of-experts models cannot be run yet")),
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
        // Only Qwen3 has a default that does not follow from the other sizes.
        None if architecture == Architecture::Qwen3 => ("head_dim", 128),
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
        Architecture::Granite => Scales {
            embedding: number("embedding_multiplier")?.unwrap_or(1.0),
            residual: number("residual_multiplier")?.unwrap_or(1.0),
            logits: number("logits_scaling")?.unwrap_or(1.0),
            // Granite's default is 1, not the value that follows from `head_dim`.
            attention: number("attention_multiplier")?.unwrap_or(1.0),
        },
        Architecture::Llama | Architecture::Mistral | Architecture::Qwen2 | Architecture::Qwen3 => {
            Scales { embedding: 1.0, residual: 1.0, logits: 1.0, attention }
        }
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

//! What a model is, as its files say, checked before anything is computed or allocated according to it.
//!
//! In `config.json`, the classic spelling and that of transformers 5 are both read. An absent key means what it means
//! to the configuration class of the same family in transformers.

mod quantization;
#[cfg(test)]
mod tests;

use std::path::Path;

use interbed_kernels::DType;
use serde_json::Value;

use crate::blueprint::Blueprint;
use crate::families::Family;
use crate::keys::Keys;
use crate::keys::json::{Fields, parse_object, read_text};

pub use crate::config_error::{ConfigError, ConfigProblem};

/// A model's configuration: what the model computes, and which tokens begin and end its texts.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The model's family.
    pub family: &'static Family,
    /// What the model computes.
    pub blueprint: Blueprint,
    /// The tokens that begin and end a text.
    pub ends: TextEnds,
    /// The data type of the weights according to the configuration; `None` if it names no known type. The weight files
    /// may use another type and take precedence.
    pub dtype: Option<DType>,
    /// Whether the configuration says anything about tying the head to the embedding. If not,
    /// [`Head::is_tied`](crate::blueprint::Head::is_tied) is only a default.
    pub tie_is_stated: bool,
}

/// The tokens that begin and end a text. All of them are in the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextEnds {
    /// The token that begins a text.
    pub bos_token_id: Option<u32>,
    /// The tokens that end a text. Other files of the model may name more: see [`end_tokens`](crate::end_tokens()).
    pub eos_token_ids: Vec<u32>,
    /// Whether the configuration names the tokens that end a text. If it does not, `eos_token_ids` is the family's
    /// default.
    pub are_stated: bool,
}

impl ModelConfig {
    /// Reads `config.json` of a Hugging Face directory.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is not valid, or if Interbed cannot compute the model. If a key is at fault,
    /// the error names the key, its value and what was expected.
    pub fn from_dir(dir: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let file = dir.as_ref().join("config.json");
        let Some(text) = read_text(&file)? else {
            let problem = ConfigProblem::Read(std::io::ErrorKind::NotFound.into());
            return Err(ConfigError { file, problem });
        };
        parse(&text).map_err(|problem| ConfigError { file, problem })
    }

    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// Fails if the text is not a JSON object, if a value is missing or not valid, or if Interbed cannot compute the
    /// model.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        parse(text).map_err(|problem| ConfigError { file: "config.json".into(), problem })
    }

    /// Reads the keys of a model of `family`.
    ///
    /// # Errors
    /// A key that is missing or makes no sense, or says what is not computed; by name.
    pub(crate) fn read(family: &'static Family, keys: &Keys<'_>) -> Result<Self, ConfigProblem> {
        let blueprint = family.read(keys)?;
        let found = |what: &str| what.to_owned();
        blueprint.refuse_uncomputed().map_err(|what| ConfigProblem::Uncomputed { what: found(what) })?;
        let ends = read_ends(family, keys, blueprint.vocab_size)?;
        let (dtype, tie_is_stated) = match keys {
            Keys::Json(fields) => (read_dtype(fields), fields.flag("tie_word_embeddings")?.is_some()),
            Keys::Gguf(_) => (None, true),
        };
        match blueprint.count_parameters() {
            Some(count) if count <= Blueprint::PARAMETERS_MAX => {
                Ok(Self { family, blueprint, ends, dtype, tie_is_stated })
            }
            count => Err(ConfigProblem::OutOfRange {
                key: "the number of parameters that vocab_size, hidden_size, intermediate_size, num_hidden_layers and \
                      the heads make"
                    .to_owned(),
                found: count.map_or_else(|| "more than 2^64".to_owned(), |count| count.to_string()),
                limit: format!("at most {}", Blueprint::PARAMETERS_MAX),
            }),
        }
    }
}

fn parse(text: &str) -> Result<ModelConfig, ConfigProblem> {
    let map = parse_object(text)?;
    let whole = Fields::new(&map);
    let Some(family) = whole.text("model_type")?.and_then(Family::within) else {
        return parse_fields(&whole, find_family(&whole)?);
    };
    let Some(fields) = whole.object("text_config", "text_config.")? else {
        return Err(ConfigProblem::Missing { key: "text_config".to_owned(), why: "it describes the language model" });
    };
    let family = if fields.get("model_type").is_none() { family } else { find_family(&fields)? };
    let mut config = parse_fields(&fields, family)?;
    quantization::check_quantization(&whole, config.family.quantizations)?;
    // The whole model says whether its head is the embedding; the default of its class is not that of what files hold.
    if let Some(is_tied) = whole.flag("tie_word_embeddings")? {
        (config.blueprint.head.is_tied, config.tie_is_stated) = (is_tied, true);
    } else {
        config.tie_is_stated = false;
    }
    if let Some(ids) = whole.token_ids("eos_token_id")? {
        let ends = &mut config.ends;
        let mut stated = if ends.are_stated { std::mem::take(&mut ends.eos_token_ids) } else { Vec::new() };
        let vocab_size = config.blueprint.vocab_size;
        let more: Vec<u32> = ids.into_iter().filter(|id| (*id as usize) < vocab_size && !stated.contains(id)).collect();
        stated.extend(more);
        (ends.eos_token_ids, ends.are_stated) = (stated, true);
    }
    config.dtype = config.dtype.or(read_dtype(&whole));
    Ok(config)
}

fn parse_fields(fields: &Fields<'_>, family: &'static Family) -> Result<ModelConfig, ConfigProblem> {
    quantization::check_quantization(fields, family.quantizations)?;
    ModelConfig::read(family, &Keys::Json(*fields))
}

/// Finds the family by `model_type`, or by the class name if the file has no `model_type`.
fn find_family(fields: &Fields<'_>) -> Result<&'static Family, ConfigProblem> {
    let classes = match fields.get("architectures") {
        Some(Value::Array(classes)) => classes.as_slice(),
        _ => &[],
    };
    let class = classes.first().and_then(Value::as_str);
    let model_type = fields.text("model_type")?;
    let family = match (model_type, class) {
        (Some(model_type), _) => Family::of_model_type(model_type),
        (None, Some(class)) => {
            class.strip_suffix("ForCausalLM").and_then(|name| Family::of_model_type(&name.to_lowercase()))
        }
        (None, None) => {
            return Err(ConfigProblem::Missing { key: "model_type".to_owned(), why: "it names the architecture" });
        }
    };
    family.ok_or_else(|| {
        let shown: String = model_type.or(class).unwrap_or_default().chars().take(80).collect();
        ConfigProblem::UnknownArchitecture { found: format!("{shown:?}"), known: Family::model_types().join(", ") }
    })
}

/// The tokens that begin and end a text. Ids beyond the vocabulary can never be sampled; some files copy them from a
/// larger model of the same family.
fn read_ends(family: &Family, keys: &Keys<'_>, vocab_size: usize) -> Result<TextEnds, ConfigProblem> {
    let in_vocabulary = |id: &u32| (*id as usize) < vocab_size;
    let fields = match keys {
        Keys::Json(fields) => fields,
        Keys::Gguf(gguf) => {
            let (bos, mut eos_token_ids) = gguf.ends();
            eos_token_ids.retain(in_vocabulary);
            return Ok(TextEnds { bos_token_id: bos.filter(in_vocabulary), eos_token_ids, are_stated: true });
        }
    };
    let token_ids = |key, default: Option<u32>| match fields.is_written(key) {
        true => Ok(fields.token_ids(key)?.unwrap_or_default()),
        false => Ok::<_, ConfigProblem>(default.into_iter().collect()),
    };
    let [bos, eos] = family.default_ends();
    let bos_token_id = token_ids("bos_token_id", bos)?.into_iter().find(in_vocabulary);
    let mut eos_token_ids = token_ids("eos_token_id", eos)?;
    eos_token_ids.retain(in_vocabulary);
    Ok(TextEnds { bos_token_id, eos_token_ids, are_stated: fields.is_written("eos_token_id") })
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

//! What can be wrong with `config.json` and `generation_config.json`.

use std::path::PathBuf;

use thiserror::Error;

/// The error that a configuration file cannot be used.
#[derive(Debug, Error)]
#[error("{}: {problem}", file.display())]
pub struct ConfigError {
    /// The path of the file.
    pub file: PathBuf,
    /// What is wrong with the file.
    pub problem: ConfigProblem,
}

/// The reason why a configuration is refused.
#[derive(Debug, Error)]
pub enum ConfigProblem {
    /// The file could not be read.
    #[error("cannot read it: {0}")]
    Read(std::io::Error),
    /// The file is longer than the limit.
    #[error("it has more than {limit} bytes, which no configuration needs")]
    TooLong {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The text is not a JSON object.
    #[error("not valid JSON: {0}")]
    Json(serde_json::Error),
    /// The architecture is not supported.
    #[error("unknown architecture {found}; supported are {known}")]
    UnknownArchitecture {
        /// What the file says.
        found: String,
        /// The supported `model_type`s.
        known: String,
    },
    /// The metadata of a GGUF file does not have the expected form.
    #[error(transparent)]
    Gguf(#[from] interbed_weights::GgufProblem),
    /// A GGUF file has a tensor that Interbed does not use for models of the file's architecture.
    #[error(
        "the tensor {tensor:?} has no place in this architecture as Interbed computes it: this variant is not \
         supported; use \
         the model's Hugging Face directory with an engine that supports it"
    )]
    UnwantedTensor {
        /// The name of the tensor in the file.
        tensor: String,
    },
    /// The model has a feature that Interbed cannot compute yet.
    #[error("this model has {what}, which Interbed does not compute yet; use an engine that does")]
    Uncomputed {
        /// What the model has, in the plural.
        what: String,
    },
    /// A required key is absent.
    #[error("{key} is missing: {why}")]
    Missing {
        /// The key.
        key: String,
        /// Why the key is needed.
        why: &'static str,
    },
    /// A value has the wrong type.
    #[error("{key} is {found}, expected {expected}")]
    WrongType {
        /// The key.
        key: String,
        /// The expected type.
        expected: &'static str,
        /// The value, shortened.
        found: String,
    },
    /// A number is outside its limits.
    #[error("{key} is {found}, expected {limit}")]
    OutOfRange {
        /// The key, or the expression of keys.
        key: String,
        /// The value.
        found: String,
        /// The limits.
        limit: String,
    },
    /// The configuration asks for a feature that is not supported.
    #[error("{key} is {found}, which is not supported: {hint}")]
    Unsupported {
        /// The key.
        key: String,
        /// The value, shortened.
        found: String,
        /// What is supported, or what to do.
        hint: &'static str,
    },
}

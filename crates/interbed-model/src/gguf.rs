//! Models in GGUF files: the metadata as configuration, tokenizer, chat template and sampling defaults.
//!
//! Families read the metadata by the interface through which they read `config.json`, and the vocabulary becomes a
//! `tokenizer.json`. Weights are not converted at all.

pub(crate) mod describe;
mod pre_tokenizer;
mod sentencepiece;
mod tensors;
mod tokenizer;

use std::path::PathBuf;

use interbed_weights::{Catalog, GgufProblem, GroupSpec, Metadata};
use serde_json::{Value, json};

use crate::chat_template::{ChatTemplate, SpecialTokens, TemplateError};
use crate::config::{ConfigError, ConfigProblem, ModelConfig};
use crate::families::Family;
use crate::generation_config::GenerationConfig;
use crate::keys::Keys;
use crate::keys::gguf::{GgufKeys, TokenFacts};
use crate::keys::json::shorten;
use crate::pooling::Pooling;
use crate::tokenizer::{MAX_TOKENIZER_BYTES, Tokenizer, TokenizerConfig, TokenizerError};

/// A model in GGUF files, whose metadata replaces the smaller files of a Hugging Face directory.
#[derive(Debug, Clone)]
pub struct GgufModel<'a> {
    catalog: &'a Catalog,
    metadata: &'a Metadata,
    /// Path of the first file, for messages.
    path: PathBuf,
}

impl<'a> GgufModel<'a> {
    /// Returns the model of a catalog, if the catalog lists GGUF files.
    pub fn of(catalog: &'a Catalog) -> Option<Self> {
        let metadata = catalog.metadata()?;
        let path = catalog.files().first().map(|file| file.path().to_owned()).unwrap_or_default();
        Some(Self { catalog, metadata, path })
    }

    /// Reads the model's configuration, which other models have in `config.json`.
    ///
    /// # Errors
    /// An architecture or a feature that is not computed, a key that is missing or makes no sense; each named.
    pub fn config(&self) -> Result<ModelConfig, ConfigError> {
        self.read_config().map_err(|problem| self.config_error(problem))
    }

    fn read_config(&self) -> Result<ModelConfig, ConfigProblem> {
        let kind = self.metadata.text("general.type")?.unwrap_or("model");
        if kind != "model" {
            let (key, found) = ("general.type".to_owned(), shorten(&Value::from(kind)));
            return Err(ConfigProblem::Unsupported { key, found, hint: "give the file of the language model itself" });
        }
        let key = "general.architecture";
        let Some(name) = self.metadata.text(key)? else {
            return Err(ConfigProblem::Missing { key: key.to_owned(), why: "it names the architecture" });
        };
        let tokens = TokenFacts {
            key: tokenizer::TOKENS,
            count: tokenizer::num_tokens(self.metadata)?,
            bos: tokenizer::bos_id(self.metadata)?,
            ends: tokenizer::end_ids(self.metadata)?,
        };
        let keys = GgufKeys::new(self.catalog, self.metadata, name, &tokens);
        let Some(family) = Family::of_gguf(name, &keys)? else {
            let shown: String = name.chars().take(80).collect();
            let known = Family::gguf_names().join(", ");
            return Err(ConfigProblem::UnknownArchitecture { found: format!("{shown:?}"), known });
        };
        ModelConfig::read(family, &Keys::Gguf(keys))
    }

    /// Checks that the file has no tensors besides those of `specs`, the groups of its configuration: a model with a
    /// bias in one layer, or with norms that its architecture does not have, would silently compute something else.
    ///
    /// # Errors
    /// The first tensor that no group asks for, by name.
    pub fn check_tensors(&self, specs: &[GroupSpec]) -> Result<(), ConfigError> {
        tensors::check(self, specs).map_err(|problem| self.config_error(problem))
    }

    /// Reads the sampling defaults (`general.sampling.…`), which other models have in `generation_config.json`. If the
    /// file has none, returns llama.cpp's, which users of such files expect. The tokens that end a text are part of the
    /// configuration.
    ///
    /// # Errors
    /// Names a value that sampling does not allow.
    pub fn generation_config(&self) -> Result<GenerationConfig, ConfigError> {
        const KEYS: [(&str, &str); 5] = [
            ("general.sampling.temp", "temperature"),
            ("general.sampling.top_k", "top_k"),
            ("general.sampling.top_p", "top_p"),
            ("general.sampling.min_p", "min_p"),
            ("general.sampling.penalty_repeat", "repetition_penalty"),
        ];
        let mut json = json!({});
        for (key, name) in KEYS {
            if let Some(number) = self.metadata.number(key).map_err(|problem| self.config_error(problem.into()))? {
                json[name] = json!(number);
            }
        }
        if json == json!({}) {
            return Ok(GenerationConfig::llama_cpp());
        }
        let parsed = GenerationConfig::from_json(&json.to_string());
        parsed.map_err(|ConfigError { problem, .. }| self.config_error(problem))
    }

    /// Reads how hidden states become embeddings.
    ///
    /// # Errors
    /// Describes a way of pooling that Interbed does not compute.
    pub fn pooling(&self) -> Result<Pooling, String> {
        let name = self.metadata.text("general.architecture").ok().flatten().unwrap_or_default();
        let key = format!("{name}.pooling_type");
        match self.metadata.count(&key) {
            Ok(None) => Ok(Pooling::default()),
            Ok(Some(number)) => Pooling::from_gguf(number).map_err(|problem| format!("{key} {problem}")),
            Err(problem) => Err(problem.to_string()),
        }
    }

    /// Makes the tokenizer, which other models have in `tokenizer.json` and `tokenizer_config.json`.
    ///
    /// # Errors
    /// There is none, or it is of a kind that is not known, or damaged.
    pub fn tokenizer(&self) -> Result<Tokenizer, TokenizerError> {
        let files = tokenizer::read(self)?;
        let TokenizerFiles { tokenizer, config } = files;
        let text = tokenizer.to_string();
        // It is about to be parsed into objects again; memory is not planned for two of them at once.
        drop(tokenizer);
        let (bytes, limit) = (text.len() as u64, MAX_TOKENIZER_BYTES);
        if bytes > limit {
            return Err(TokenizerError::TooLarge { path: self.path.clone(), bytes, limit });
        }
        let malformed = |problem| TokenizerError::Malformed { path: self.path.clone(), problem };
        Tokenizer::new(text.as_bytes(), &config).map_err(malformed)
    }

    /// Reads the chat template, `tokenizer.chat_template`, and the one for conversations with tools if there is one.
    ///
    /// # Errors
    /// There is none, or it is too large or not valid.
    pub fn chat_template(&self) -> Result<ChatTemplate, TemplateError> {
        let text = |key: &str| {
            let problem = |problem: GgufProblem| TemplateError::Syntax { problem: problem.to_string() };
            self.metadata.text(key).map_err(problem)
        };
        let Some(source) = text("tokenizer.chat_template")? else {
            return Err(TemplateError::Missing { dir: self.path.clone() });
        };
        let special_tokens = SpecialTokens::of(&tokenizer::names(self)?);
        ChatTemplate::with_tool_template(source, text("tokenizer.chat_template.tool_use")?, special_tokens)
    }

    fn config_error(&self, problem: ConfigProblem) -> ConfigError {
        ConfigError { file: self.path.clone(), problem }
    }
}

/// The contents of `tokenizer.json` and `tokenizer_config.json`, made from a GGUF file.
struct TokenizerFiles {
    tokenizer: Value,
    config: TokenizerConfig,
}

#[cfg(test)]
mod tests;

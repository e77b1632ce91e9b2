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

/// A model stored in GGUF files. The metadata of these files takes the place of `config.json`, `tokenizer.json` and the
/// other small files of a Hugging Face directory.
#[derive(Debug, Clone)]
pub struct GgufModel<'a> {
    catalog: &'a Catalog,
    metadata: &'a Metadata,
    /// Path of the first file, for messages.
    path: PathBuf,
}

impl<'a> GgufModel<'a> {
    /// Returns the GGUF model whose tensors `catalog` lists, or `None` if the catalog has no GGUF metadata.
    pub fn of(catalog: &'a Catalog) -> Option<Self> {
        let metadata = catalog.metadata()?;
        let path = catalog.files().first().map(|file| file.path().to_owned()).unwrap_or_default();
        Some(Self { catalog, metadata, path })
    }

    /// Reads the model's configuration from the GGUF metadata.
    ///
    /// # Errors
    /// Fails if the architecture or a feature of the model is not supported, or if a key is missing or has an invalid
    /// value. The error names the cause.
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

    /// Checks that the model uses every tensor of the file. `specs` lists the tensors that the model uses. If the model
    /// ignored a tensor of its file, such as a bias in one layer, it would silently compute something else. Two kinds
    /// of tensors may be unused: stored rotary factors or frequencies, and the tensors of layers for multi-token
    /// prediction.
    ///
    /// # Errors
    /// Fails if the file has any other unused tensor. The error names the first one.
    pub fn check_tensors(&self, specs: &[GroupSpec]) -> Result<(), ConfigError> {
        tensors::check(self, specs).map_err(|problem| self.config_error(problem))
    }

    /// Reads the sampling defaults from the metadata keys `general.sampling.…`. If the file has none of these keys,
    /// returns the defaults of llama.cpp. The end-of-text tokens are not included, because [`config`](Self::config)
    /// reads them.
    ///
    /// # Errors
    /// Fails if a value has the wrong type or is out of range. The error names the value.
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

    /// Reads how the hidden states of a text are pooled into its embedding.
    ///
    /// # Errors
    /// Fails if Interbed does not support the pooling method, or if the metadata value is not a whole number.
    pub fn pooling(&self) -> Result<Pooling, String> {
        let name = self.metadata.text("general.architecture").ok().flatten().unwrap_or_default();
        let key = format!("{name}.pooling_type");
        match self.metadata.count(&key) {
            Ok(None) => Ok(Pooling::default()),
            Ok(Some(number)) => Pooling::from_gguf(number).map_err(|problem| format!("{key} {problem}")),
            Err(problem) => Err(problem.to_string()),
        }
    }

    /// Creates the tokenizer from the GGUF metadata.
    ///
    /// # Errors
    /// Fails if the metadata has no tokenizer, or if the tokenizer is damaged, too large or of an unsupported kind.
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

    /// Reads the chat template from `tokenizer.chat_template`. If the file has a separate template for conversations
    /// with tools, reads that template too.
    ///
    /// # Errors
    /// Fails if the file has no chat template, or if a template is too large or invalid.
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

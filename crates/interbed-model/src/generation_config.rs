//! Reads `generation_config.json`, which has the sampling parameters that a model's authors recommend.

use std::path::Path;

use crate::config_error::{ConfigError, ConfigProblem};
use crate::keys::json::{Fields, parse_object, read_text};

/// The contents of `generation_config.json`: the sampling parameters that a model's authors recommend, and the tokens
/// that begin and end a text. A field is `None` or empty if the file does not give it. A request may override the
/// sampling parameters.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenerationConfig {
    /// The token that begins a text.
    pub bos_token_id: Option<u32>,
    /// The tokens that end a text, according to this file. Other files of the model may name more: see
    /// [`end_tokens`](crate::end_tokens()).
    pub eos_token_ids: Vec<u32>,
    /// Whether to sample instead of always taking the likeliest token.
    pub do_sample: Option<bool>,
    /// The number that logits are divided by. 0 means that the likeliest token is always taken.
    pub temperature: Option<f32>,
    /// Sampling keeps the likeliest tokens, as many as are needed to reach this total probability. The number is above
    /// 0 and at most 1.
    pub top_p: Option<f32>,
    /// Sampling keeps this many of the likeliest tokens. 0 keeps all tokens.
    pub top_k: Option<u32>,
    /// Sampling keeps tokens whose probability is at least this number times that of the likeliest token. The number is
    /// from 0 to 1.
    pub min_p: Option<f32>,
    /// The penalty for tokens that have already occurred. The number is above 0, and a penalty of 1 has no effect.
    pub repetition_penalty: Option<f32>,
}

impl GenerationConfig {
    /// Returns the default sampling parameters of llama.cpp.
    pub fn llama_cpp() -> Self {
        Self { temperature: Some(0.8), top_k: Some(40), top_p: Some(0.95), min_p: Some(0.05), ..Self::default() }
    }

    /// Reads `generation_config.json` of a Hugging Face directory. If the file does not exist, all fields are `None` or
    /// empty.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is not a JSON object, or if a value has the wrong type or is outside its
    /// range.
    pub fn from_dir(dir: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let file = dir.as_ref().join("generation_config.json");
        match read_text(&file)? {
            None => Ok(Self::default()),
            Some(text) => parse(&text).map_err(|problem| ConfigError { file, problem }),
        }
    }

    /// Reads the text of a `generation_config.json`.
    ///
    /// # Errors
    /// Fails if the text is not a JSON object, or if a value has the wrong type or is outside its range.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        parse(text).map_err(|problem| ConfigError { file: "generation_config.json".into(), problem })
    }
}

fn parse(text: &str) -> Result<GenerationConfig, ConfigProblem> {
    let map = parse_object(text)?;
    let fields = Fields::new(&map);
    let number = |key, check: fn(f64) -> bool, limit| {
        fields.number(key, check, limit).map(|number| number.map(|number| number as f32))
    };
    // Some files say -1 for "all".
    let top_k = match fields.get("top_k").and_then(serde_json::Value::as_i64) {
        Some(-1) => Some(0),
        _ => fields.count("top_k", 0..=u32::MAX as usize)?.map(|count| count as u32),
    };
    Ok(GenerationConfig {
        bos_token_id: fields.token_ids("bos_token_id")?.and_then(|ids| ids.first().copied()),
        eos_token_ids: fields.token_ids("eos_token_id")?.unwrap_or_default(),
        do_sample: fields.flag("do_sample")?,
        temperature: number("temperature", |number| number >= 0.0, "a number from 0 up")?,
        top_p: number("top_p", |number| number > 0.0 && number <= 1.0, "a number above 0 and up to 1")?,
        top_k,
        min_p: number("min_p", |number| (0.0..=1.0).contains(&number), "a number from 0 to 1")?,
        repetition_penalty: number("repetition_penalty", |number| number as f32 > 0.0, "a number above 0")?,
    })
}

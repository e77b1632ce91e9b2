//! Reads the files that describe a tokenizer in addition to `tokenizer.json`, as `transformers` does. The main file is
//! `tokenizer_config.json`. If that file has no list of tokens by their ids (`added_tokens_decoder`), the older files
//! `special_tokens_map.json` and `added_tokens.json` are read too.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::{TokenizerError, added, read_json};

/// The name of the file with the tokenizer's configuration.
pub const CONFIG_FILE: &str = "tokenizer_config.json";
/// The name of the file that lists special tokens by their names.
pub const SPECIAL_FILE: &str = "special_tokens_map.json";
/// The name of the file that lists added tokens with their ids.
pub const ADDED_FILE: &str = "added_tokens.json";

/// The most tokens that may be added, because each token takes memory in a matcher. Files in use add up to some
/// thousands.
const ADDED_MAX: usize = 1 << 16;

/// The names of the special tokens that every tokenizer may have, in the order in which they are added.
const NAMED: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
const DECODER: &str = "added_tokens_decoder";
const ADDITIONAL: &str = "additional_special_tokens";
const EXTRA: &str = "extra_special_tokens";

/// The settings of a tokenizer in addition to its `tokenizer.json`.
#[derive(Debug, Clone, Default)]
pub struct TokenizerConfig {
    json: Map<String, Value>,
    /// The tokens that the older file [`ADDED_FILE`] adds, if that file is used.
    of_old: Vec<(u32, AddedToken)>,
    /// Whether the settings only give names to tokens, and make no token special.
    names_alone: bool,
}

impl TokenizerConfig {
    /// Reads the settings from the files [`CONFIG_FILE`], [`SPECIAL_FILE`] and [`ADDED_FILE`] in `dir`. Each of them
    /// may be missing. If [`CONFIG_FILE`] has the key `added_tokens_decoder`, the other two files are not read.
    ///
    /// # Errors
    /// Fails if a file cannot be read, is too large, or is not a JSON object.
    pub fn from_dir(dir: &Path) -> Result<Self, TokenizerError> {
        let read = |name: &str| {
            let path = dir.join(name);
            match read_json(&path)? {
                None => Ok(None),
                Some(Value::Object(map)) => Ok(Some(map)),
                Some(_) => Err(TokenizerError::Malformed { path, problem: "it is no JSON object".into() }),
            }
        };
        let config = read(CONFIG_FILE)?.unwrap_or_default();
        if config.contains_key(DECODER) {
            return Ok(Self { json: config, ..Self::default() });
        }
        Ok(Self::joined(config, read(SPECIAL_FILE)?, read(ADDED_FILE)?))
    }

    /// Reads the settings like [`TokenizerConfig::from_dir`], but calls `content` with the name of each file to get the
    /// file's content. `content` returns `None` if the file does not exist.
    ///
    /// # Errors
    /// Fails if `content` fails or a file is not a JSON object. The error then names the file and the reason.
    pub fn from_files<E: From<TokenizerError>>(
        mut content: impl FnMut(&'static str) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Self, E> {
        let mut read = |name: &'static str| {
            let Some(bytes) = content(name)? else { return Ok::<_, E>(None) };
            let malformed = |problem| TokenizerError::Malformed { path: name.into(), problem };
            Ok(Some(serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?))
        };
        let config: Map<String, Value> = read(CONFIG_FILE)?.unwrap_or_default();
        if config.contains_key(DECODER) {
            return Ok(Self { json: config, ..Self::default() });
        }
        let (special, added) = (read(SPECIAL_FILE)?, read(ADDED_FILE)?);
        Ok(Self::joined(config, special, added))
    }

    /// Creates the settings from the content of `tokenizer_config.json` alone. If the content is not an object, the
    /// settings are empty.
    pub fn from_json(config: Value) -> Self {
        match config {
            Value::Object(json) => Self { json, ..Self::default() },
            _ => Self::default(),
        }
    }

    /// Makes settings that only give the texts of tokens by their names, for a tokenizer that says itself which tokens
    /// are special. In such a tokenizer, a named token such as `pad_token` may be a part of ordinary texts as well.
    pub(crate) fn of_names(names: Map<String, Value>) -> Self {
        Self { json: names, names_alone: true, ..Self::default() }
    }

    /// Joins a configuration without [`DECODER`] with the contents of the older files.
    fn joined(
        config: Map<String, Value>,
        special: Option<Map<String, Value>>,
        added: Option<Map<String, Value>>,
    ) -> Self {
        let mut joined = Self { json: config, ..Self::default() };
        for (key, value) in special.into_iter().flatten() {
            let has_list = joined.get(EXTRA).is_some_and(Value::is_array);
            match key.as_str() {
                EXTRA if has_list => {
                    let Some(Value::Array(list)) = joined.json.get_mut(EXTRA) else { continue };
                    let new = value.as_array().into_iter().flatten().filter(|token| !list.contains(token));
                    let new: Vec<_> = new.cloned().collect();
                    list.extend(new);
                }
                ADDITIONAL if has_list || joined.json.contains_key(ADDITIONAL) => {}
                _ => drop(joined.json.insert(key, value)),
            }
        }
        let named = joined.named().into_iter().map(|(_, token)| token.content);
        let special: HashSet<_> = named.chain(joined.extra().into_iter().map(|token| token.content)).collect();
        for (content, id) in added.into_iter().flatten() {
            let Some(id) = id.as_u64().and_then(|id| u32::try_from(id).ok()) else { continue };
            let is_special = special.contains(&content);
            joined.of_old.push((id, AddedToken::from(content, is_special)));
        }
        joined
    }

    /// Returns the value of `key` in the settings.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.json.get(key)
    }

    /// Returns the text of the special token that the settings list under `key`, such as `bos_token`.
    pub fn token(&self, key: &str) -> Option<&str> {
        content(self.get(key)?)
    }

    /// Returns the special tokens that have a name, together with this name. Common names such as `bos_token` come
    /// first. Names that only this model uses come after them.
    pub fn named(&self) -> Vec<(String, AddedToken)> {
        let usual = NAMED.iter().filter_map(|&name| Some((name, self.get(name)?)));
        let own = self.json.iter().map(|(name, value)| (name.as_str(), value)).filter(|(name, value)| {
            name.ends_with("_token") && !NAMED.contains(name) && (value.is_string() || value["__type"] == "AddedToken")
        });
        let extra = self.get(EXTRA).and_then(Value::as_object).into_iter().flatten();
        let extra = extra.map(|(name, value)| (name.as_str(), value));
        let all = usual.chain(own).chain(extra);
        all.filter_map(|(name, value)| Some((name.to_owned(), special_token(value)?))).collect()
    }

    /// Returns the special tokens that have no name.
    fn extra(&self) -> Vec<AddedToken> {
        // The newer key wins, unless it gives names: then both hold.
        let list = |key: &str| self.get(key).and_then(Value::as_array).filter(|list| !list.is_empty());
        list(EXTRA).or_else(|| list(ADDITIONAL)).into_iter().flatten().filter_map(special_token).collect()
    }

    /// Returns the tokens that must be added to `known`, the tokens of `tokenizer.json` with their ids. These are the
    /// tokens that `known` does not have, and those that have other flags there, in the order in which they are added.
    ///
    /// # Errors
    /// Fails if an entry is not a token, or if there are too many tokens.
    pub(super) fn tokens_to_add(&self, known: &[(u32, AddedToken)]) -> Result<Vec<AddedToken>, String> {
        if self.names_alone {
            return Ok(Vec::new());
        }
        let named: Vec<_> = self.named().into_iter().map(|(_, token)| token).collect();
        let names: HashSet<&str> = named.iter().map(|token| token.content.as_str()).collect();
        let flags: HashMap<&str, &AddedToken> =
            known.iter().map(|(_, token)| (token.content.as_str(), token)).collect();
        let ids: HashSet<u32> = known.iter().map(|(id, _)| *id).collect();
        let of_old = self.of_old.iter().filter(|(id, _)| !ids.contains(id)).cloned();
        let mut listed: Vec<_> = self.listed()?.into_iter().chain(of_old).collect();
        listed.sort_by_key(|(id, _)| *id);
        let differs = |token: &AddedToken| flags.get(token.content.as_str()).is_none_or(|known| *known != token);
        let mut tokens: Vec<_> = listed.into_iter().map(|(_, token)| token).filter(differs).collect();
        for token in &mut tokens {
            token.special |= names.contains(token.content.as_str());
        }
        let mut contents: HashSet<String> =
            known.iter().map(|(_, token)| token).chain(&tokens).map(|token| token.content.clone()).collect();
        for token in named.into_iter().chain(self.extra()) {
            if contents.insert(token.content.clone()) {
                tokens.push(token);
            }
        }
        match tokens.len() + known.len() {
            count if count > ADDED_MAX => {
                Err(format!("with {CONFIG_FILE} it has {count} added tokens, but at most {ADDED_MAX} are accepted"))
            }
            _ => Ok(tokens),
        }
    }

    /// Returns the tokens of [`DECODER`] with their ids there.
    ///
    /// # Errors
    /// Fails if an entry is not a token.
    pub(super) fn listed(&self) -> Result<Vec<(u32, AddedToken)>, String> {
        let entries = match self.get(DECODER) {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(entries) => entries.as_object().ok_or_else(|| format!("{DECODER} of {CONFIG_FILE} is no object"))?,
        };
        let token = |(id, entry): (&String, &Value)| {
            let number = id.parse().map_err(|_| format!("{DECODER} of {CONFIG_FILE} has no id, but {}", shown(id)))?;
            let token = added::token(entry);
            let token = token.ok_or_else(|| format!("{DECODER}[{number}] of {CONFIG_FILE} has no \"content\""))?;
            Ok((number, token))
        };
        entries.iter().map(token).collect()
    }
}

/// Returns the text of a special token, which is either a text or an object with a `content`.
fn content(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// Reads a token that is special because of its place in the file.
fn special_token(value: &Value) -> Option<AddedToken> {
    match value {
        Value::String(content) => Some(AddedToken::from(content.as_str(), true)),
        Value::Object(_) => added::token(value).map(|token| token.special(true)),
        _ => None,
    }
}

/// Returns the beginning of a text, in quotes, for a message.
fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(40).collect::<String>())
}

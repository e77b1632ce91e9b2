//! What a model says about its tokenizer beside `tokenizer.json`, as `transformers` reads it: `tokenizer_config.json`,
//! and where that lists no tokens by their ids (`added_tokens_decoder`), the older files `special_tokens_map.json` and
//! `added_tokens.json`.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::{TokenizerError, added, read_json};

/// The configuration's file.
pub const CONFIG_FILE: &str = "tokenizer_config.json";
/// The file of special tokens by name.
pub const SPECIAL_FILE: &str = "special_tokens_map.json";
/// The file of added tokens with their ids.
pub const ADDED_FILE: &str = "added_tokens.json";

/// Most tokens that may be added; each costs a matcher's states. Real files have some thousands.
const ADDED_MAX: usize = 1 << 16;

/// The keys of special tokens that every tokenizer may have, in the order in which they are added.
const NAMED: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
const DECODER: &str = "added_tokens_decoder";
const ADDITIONAL: &str = "additional_special_tokens";
const EXTRA: &str = "extra_special_tokens";

/// What is said of a tokenizer beside `tokenizer.json`.
#[derive(Debug, Clone, Default)]
pub struct TokenizerConfig {
    json: Map<String, Value>,
    /// What [`ADDED_FILE`] adds, where it counts.
    of_old: Vec<(u32, AddedToken)>,
    /// Whether it only names tokens, and makes none of them special.
    names_alone: bool,
}

impl TokenizerConfig {
    /// Reads the files of a directory, each of which may be missing.
    ///
    /// # Errors
    /// A file is too large, or no JSON object.
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

    /// As [`TokenizerConfig::from_dir`], from the contents of the files, by their names.
    ///
    /// # Errors
    /// The name of the file that is no JSON object, and why.
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

    /// A configuration alone; anything but an object is empty.
    pub fn from_json(config: Value) -> Self {
        match config {
            Value::Object(json) => Self { json, ..Self::default() },
            _ => Self::default(),
        }
    }

    /// The texts of tokens by their names, for a tokenizer that says itself which tokens are special: a token that
    /// fills up batches may be a part of texts as well.
    pub(crate) fn of_names(names: Map<String, Value>) -> Self {
        Self { json: names, names_alone: true, ..Self::default() }
    }

    /// A configuration without [`DECODER`], and what the older files say.
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

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.json.get(key)
    }

    /// The text of a special token, by its key.
    pub fn token(&self, key: &str) -> Option<&str> {
        content(self.get(key)?)
    }

    /// The special tokens that have a name, `bos_token` and the like, those of the model's own last.
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

    /// The special tokens without a name.
    fn extra(&self) -> Vec<AddedToken> {
        // The newer key wins, unless it gives names: then both hold.
        let list = |key: &str| self.get(key).and_then(Value::as_array).filter(|list| !list.is_empty());
        list(EXTRA).or_else(|| list(ADDITIONAL)).into_iter().flatten().filter_map(special_token).collect()
    }

    /// The tokens that a tokenizer has besides `known`, those of `tokenizer.json` with their ids, or that it says
    /// otherwise, in the order in which they are added.
    ///
    /// # Errors
    /// A token that is none, or too many.
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

    /// The tokens of [`DECODER`] with the ids that it gives them.
    ///
    /// # Errors
    /// An entry that is no token.
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

/// The text of a special token, which is that, or an object with its `content`.
fn content(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// A token that is special because of where it stands.
fn special_token(value: &Value) -> Option<AddedToken> {
    match value {
        Value::String(content) => Some(AddedToken::from(content.as_str(), true)),
        Value::Object(_) => added::token(value).map(|token| token.special(true)),
        _ => None,
    }
}

/// The beginning of a text, for a message.
fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(40).collect::<String>())
}

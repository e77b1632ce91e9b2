//! Reads and writes the `added_tokens` of `tokenizer.json`. These tokens are found in a text unchanged, before the text
//! is tokenized.

use std::collections::HashSet;

use serde_json::{Value, json};
use tokenizers::AddedToken;

/// Returns the tokens that `tokenizer.json` adds, with their ids.
pub(super) fn of(json: &Value) -> Vec<(u32, AddedToken)> {
    let entries = json["added_tokens"].as_array().into_iter().flatten();
    entries.filter_map(|entry| Some((u32::try_from(entry["id"].as_u64()?).ok()?, token(entry)?))).collect()
}

/// Adds `tokens` without ids to the `added_tokens` of `json`, the content of a `tokenizer.json`.
pub(super) fn put(json: &mut Value, tokens: &[AddedToken]) {
    if tokens.is_empty() {
        return;
    }
    let mut entries = json["added_tokens"].as_array().cloned().unwrap_or_default();
    let contents: HashSet<&str> = tokens.iter().map(|token| token.content.as_str()).collect();
    entries.retain(|entry| entry["content"].as_str().is_none_or(|content| !contents.contains(content)));
    entries.extend(tokens.iter().map(|token| {
        json!({
            "content": token.content, "single_word": token.single_word, "lstrip": token.lstrip,
            "rstrip": token.rstrip, "normalized": token.normalized, "special": token.special,
        })
    }));
    json["added_tokens"] = Value::Array(entries);
}

/// Reads an added token with its flags. Returns `None` if the token has no text.
pub(super) fn token(value: &Value) -> Option<AddedToken> {
    let flag = |name: &str| value.get(name).and_then(Value::as_bool);
    let is = |name| flag(name).unwrap_or(false);
    let special = is("special");
    let token = AddedToken::from(value.get("content")?.as_str()?, special);
    let token = token.single_word(is("single_word")).lstrip(is("lstrip")).rstrip(is("rstrip"));
    Some(token.normalized(flag("normalized").unwrap_or(!special)))
}

//! Contents of messages that are lists of blocks, as `/v1/messages` and `/v1/responses` have them.
//!
//! This is the one place that refuses kinds of blocks that are not read, by name.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::shown;

/// The text of a content: a text, or a list of blocks whose `type` is one of `kinds`, joined by line ends. `path` names
/// it in errors.
pub(crate) fn text_of(content: Value, path: &str, kinds: &[&str]) -> Result<String, ApiError> {
    let blocks = match content {
        Value::String(text) => return Ok(text),
        Value::Array(blocks) => blocks,
        other => {
            return refuse(path, format!("must be a text or a list of blocks, but is {}", shown(&other.to_string())));
        }
    };
    let mut texts = Vec::with_capacity(blocks.len());
    for (index, mut block) in blocks.into_iter().enumerate() {
        let at = format!("{path}[{index}]");
        let kind = block.get("type").and_then(Value::as_str).unwrap_or_default();
        if !kinds.contains(&kind) {
            let kind = block.get("type").unwrap_or(&Value::Null).to_string();
            let known = kinds.join(", ");
            return refuse(
                &format!("{at}.type"),
                format!("is {}, which is not supported; this server reads blocks of {known}", shown(&kind)),
            );
        }
        match block.get_mut("text").map(Value::take) {
            Some(Value::String(text)) => texts.push(text),
            other => {
                let is = other.unwrap_or(Value::Null).to_string();
                return refuse(&format!("{at}.text"), format!("must be a text, but is {}", shown(&is)));
            }
        }
    }
    Ok(texts.join("\n"))
}

/// The text in a field of an object, which must have one.
pub(crate) fn text_in(object: &Map<String, Value>, field: &str, path: &str) -> Result<String, ApiError> {
    match object.get(field) {
        Some(Value::String(text)) => Ok(text.clone()),
        other => {
            let is = other.unwrap_or(&Value::Null).to_string();
            refuse(&format!("{path}.{field}"), format!("must be a text, but is {}", shown(&is)))
        }
    }
}

/// The fields of a message or item, which must be an object.
pub(crate) fn object_of(value: Value, path: &str) -> Result<Map<String, Value>, ApiError> {
    match value {
        Value::Object(object) => Ok(object),
        other => refuse(path, format!("must be an object, but is {}", shown(&other.to_string()))),
    }
}

/// The role of a message, one of `roles`.
pub(crate) fn role_of(
    message: &Map<String, Value>,
    path: &str,
    roles: &[&'static str],
) -> Result<&'static str, ApiError> {
    let role = message.get("role").unwrap_or(&Value::Null);
    match roles.iter().find(|&known| role == known) {
        Some(known) => Ok(known),
        None => {
            let is = role.to_string();
            refuse(&format!("{path}.role"), format!("is {}, but must be one of {}", shown(&is), roles.join(", ")))
        }
    }
}

/// An error about the field at `path`, whose message goes on with `problem`.
pub(crate) fn refuse<T>(path: &str, problem: String) -> Result<T, ApiError> {
    Err(ApiError::invalid(path, format!("{path} {problem}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_read_and_other_blocks_named() {
        let kinds = ["text", "input_text"];
        let text = |content| text_of(content, "c", &kinds);
        assert_eq!(text(json!("a")).expect("a text"), "a");
        let blocks = json!([{"type": "text", "text": "a", "cache_control": {}}, {"type": "input_text", "text": "b"}]);
        assert_eq!(text(blocks).expect("texts"), "a\nb");
        assert_eq!(text(json!([])).expect("nothing"), "");
        for (content, param) in [
            (json!(1), "c"),
            (json!(null), "c"),
            (json!([{"type": "image"}]), "c[0].type"),
            (json!([{"type": "text", "text": "a"}, {"text": "b"}]), "c[1].type"),
            (json!([{"type": "text"}]), "c[0].text"),
            (json!([3]), "c[0].type"),
        ] {
            let error = text(content).expect_err(param);
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(param)));
            assert!(error.message.starts_with(&format!("{param} ")), "{}", error.message);
        }
    }
}

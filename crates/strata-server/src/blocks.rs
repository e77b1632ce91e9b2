//! Contents of messages that are lists of blocks, as `/v1/messages` and `/v1/responses` have them.
//!
//! Only texts are read. This is the one place that refuses the other kinds of blocks, by name.

use serde_json::{Map, Value, json};

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

/// A conversation, message after message.
#[derive(Default)]
pub(crate) struct Turns(Vec<Value>);

impl Turns {
    /// Adds what `role` says. Where it spoke last, it goes on: many templates want roles to alternate.
    pub(crate) fn push(&mut self, role: &str, text: String) {
        match self.0.last_mut() {
            Some(Value::Object(last)) if last.get("role").is_some_and(|other| other == role) => {
                if let Some(Value::String(before)) = last.get_mut("content") {
                    before.push('\n');
                    before.push_str(&text);
                }
            }
            _ => self.0.push(json!({"role": role, "content": text})),
        }
    }

    /// The role that spoke last.
    pub(crate) fn last_role(&self) -> Option<&str> {
        self.0.last()?.get("role")?.as_str()
    }

    pub(crate) fn into_messages(self) -> Vec<Value> {
        self.0
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

    #[test]
    fn roles_alternate() {
        let mut turns = Turns::default();
        for (role, text) in [("system", "s"), ("user", "a"), ("user", "b"), ("assistant", "c")] {
            turns.push(role, text.into());
        }
        assert_eq!(turns.last_role(), Some("assistant"));
        let messages = turns.into_messages();
        assert_eq!(messages.len(), 3);
        assert_eq!(messages[1], json!({"role": "user", "content": "a\nb"}));
    }
}

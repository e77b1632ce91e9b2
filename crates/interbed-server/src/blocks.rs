//! Contents of messages that are lists of blocks, as `/v1/messages` and `/v1/responses` have them.
//!
//! This is the one place that refuses kinds of blocks that are not read, by name.

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

/// A conversation, message after message, as chats have them.
#[derive(Default)]
pub(crate) struct Turns(Vec<Value>);

impl Turns {
    /// Adds what `role` says. Where it spoke last, it goes on: many templates want roles to alternate.
    pub(crate) fn push(&mut self, role: &str, text: String) {
        match self.last_of(role) {
            Some(last) if !last.contains_key("tool_calls") => {
                if let Some(Value::String(before)) = last.get_mut("content") {
                    if !before.is_empty() {
                        before.push('\n');
                    }
                    before.push_str(&text);
                }
            }
            _ => self.0.push(json!({"role": role, "content": text})),
        }
    }

    /// Adds what the assistant thinks before it says something.
    pub(crate) fn think(&mut self, text: String) {
        match self.last_of("assistant") {
            Some(last) if last.get("content").is_some_and(|content| content == "") => {
                if let Some(Value::String(before)) = last.get_mut("reasoning_content") {
                    before.push('\n');
                    before.push_str(&text);
                } else {
                    last.insert("reasoning_content".into(), text.into());
                }
            }
            _ => self.0.push(json!({"role": "assistant", "content": "", "reasoning_content": text})),
        }
    }

    /// Adds a call by the assistant; `arguments` are an object, or a text of one.
    pub(crate) fn call(&mut self, id: String, name: String, arguments: Value) {
        if self.last_of("assistant").is_none() {
            self.0.push(json!({"role": "assistant", "content": ""}));
        }
        let Some(last) = self.last_of("assistant") else { return };
        if last.get("content").is_some_and(|content| content == "") {
            last.insert("content".into(), Value::Null);
        }
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        if let Value::Array(calls) = last.entry("tool_calls").or_insert_with(|| json!([])) {
            calls.push(call);
        }
    }

    /// Adds what a call has brought.
    ///
    /// # Errors
    /// No call has this id, which `path` names.
    pub(crate) fn result(&mut self, id: String, text: String, path: &str) -> Result<(), ApiError> {
        let calls = self.0.iter().rev().filter_map(|message| message["tool_calls"].as_array()).flatten();
        let Some(call) = calls.into_iter().find(|call| call["id"] == id.as_str()) else {
            return refuse(
                path,
                format!("is {}, but no call before it has this id", shown(&Value::from(id).to_string())),
            );
        };
        let name = call["function"]["name"].clone();
        self.0.push(json!({"role": "tool", "tool_call_id": id, "name": name, "content": text}));
        Ok(())
    }

    /// The last message, if it is by `role` and may be added to.
    fn last_of(&mut self, role: &str) -> Option<&mut Map<String, Value>> {
        let last = self.0.last_mut()?.as_object_mut()?;
        (last.get("role").is_some_and(|other| other == role) && role != "tool").then_some(last)
    }

    /// Whether the assistant spoke last, and called nothing.
    pub(crate) fn is_to_be_continued(&mut self) -> bool {
        self.last_of("assistant").is_some_and(|last| !last.contains_key("tool_calls"))
    }

    pub(crate) fn into_messages(self) -> Vec<Value> {
        self.0
    }
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
        assert!(turns.is_to_be_continued());
        let messages = turns.into_messages();
        assert_eq!(messages.len(), 3);
        assert_eq!(messages[1], json!({"role": "user", "content": "a\nb"}));
    }

    #[test]
    fn thinking_calls_and_results_are_parts_of_turns() {
        let mut turns = Turns::default();
        turns.push("user", "a".into());
        turns.think("hm".into());
        turns.think("so".into());
        turns.push("assistant", "I look.".into());
        turns.call("1".into(), "f".into(), json!({"x": 1}));
        turns.call("2".into(), "g".into(), json!({}));
        assert!(!turns.is_to_be_continued());
        turns.result("2".into(), "ok".into(), "p").expect("a call");
        assert_eq!(turns.result("3".into(), "ok".into(), "p").expect_err("no call").param.as_deref(), Some("p"));
        turns.call("4".into(), "f".into(), json!({}));
        let call = |id: &str, name: &str, arguments: Value| {
            let function = json!({"name": name, "arguments": arguments});
            json!({"id": id, "type": "function", "function": function})
        };
        let expected = json!([
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "I look.", "reasoning_content": "hm\nso",
                "tool_calls": [call("1", "f", json!({"x": 1})), call("2", "g", json!({}))]},
            {"role": "tool", "tool_call_id": "2", "name": "g", "content": "ok"},
            {"role": "assistant", "content": null, "tool_calls": [call("4", "f", json!({}))]},
        ]);
        assert_eq!(Value::from(turns.into_messages()), expected);
    }
}

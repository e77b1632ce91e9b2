//! Translates the messages of Ollama's chats into the form of OpenAI's chats.
//!
//! Calls of Ollama's have objects as arguments and need no ids. A result names its tool, or follows its call.

use std::collections::VecDeque;

use serde_json::{Map, Value, json};

use crate::blocks::{object_of, refuse};
use crate::error::ApiError;
use crate::history::newest_turn;

type Message = Map<String, Value>;

/// The calls that have no result yet, the oldest first, each with its id and the name of its function.
#[derive(Default)]
struct Calls {
    open: VecDeque<(Value, Value)>,
    made: usize,
}

/// Translates messages into the form of OpenAI's chats.
///
/// # Errors
/// Fails if a message is not an object, or the user's newest turn has pictures.
pub(super) fn as_chat(messages: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    let path = |index: usize| format!("messages[{index}]");
    let messages = messages.into_iter().enumerate().map(|(index, message)| object_of(message, &path(index)));
    let mut messages = messages.collect::<Result<Vec<Message>, _>>()?;
    messages.iter_mut().for_each(with_small_role);
    let newest = newest_turn(messages.iter().map(|message| is_by(message, "user")));
    let mut calls = Calls::default();
    for (index, message) in messages.iter_mut().enumerate() {
        let pictures = message.shift_remove("images").filter(|images| *images != json!([]) && !images.is_null());
        if pictures.is_some() && newest.contains(&index) {
            let problem = "has pictures, but this model reads text alone; leave them out";
            return refuse(&format!("{}.images", path(index)), problem.into());
        }
        if pictures.is_some() {
            tell_of_picture(message);
        }
        if let Some(thought) = message.shift_remove("thinking") {
            message.entry("reasoning_content").or_insert(thought);
        }
        if let Some(Value::Array(made)) = message.get_mut("tool_calls") {
            made.iter_mut().filter_map(Value::as_object_mut).for_each(|call| calls.add(call));
        }
        if is_by(message, "tool") {
            calls.answer(message);
        }
    }
    Ok(messages.into_iter().map(Value::Object).collect())
}

/// Adds the type `function` to tools that lack a type, because OpenAI's chats require one.
pub(super) fn with_types(mut tools: Vec<Value>) -> Vec<Value> {
    for tool in tools.iter_mut().filter_map(Value::as_object_mut) {
        if tool.get("type").is_none_or(Value::is_null) && tool.contains_key("function") {
            tool.insert("type".into(), "function".into());
        }
    }
    tools
}

fn is_by(message: &Message, role: &str) -> bool {
    message.get("role").is_some_and(|known| known == role)
}

/// Writes the role in lower case, because Ollama accepts roles in capitals.
fn with_small_role(message: &mut Message) {
    if let Some(Value::String(role)) = message.get_mut("role") {
        role.make_ascii_lowercase();
    }
}

/// Appends a part to the message, which says that the message had a picture.
fn tell_of_picture(message: &mut Message) {
    let content = message.get_mut("content").map_or(Value::Null, Value::take);
    let mut parts = match content {
        Value::Array(parts) => parts,
        Value::String(text) if !text.is_empty() => vec![json!({"type": "text", "text": text})],
        _ => Vec::new(),
    };
    parts.push(json!({"type": "image"}));
    message.insert("content".into(), parts.into());
}

impl Calls {
    /// Records a call, and gives it an id if it has none.
    fn add(&mut self, call: &mut Message) {
        let id = match call.get("id") {
            Some(id) if id.as_str().is_some_and(|id| !id.is_empty()) => id.clone(),
            // Some templates require ids of nine characters.
            _ => format!("call{:05}", self.made).into(),
        };
        self.made += 1;
        call.insert("id".into(), id.clone());
        call.insert("type".into(), "function".into());
        let function = call.get_mut("function").and_then(Value::as_object_mut);
        let name = function.map_or(Value::Null, |function| {
            function.shift_remove("index");
            function.get("name").cloned().unwrap_or_default()
        });
        self.open.push_back((id, name));
    }

    /// Finds the call to which a result belongs, by its id or by the name of its tool. If neither is given, the result
    /// belongs to the oldest call.
    fn answer(&mut self, result: &mut Message) {
        let tool = result.shift_remove("tool_name").filter(Value::is_string);
        let tool = tool.or_else(|| result.get("name").filter(|name| name.is_string()).cloned());
        let id = result.get("tool_call_id").filter(|id| id.as_str().is_some_and(|id| !id.is_empty())).cloned();
        let place = self.open.iter().position(|(known, name)| match (&id, &tool) {
            (Some(id), _) => known == id,
            (None, Some(tool)) => name == tool,
            (None, None) => true,
        });
        let (known, name) = place.and_then(|place| self.open.remove(place)).unzip();
        result.extend(id.or(known).map(|id| ("tool_call_id".to_owned(), id)));
        result.extend(tool.or(name).map(|name| ("name".to_owned(), name)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(messages: Value, expected: Value) {
        let Value::Array(messages) = messages else { panic!("a list") };
        assert_eq!(Value::from(as_chat(messages).expect("a chat")), expected);
    }

    #[test]
    fn results_find_their_calls() {
        let call = |name: &str| json!({"function": {"index": 0, "name": name, "arguments": {"x": name}}});
        let known = |id: &str, name: &str| {
            let function = json!({"name": name, "arguments": {"x": name}});
            json!({"function": function, "id": id, "type": "function"})
        };
        let result = |text: &str, id: &str, name: &str| {
            let [role, id, name] = ["tool", id, name].map(Value::from);
            json!({"role": role, "content": text, "tool_call_id": id, "name": name})
        };
        check(
            json!([
                {"role": "User", "content": "a"},
                {"role": "assistant", "thinking": "t", "tool_calls": [call("f"), call("g"), call("f")]},
                {"role": "tool", "content": "1", "tool_name": "g"},
                {"role": "tool", "content": "2", "tool_name": "f"},
                {"role": "tool", "content": "3"},
                {"role": "tool", "content": "4", "tool_name": "h"},
                {"role": "tool", "content": "5"},
            ]),
            json!([
                {"role": "user", "content": "a"},
                {
                    "role": "assistant",
                    "tool_calls": [known("call00000", "f"), known("call00001", "g"), known("call00002", "f")],
                    "reasoning_content": "t",
                },
                result("1", "call00001", "g"),
                result("2", "call00000", "f"),
                result("3", "call00002", "f"),
                {"role": "tool", "content": "4", "name": "h"},
                {"role": "tool", "content": "5"},
            ]),
        );
        // Ids that the client sent are kept.
        let mut own = call("f");
        own["id"] = json!("x");
        check(
            json!([{"role": "assistant", "tool_calls": [call("f"), own]},
                {"role": "tool", "content": "1", "tool_call_id": "x", "tool_name": "f"}]),
            json!([{"role": "assistant", "tool_calls": [known("call00000", "f"), {
                "function": {"name": "f", "arguments": {"x": "f"}}, "id": "x", "type": "function",
            }]}, {"role": "tool", "content": "1", "tool_call_id": "x", "name": "f"}]),
        );
    }

    #[test]
    fn pictures_of_the_newest_turn_are_refused_and_others_told_of() {
        let message = |role: &str, images: Value| json!({"role": role, "content": "a", "images": images});
        let told = json!([{"type": "text", "text": "a"}, {"type": "image"}]);
        check(
            json!([message("user", json!(["aGk="])), message("assistant", json!([])), message("user", json!(null))]),
            json!([{"role": "user", "content": told}, {"role": "assistant", "content": "a"},
                {"role": "user", "content": "a"}]),
        );
        let newest = vec![message("user", json!([])), message("user", json!(["aGk="]))];
        let error = as_chat(newest).expect_err("a picture");
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("messages[1].images")));
        assert_eq!(as_chat(vec![json!(3)]).expect_err("a number").param.as_deref(), Some("messages[0]"));
    }

    #[test]
    fn tools_say_their_type() {
        let tools = vec![json!({"function": {"name": "f"}}), json!({"type": "web_search"}), json!(1)];
        let expected =
            [json!({"function": {"name": "f"}, "type": "function"}), json!({"type": "web_search"}), json!(1)];
        assert_eq!(with_types(tools), expected);
    }
}

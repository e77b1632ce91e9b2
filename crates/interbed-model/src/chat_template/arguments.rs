//! Finds out how a template expects the arguments of calls. Some templates iterate over an object or write it as JSON,
//! and others write a text unchanged. Each form is tried on a conversation with calls.

use serde_json::{Value as Json, json};

/// The form in which a template expects the arguments of a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentsForm {
    /// The template expects the arguments as an object.
    Object,
    /// The template expects the arguments as a string that holds a JSON object.
    Text,
}

/// A key of the tried arguments, which no template writes by itself.
const KEY: &str = "probe_key";
pub(super) const VALUE: &str = "probe_value";

/// Returns the form in which `render` shows arguments best. If both forms are shown equally well, returns
/// [`ArgumentsForm::Object`].
pub(super) fn probe(render: impl Fn(&[Json], &[Json]) -> Option<String>) -> ArgumentsForm {
    let arguments = probed();
    let score = |given: &Json| {
        // Some templates want a content beside calls, others none; some take one call at a time.
        let tried = [(json!(""), 2), (Json::Null, 2), (json!(""), 1), (Json::Null, 1)];
        let scores = tried.into_iter().map(|(content, calls)| {
            let rendered = render(&conversation(given, Some(content), calls), std::slice::from_ref(&tool()));
            rendered.map_or(0, |text| quality(&text, &arguments))
        });
        scores.max().unwrap_or(0)
    };
    if score(&arguments) >= score(&Json::String(arguments.to_string())) {
        ArgumentsForm::Object
    } else {
        ArgumentsForm::Text
    }
}

/// Returns arguments that no template writes by itself.
pub(super) fn probed() -> Json {
    json!({KEY: VALUE, "flag": true, "list": [1, null]})
}

/// Returns the definition of the tool that is called with the tried arguments.
pub(super) fn tool() -> Json {
    json!({"type": "function", "function": {"name": "f", "description": "d",
        "parameters": {"type": "object", "properties": {}}}})
}

/// Returns a conversation in which one message of the assistant makes `calls` calls. The message has the given
/// `content`, or no content.
pub(super) fn conversation(arguments: &Json, content: Option<Json>, calls: usize) -> Vec<Json> {
    // Some templates want ids of nine characters.
    let ids = || (1..=calls).map(|number| format!("abcdefgh{number}"));
    let call = |id| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}});
    let mut calling = json!({"role": "assistant"});
    if let Some(content) = content {
        calling["content"] = content;
    }
    calling["tool_calls"] = ids().map(call).collect();
    let result = |id| json!({"role": "tool", "tool_call_id": id, "name": "f", "content": "r"});
    [json!({"role": "user", "content": "u"}), calling].into_iter().chain(ids().map(result)).collect()
}

/// Rates how well a text shows the arguments: 3 as JSON, 2 in another way, 1 in quotes within quotes or in brackets
/// that are no JSON, and 0 not at all.
pub(super) fn quality(text: &str, arguments: &Json) -> u8 {
    let is_shown = |at: usize| {
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Json>();
        matches!(values.next(), Some(Ok(value)) if value == *arguments || value["arguments"] == *arguments
            || value["parameters"] == *arguments || value["function"]["arguments"] == *arguments)
    };
    // A template that writes brackets of its own around the members gets them twice if the arguments are a text.
    let is_doubled = |at: usize| text[..at].ends_with('{') && is_shown(at);
    let mut brackets = text.match_indices('{').map(|(at, _)| at);
    if brackets.clone().any(|at| is_shown(at) && !is_doubled(at)) {
        3
    } else if text.contains(&format!("{KEY}\\\"")) || brackets.any(is_doubled) {
        1
    } else if text.contains(KEY) && text.contains(VALUE) {
        2
    } else {
        0
    }
}

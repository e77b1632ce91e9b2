//! How a template wants the arguments of calls: some iterate over an object or write it as JSON, others write a text as
//! it is. What a template does with each is tried on a conversation with calls.

use serde_json::{Value as Json, json};

/// How a template wants the arguments of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentsForm {
    /// As an object.
    Object,
    /// As the text of one.
    Text,
}

/// What tells the arguments from all else that a template writes.
const KEY: &str = "probe_key";
const VALUE: &str = "probe_value";

/// The form in which `render` writes arguments best. An object, where both are as good.
pub(super) fn probe(render: impl Fn(&[Json], &[Json]) -> Option<String>) -> ArgumentsForm {
    let arguments = json!({KEY: VALUE, "flag": true, "list": [1, null]});
    let tool = json!({"type": "function", "function": {"name": "f", "description": "d",
        "parameters": {"type": "object", "properties": {}}}});
    let score = |given: &Json| {
        // Some templates want a content beside calls, others none.
        let contents = [json!(""), Json::Null];
        let scores = contents.iter().map(|content| {
            let rendered = render(&conversation(given, content), std::slice::from_ref(&tool));
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

fn conversation(arguments: &Json, content: &Json) -> Vec<Json> {
    // Mistral's templates want ids of nine characters.
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}});
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "name": "f", "content": "r"});
    let (one, other) = ("abcdefgh1", "abcdefgh2");
    vec![
        json!({"role": "user", "content": "u"}),
        json!({"role": "assistant", "content": content, "tool_calls": [call(one), call(other)]}),
        result(one),
        result(other),
    ]
}

/// How well a text shows the arguments: as JSON, in another way, in quotes within quotes, or not at all.
fn quality(text: &str, arguments: &Json) -> u8 {
    let is_shown = |at: usize| {
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Json>();
        matches!(values.next(), Some(Ok(value)) if value == *arguments || value["arguments"] == *arguments
            || value["parameters"] == *arguments || value["function"]["arguments"] == *arguments)
    };
    if text.match_indices('{').any(|(at, _)| is_shown(at)) {
        3
    } else if text.contains(&format!("{KEY}\\\"")) {
        1
    } else if text.contains(KEY) && text.contains(VALUE) {
        2
    } else {
        0
    }
}

//! Converts values of parameters between tags by their schema.

use serde_json::Value;
use serde_json::value::RawValue;

use super::Function;

/// Returns the JSON of a parameter's value that is written as text. The result is a string if the schema says so, or
/// else the text itself if it is valid JSON.
pub(super) fn typed(text: &str, function: Option<&Function>, name: &str) -> String {
    let schema = schema_of(function, name);
    let json = || serde_json::from_str::<&RawValue>(text).ok().map(RawValue::get);
    // Of several types, the matching one applies; text of no other type is a string.
    let kinds = schema.and_then(|schema| schema["type"].as_array());
    let fits = |json: &&str| kinds.is_none_or(|kinds| kinds.iter().any(|kind| is_of(kind, json)));
    match json().filter(|_| !is_plain_text(schema)).filter(fits) {
        Some(json) => compact(json),
        None => Value::from(text).to_string(),
    }
}

fn is_of(kind: &Value, json: &str) -> bool {
    match kind.as_str() {
        Some("null") => json == "null",
        Some("boolean") => json.starts_with(['t', 'f']),
        Some("integer" | "number") => json.starts_with(|first: char| first == '-' || first.is_ascii_digit()),
        Some("string") => json.starts_with('"'),
        Some("array") => json.starts_with('['),
        Some("object") => json.starts_with('{'),
        _ => false,
    }
}

/// The longest chain of references.
const REFERENCES_MAX: usize = 8;

/// Returns the schema of the parameter `name`.
pub(super) fn schema_of<'f>(function: Option<&'f Function>, name: &str) -> Option<&'f Value> {
    function.and_then(|function| root_of(&function.parameters).get("properties")?.get(name))
}

/// Returns the root of a schema. If the root is a reference to a definition, returns that definition.
pub(super) fn root_of(schema: &Value) -> &Value {
    let mut root = schema;
    for _ in 0..REFERENCES_MAX {
        let Some(to) = root["$ref"].as_str() else { return root };
        let definition =
            to.strip_prefix('#').filter(|path| ["/$defs/", "/definitions/"].iter().any(|name| path.starts_with(name)));
        let Some(next) = definition.and_then(|path| schema.pointer(path)) else { return root };
        root = next;
    }
    root
}

/// Returns whether all values of a parameter are strings, which are written unescaped. Other values are written as
/// JSON.
pub(super) fn is_plain_text(schema: Option<&Value>) -> bool {
    let Some(schema) = schema else { return false };
    let choices = schema["enum"].as_array().filter(|choices| !choices.is_empty());
    let are_texts = choices.is_some_and(|choices| choices.iter().all(Value::is_string));
    schema["type"] == "string" || (are_texts && !schema["type"].is_string())
}

/// Removes the white space between the parts of JSON.
fn compact(json: &str) -> String {
    let (mut in_text, mut is_escaped) = (false, false);
    let stays = |&character: &char| {
        let is_quote = character == '"' && !is_escaped;
        is_escaped = in_text && character == '\\' && !is_escaped;
        in_text ^= is_quote;
        in_text || !character.is_ascii_whitespace()
    };
    json.chars().filter(stays).collect()
}

/// Returns whether JSON ends within a number, such as after a decimal point. The JSON parser reports an error there
/// rather than an incomplete number.
pub(super) fn ends_within_a_number(json: &str) -> bool {
    let whole = || serde_json::from_str::<&RawValue>(&format!("{json}0")).err();
    json.ends_with(['.', 'e', 'E', '+', '-']) && whole().is_some_and(|error| error.is_eof())
}

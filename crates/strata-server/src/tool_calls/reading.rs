//! Parts that the forms of several families have in common.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{Function, Reading, ToolCall};

/// The JSON object or list that `text` begins with, its length, and white space before it included; `None` while it is
/// not complete, an error if there is none.
pub(super) fn json(text: &str) -> Result<Option<(&str, usize)>, ()> {
    let start = text.len() - text.trim_start().len();
    let value = &text[start..];
    if value.is_empty() {
        return Ok(None);
    }
    if !value.starts_with(['{', '[']) {
        return Err(());
    }
    let mut values = serde_json::Deserializer::from_str(value).into_iter::<&RawValue>();
    match values.next() {
        Some(Ok(raw)) => Ok(Some((raw.get(), start + raw.get().len()))),
        Some(Err(error)) if error.is_eof() => Ok(None),
        _ => Err(()),
    }
}

/// The text behind `expected`, white space before it aside; `None` while it may still come, an error if it does not.
pub(super) fn after<'t>(text: &'t str, expected: &str) -> Result<Option<&'t str>, ()> {
    let text = text.trim_start();
    match text.strip_prefix(expected) {
        Some(rest) => Ok(Some(rest)),
        None if expected.starts_with(text) => Ok(None),
        None => Err(()),
    }
}

/// What comes before `end`, and behind it.
pub(super) fn until<'t>(text: &'t str, end: &str) -> Result<Option<(&'t str, &'t str)>, ()> {
    Ok(text.split_once(end))
}

/// A call that is a JSON object with a name and arguments.
pub(super) fn call_of(json: &str) -> Option<ToolCall> {
    let fields: Map<String, Value> = serde_json::from_str(json).ok()?;
    let name = fields.get("name")?.as_str()?.to_owned();
    let arguments = ["arguments", "parameters"].into_iter().find_map(|key| fields.get(key));
    let arguments = match arguments {
        None | Some(Value::Null) => "{}".to_owned(),
        // Some models write the arguments as a text of JSON.
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    Some(ToolCall { name, arguments })
}

/// The reading of a text that `read` takes apart: a call and the rest.
pub(super) fn reading(text: &str, read: impl FnOnce() -> Result<Option<(Vec<ToolCall>, usize)>, ()>) -> Reading {
    match read() {
        Ok(Some((calls, rest))) => Reading::Calls(calls, text.len() - rest),
        Ok(None) => Reading::More,
        Err(()) => Reading::Nothing,
    }
}

/// The value of a parameter that is written as text: a string where the schema says so, else JSON if it is.
pub(super) fn typed(text: &str, function: Option<&Function>, name: &str) -> Value {
    let schema = function.and_then(|function| function.parameters.get("properties")?.get(name));
    let is_string = |schema: &Value| match &schema["type"] {
        Value::String(kind) => kind == "string",
        Value::Array(kinds) => kinds.iter().any(|kind| kind == "string"),
        _ => schema["enum"].as_array().is_some_and(|values| values.iter().all(Value::is_string)),
    };
    if schema.is_some_and(is_string) {
        return text.into();
    }
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

/// The function of this name.
pub(super) fn named<'f>(functions: &'f [Function], name: &str) -> Option<&'f Function> {
    functions.iter().find(|function| function.name == name)
}

/// A text in Lark's quotes.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A rule `call` with an alternative for each function: `before` its name, `between` that and the arguments, `behind`.
pub(super) fn json_calls(functions: &[Function], before: &str, between: &str, behind: &str) -> String {
    let one = |function: &Function| {
        let begin = format!("{before}{}{between}", function.name);
        format!("{} %json {} {}", quoted(&begin), function.parameters, quoted(behind))
    };
    let calls: Vec<_> = functions.iter().map(one).collect();
    format!("call: {}\n", calls.join("\n    | "))
}

/// A rule `call` for forms in which each parameter stands between tags, in the order of the schema: `begin` the call,
/// `open` a parameter, `close` it, `end` the call. Texts go up to the tag that closes them; other values are JSON.
pub(super) fn tagged_calls(
    functions: &[Function],
    begin: impl Fn(&str) -> String,
    open: impl Fn(&str) -> String,
    close: &str,
    end: &str,
) -> String {
    let mut rules = format!("text[suffix={}]: /(?s:.*)/\n", quoted(close));
    let mut calls = Vec::new();
    for (number, function) in functions.iter().enumerate() {
        let required = function.parameters["required"].as_array();
        let is_required = |key: &str| required.is_some_and(|keys| keys.iter().any(|one| one == key));
        let mut call = begin(&function.name);
        for (key, schema) in function.parameters["properties"].as_object().into_iter().flatten() {
            let choices = schema["enum"].as_array().filter(|choices| choices.iter().all(Value::is_string));
            let value = match choices {
                Some(choices) => {
                    let texts = choices.iter().filter_map(Value::as_str).map(quoted);
                    format!("({}) {}", texts.collect::<Vec<_>>().join(" | "), quoted(close))
                }
                // It is written as it is, so only its end is known.
                None if schema["type"] == "string" => "text".to_owned(),
                None => format!("%json {schema} {}", quoted(close)),
            };
            let optional = if is_required(key) { "" } else { "?" };
            call += &format!(" ({} {value}){optional}", open(key));
        }
        rules += &format!("call_{number}: {call} {}\n", quoted(end));
        calls.push(format!("call_{number}"));
    }
    format!("{rules}call: {}\n", calls.join(" | "))
}

//! Provides the parsing helpers that several families share.

use interbed_engine::{json_value, quoted};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::body::{Body, Closing};
use super::values::{ends_within_a_number, is_plain_text, schema_of};
use super::{Begun, Function, Reading};

/// Returns the JSON object or array at the beginning of `text`, and its length in bytes including leading white space.
/// Returns `None` if the value is incomplete, and an error if there is none.
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
        Some(Err(error)) if error.is_eof() || ends_within_a_number(value) => Ok(None),
        _ => Err(()),
    }
}

/// Returns the text after `expected` and optional white space. Returns `None` if `expected` is incomplete, and an error
/// if another text comes.
pub(super) fn after<'t>(text: &'t str, expected: &str) -> Result<Option<&'t str>, ()> {
    let text = text.trim_start();
    match text.strip_prefix(expected) {
        Some(rest) => Ok(Some(rest)),
        None if expected.starts_with(text) => Ok(None),
        None => Err(()),
    }
}

/// Returns the text before and after `end`, or `None` if `end` has not arrived yet.
pub(super) fn until<'t>(text: &'t str, end: &str) -> Result<Option<(&'t str, &'t str)>, ()> {
    Ok(text.split_once(end))
}

/// Returns the JSON string at the beginning of `text`, and the rest. Returns `None` if the string is incomplete, and an
/// error if there is none.
fn string(text: &str) -> Result<Option<(String, &str)>, ()> {
    let Some(inner) = after(text, "\"")? else { return Ok(None) };
    let mut escaped = false;
    let end = inner.bytes().position(|byte| {
        let is_end = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        is_end
    });
    let Some(end) = end else { return Ok(None) };
    let value = serde_json::from_str(&format!("\"{}\"", &inner[..end])).map_err(|_| ())?;
    Ok(Some((value, &inner[end + 1..])))
}

/// Returns the text after a JSON value, or `None` if the value is incomplete, an error if there is none.
fn behind_value(text: &str) -> Result<Option<&str>, ()> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    let next = values.next();
    let rest = &text[values.byte_offset()..];
    match next {
        // A number may continue.
        Some(Ok(_)) => Ok(Some(rest).filter(|rest| !rest.is_empty())),
        Some(Err(error)) if !error.is_eof() && !ends_within_a_number(text) => Err(()),
        _ => Ok(None),
    }
}

/// The beginning of an object with a name and arguments.
enum Head<'t> {
    /// The name, and the text that begins with the arguments. The arguments are a JSON object.
    Named(String, &'t str),
    /// The call must be parsed as a whole, because its name is not followed by arguments that are a JSON object.
    Whole,
}

fn head(text: &str) -> Result<Option<Head<'_>>, ()> {
    let Some(mut rest) = after(text, "{")? else { return Ok(None) };
    let mut name = None;
    loop {
        if rest.trim_start().starts_with('}') {
            return Ok(Some(Head::Whole));
        }
        let Some((key, behind)) = string(rest)? else { return Ok(None) };
        let Some(value) = after(behind, ":")? else { return Ok(None) };
        let value = value.trim_start();
        let behind = match (key.as_str(), name, value.chars().next()) {
            (_, _, None) => return Ok(None),
            ("arguments" | "parameters", Some(name), Some('{')) => return Ok(Some(Head::Named(name, value))),
            ("arguments" | "parameters", ..) => return Ok(Some(Head::Whole)),
            ("name", _, Some('"')) => {
                let Some((told, behind)) = string(value)? else { return Ok(None) };
                name = Some(told);
                behind
            }
            (_, before, _) => {
                let Some(behind) = behind_value(value)? else { return Ok(None) };
                name = before;
                behind
            }
        };
        if behind.trim_start().starts_with('}') {
            return Ok(Some(Head::Whole));
        }
        let Some(next) = after(behind, ",")? else { return Ok(None) };
        rest = next;
    }
}

/// Parses a call that is a JSON object with a name and arguments, which may be omitted unless it `needs` them.
/// `closing` says what follows the object.
pub(super) fn object_call(text: &str, closing: Closing, needs: bool) -> Reading {
    reading(|| match head(text)? {
        None => Ok(None),
        Some(Head::Named(name, arguments)) => {
            let body = Body::json(Closing { object: true, ..closing });
            let length = text.len() - arguments.len();
            Ok(Some(Begun { name, length, arguments: String::new(), body }))
        }
        Some(Head::Whole) => {
            let Some((value, length)) = json(text)? else { return Ok(None) };
            let Ok(Value::Object(fields)) = json_value(value) else { return Err(()) };
            let name = fields.get("name").and_then(Value::as_str).ok_or(())?.to_owned();
            let arguments = match ["arguments", "parameters"].into_iter().find_map(|key| fields.get(key)) {
                None if needs => return Err(()),
                None | Some(Value::Null) => "{}".to_owned(),
                // Some models write the arguments as a string of JSON.
                Some(Value::String(text)) if is_object(text) => text.clone(),
                Some(Value::Object(arguments)) => json_of(arguments),
                Some(_) => return Err(()),
            };
            Ok(Some(Begun { name, length, arguments, body: Body::known(Closing { object: false, ..closing }) }))
        }
    })
}

/// Begins a call whose arguments, a JSON object, are at `value` in `text`.
pub(super) fn begun(text: &str, name: &str, value: &str, closing: Closing) -> Result<Option<Begun>, ()> {
    match value.trim_start().chars().next() {
        None => Ok(None),
        Some('{') if !name.is_empty() => {
            let (name, length) = (name.to_owned(), text.len() - value.len());
            Ok(Some(Begun { name, length, arguments: String::new(), body: Body::json(closing) }))
        }
        Some(_) => Err(()),
    }
}

/// Converts the result of `read`.
pub(super) fn reading(read: impl FnOnce() -> Result<Option<Begun>, ()>) -> Reading {
    match read() {
        Ok(Some(begun)) => Reading::Begun(begun),
        Ok(None) => Reading::More,
        Err(()) => Reading::Nothing,
    }
}

/// Returns the value of the parameter `name`, which ends at `close`, and the rest. Returns `None` if the value is
/// incomplete. JSON may contain `close` in its strings.
pub(super) fn value<'t>(
    text: &'t str,
    close: &str,
    function: Option<&Function>,
    name: &str,
) -> Result<Option<(&'t str, &'t str)>, ()> {
    if !is_plain_text(schema_of(function, name)) && text.trim_start().starts_with(['{', '[', '"']) {
        let start = text.len() - text.trim_start().len();
        let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<&RawValue>();
        match values.next() {
            Some(Ok(raw)) => {
                if let Ok(behind) = after(&text[start + raw.get().len()..], close) {
                    return Ok(behind.map(|behind| (raw.get(), behind)));
                }
            }
            Some(Err(error)) if error.is_eof() || ends_within_a_number(&text[start..]) => return Ok(None),
            _ => {}
        }
    }
    until(text, close)
}

/// Returns whether a text is exactly one JSON object.
fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<&RawValue>(text).is_ok()
}

/// Formats arguments as JSON, like chat templates.
pub(super) fn json_of(arguments: &Map<String, Value>) -> String {
    Value::Object(arguments.clone()).to_string()
}

/// Formats a parameter as text between tags.
pub(super) fn raw(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns a rule `call` with an alternative for each function: the text `before` its name, the text `between` name and
/// arguments, and the text `behind`.
pub(super) fn json_calls(functions: &[Function], before: &str, between: &str, behind: &str) -> String {
    let one = |function: &Function| {
        let begin = format!("{before}{}{between}", function.name);
        format!("{} %json {} {}", quoted(&begin), function.parameters, quoted(behind))
    };
    let calls: Vec<_> = functions.iter().map(one).collect();
    format!("call: {}\n", calls.join("\n    | "))
}
